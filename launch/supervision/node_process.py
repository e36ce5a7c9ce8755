"""What starts a process of a run on a node, and leaves nothing of it there.

    supervisor ── srun or ssh ──► node_process ──► the role ──► containers, ranks

A scheduler's own clean-up is as good as the site's settings, and ssh has none: so each process has this one above it, which
adopts what is orphaned and ends everything when the role has ended, when it is told to, or (with ``--until-eof``) when the
connection it was started through is gone. It repairs nothing: the supervisor starts the command again.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

from computerrl.common.config import SupervisorConfig
from computerrl.launch.plan.processes import COMMANDS, ProcessSpec
from computerrl.launch.supervision.processes import STOP_SIGNAL
from computerrl.launch.supervision.supervisor import Outcome, Supervisor

DEAF_TO_SIGTERM = ("sh", "-c", 'trap "" TERM; exec "$@"', "sh")
"""Before a command: it and all it starts ignore SIGTERM, unless they ask for it. Slurm sends it to every process of a job that is
to be preempted, while the supervisor still wants a checkpoint of them."""
TICK_S = 0.5


def main() -> int:
    """Run the command after ``--`` and give its exit code, 128 + N when signal N ended it."""
    parser = argparse.ArgumentParser(prog="python -m computerrl.launch.supervision.node_process", description=__doc__)
    parser.add_argument("--role", required=True, choices=COMMANDS)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--stop-s", type=float, default=3.0, help="what the role gets to end by itself")
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--notice", type=Path, help="file to make when SIGTERM comes, which then stops nothing")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    if options.until_eof:
        threading.Thread(target=_end_at_eof, name="connection", daemon=True).start()
    signal.signal(STOP_SIGNAL, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    spec = _spec(options)
    supervisor = Supervisor(
        [spec],
        config=SupervisorConfig(max_restarts=0, stop_s=options.stop_s),
        log_folder=None,
        notify=lambda line: print(line, file=sys.stderr, flush=True),
        stop_signals=(signal.SIGINT, signal.SIGHUP),
    )
    _leave_notice_on_sigterm(options.notice)
    outcome = supervisor.run(tick=lambda: None, tick_s=TICK_S)
    return exit_code_of(outcome)


def _spec(options: argparse.Namespace) -> ProcessSpec:
    spec = ProcessSpec(options.role, options.index, tuple(options.command), nice=options.nice, ends_run=True)
    if options.notice is None:
        return spec
    return replace(spec, argv=(*DEAF_TO_SIGTERM, *spec.argv), stop_signal=signal.SIGINT)


def exit_code_of(outcome: Outcome) -> int:
    """A shell's convention for deaths by signal; 0 when this process was told to end."""
    if outcome.kind != "failed":
        return 0
    return outcome.last_exit_code if outcome.last_exit_code >= 0 else 128 - outcome.last_exit_code


def _leave_notice_on_sigterm(notice: Path | None) -> None:
    if notice is None:
        signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    else:
        signal.signal(signal.SIGTERM, lambda *_: notice.touch())


def _end_at_eof() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
