"""The last line of defence: when the supervisor is killed with SIGKILL, end everything that carries its run's token.

Started by the supervisor as a separate process with a pipe on standard input. The kernel closes the pipe when the
supervisor dies, however it dies; a supervisor that ended in order kills the guardian first. Through the pipe it learns of
orphans that the supervisor adopted (one line each, pid and start time): those may have cast off the token. It knows nothing of
roles, and imports nothing but the standard library, so it starts in few milliseconds and takes little memory.
"""

from __future__ import annotations

import signal
import sys
import time

from computerrl.launch.supervision.processes import (
    RUN_VARIABLE,
    descendants,
    kill_all,
    marked,
    remove_shared_memory,
    shared_memory_of,
    start_time,
)

PASSES = 50
"""Maximum number of passes. A process may fork between the search and the kill, so the search is repeated."""
PASS_S = 0.02
"""Pause between passes in seconds: no event announces the end of a process that is not a child."""


def main() -> None:
    """Wait for the end of standard input, then kill until nothing is left. Runs without the run's token itself."""
    token = sys.argv[1]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    orphans = dict(line.split() for line in sys.stdin)
    shared_memory = set()
    for _ in range(PASSES):
        strays = {int(pid) for pid, started in orphans.items() if start_time(int(pid)) == started}
        left = marked(RUN_VARIABLE, token) | strays | descendants(strays)
        if not left:
            break
        shared_memory |= shared_memory_of(left)
        kill_all(left)
        time.sleep(PASS_S)
    remove_shared_memory(shared_memory)


if __name__ == "__main__":
    main()
