"""Coverage-guided fuzzing of `tests.fuzz.targets.fuzz_broker`; arguments are libFuzzer's. See `make fuzz`."""

import sys

from driver import run

if __name__ == "__main__":
    run("broker", sys.argv[1:])
