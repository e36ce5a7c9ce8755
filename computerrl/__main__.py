"""`python -m computerrl` is the command `computerrl`."""

from computerrl.launch.cli import main

if __name__ == "__main__":
    main()
