"""`python -m computerrl` is the command `computerrl`."""

from computerrl.launch.commands.main import main

if __name__ == "__main__":
    main()
