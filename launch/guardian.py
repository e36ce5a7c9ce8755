"""The last line of defence: when the supervisor is killed with SIGKILL, end everything that carries its run's token.

Started by the supervisor as a separate process with a pipe on standard input. The kernel closes the pipe when the
supervisor dies, however it dies; a supervisor that ended in order kills the guardian first. It knows nothing of roles, and
imports nothing but the standard library, so it takes few milliseconds and little memory.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from launch.processes import TOKEN_VARIABLE, kill_all, marked

PASSES = 50
"""A process may fork between the look and the kill, so look again until none is left ..."""
PASS_S = 0.02
"""... this long apart: nothing announces that somebody else's child has ended."""


def main() -> None:
    """Wait for the end of standard input, then kill until nothing is left."""
    token = sys.argv[1]
    os.environ.pop(TOKEN_VARIABLE, None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    for _ in range(PASSES):
        left = marked(token)
        if not left:
            return
        kill_all(left)
        time.sleep(PASS_S)


if __name__ == "__main__":
    main()
