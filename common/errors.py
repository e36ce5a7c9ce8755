"""Every error this system raises on purpose, in one tree.

ComputerRLError                 base; ``exit_code`` is what a process ends with when it reaches the top
├── ConfigError                 the user's configuration is wrong: all problems at once, each with its field and next step
├── SetupError                  the machine lacks something (Apptainer, image, model folder): says what to install or run
├── ResumeError                 a run folder cannot be continued (other configuration, damaged checkpoint or journal)
├── ProtocolError               a peer said something this side cannot take
│   ├── DecodeError             a frame is no message: names the kind and the sender
│   ├── MessageTooLarge         a message is larger than its kind may be: names the limit; nothing was sent
│   ├── UnknownPeer             the broker does not know this process (any more): say Hello again
│   ├── Superseded              a newer process has this role and index: this one must end
│   ├── OrderRefused            an order's id is taken (closed, or other content): place it under another id
│   └── RemoteError             the peer refused a request: carries its error code and text
├── PeerTimeout                 no answer within the deadline (the peer may be dead, slow or unreachable)
│   ├── ChannelClosed           this side closed the channel while a request waited: do not ask again
│   └── EndpointBusy            the server of a model has no time now: carries when it wants to be asked again
├── EnvError                    something in the environment side failed
│   ├── TaskFailed              this task instance cannot be set up or judged; the desktop is fine
│   ├── DesktopBroken           this desktop must be recycled
│   ├── HostBroken              no desktop can work on this host: quarantine it
│   ├── LeaseRefused            the fencing token is old or unknown
│   └── NoDesktop               none is free, or memory would not hold another one; carries the reason
├── EngineFailed                the policy engine could not finish what it was asked
│   └── EndpointRefused         the server of a model refuses a request, or answers with something else than JSON
├── TrainingDiverged            loss or gradients were not finite several times in a row
├── EngineMismatch              engine and learner give the same tokens different log-probs: not the same model
├── RankLost                    another process of the same learner has ended or does not answer
├── PictureError                a picture that a step shows is missing, not readable, or not the one its prompt has room for
├── WeightError                 a weight update did not arrive whole or does not match its checksum
├── DiskFull                    a durable write failed for want of space
└── RestartLimitReached         a process died more often than the supervisor repairs

No error of our own parts ever becomes a reward: the actor returns the assignment instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class ComputerRLError(Exception):
    """Base of all errors raised on purpose."""

    code = "error"
    exit_code = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a configuration or a machine."""

    field: str
    """Dotted path of the configuration field, or the name of the missing thing."""
    reason: str
    """What is wrong, with the offending value and, where numbers disagree, the arithmetic."""
    next_step: str
    """What the person should do now."""

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}\n    -> {self.next_step}"


class ConfigError(ComputerRLError):
    """The configuration is wrong; ``problems`` holds everything found, not only the first."""

    code = "config_error"
    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class SetupError(ComputerRLError):
    """The machine lacks something the run needs."""

    code = "setup_error"
    exit_code = 3

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


class ResumeError(ComputerRLError):
    """A run folder cannot be continued."""

    code = "resume_error"
    exit_code = 4


class ProtocolError(ComputerRLError):
    """A peer said something this side cannot take."""

    code = "protocol_error"
    exit_code = 5


class DecodeError(ProtocolError):
    """Frames that are no message of this protocol version."""

    code = "decode_error"

    def __init__(self, reason: str, *, kind: str = "unknown", sender: str = "unknown") -> None:
        self.kind, self.sender, self.reason = kind, sender, reason
        super().__init__(f"cannot decode a message of kind {kind!r} from {sender}: {reason}")


class MessageTooLarge(ProtocolError):
    """A message of this side is larger than its kind may be; it was not sent."""

    code = "message_too_large"


class UnknownPeer(ProtocolError):
    """The broker does not know this process, or not any more (it restarted): say `Hello` again."""

    code = "unknown_peer"


class Superseded(ProtocolError):
    """A newer process has taken this one's role and index; this one must end."""

    code = "superseded"


class OrderRefused(ProtocolError):
    """The broker has an order of this id that is closed or asks for something else; another id is free."""

    code = "order_refused"


class RemoteError(ProtocolError):
    """The peer answered with an error; ``remote_code`` is the ``code`` of the error it raised."""

    code = "remote_error"

    def __init__(self, message: str, *, remote_code: str) -> None:
        self.remote_code = remote_code
        super().__init__(message)


class PeerTimeout(ComputerRLError):
    """No answer within the deadline."""

    code = "peer_timeout"
    exit_code = 6


class ChannelClosed(PeerTimeout):
    """This side closed the channel; asking again is of no use."""

    code = "channel_closed"


class EndpointAway(PeerTimeout):
    """Nobody listens at the address of a model's server."""

    code = "endpoint_away"


class EndpointBusy(PeerTimeout):
    """The server of a model has no time now."""

    code = "endpoint_busy"

    def __init__(self, reason: str, *, retry_after_s: float) -> None:
        """``retry_after_s``: the server wants to be asked again after so long; 0: it does not say."""
        self.retry_after_s = retry_after_s
        super().__init__(reason)


class EnvError(ComputerRLError):
    """Something on the environment side failed."""

    code = "env_error"
    exit_code = 7


class TaskFailed(EnvError):
    """This task instance cannot be set up or judged; the desktop itself is fine."""

    code = "task_failed"


class DesktopBroken(EnvError):
    """This desktop does not answer or lies: recycle it."""

    code = "desktop_broken"


class HostBroken(EnvError):
    """No desktop can work on this host."""

    code = "host_broken"


class LeaseRefused(EnvError):
    """The fencing token is old or unknown: another process has the lease of the desktop."""

    code = "lease_refused"


class NoDesktop(EnvError):
    """No desktop can be leased now; the text says why."""

    code = "no_desktop"


class EngineFailed(ComputerRLError):
    """The policy engine could not finish what it was asked (closed, out of memory, a fault of its own)."""

    code = "engine_failed"
    exit_code = 11


class EndpointRefused(EngineFailed):
    """The server of a model refuses a request, or its answer cannot be used."""

    code = "endpoint_refused"

    def __init__(self, reason: str, next_step: str, *, is_broken: bool = False) -> None:
        """``is_broken``: the connection ended before the answer did, which the next try may not meet again."""
        self.reason, self.next_step, self.is_broken = reason, next_step, is_broken
        super().__init__(reason)


class TrainingDiverged(ComputerRLError):
    """Loss or gradients were not finite several times in a row."""

    code = "training_diverged"
    exit_code = 12


class EngineMismatch(ComputerRLError):
    """Engine and learner give the same tokens of the same weights different log-probs."""

    code = "engine_mismatch"
    exit_code = 14


class RankLost(ComputerRLError):
    """Another rank of the learner has ended or does not answer; all of them must be started again."""

    code = "rank_lost"
    exit_code = 13


class PictureError(ComputerRLError):
    """What a prompt shows cannot be given to the model: nothing is trained without its picture."""

    code = "picture_error"
    exit_code = 15

    def __init__(self, text: str, *, mismatch: bool) -> None:
        """``mismatch``: the picture is there, but not the one that the prompt has room for."""
        super().__init__(text)
        self.mismatch = mismatch


class WeightError(ComputerRLError):
    """A weight update did not arrive whole, or does not match its checksum or probe."""

    code = "weight_error"
    exit_code = 8


class DiskFull(ComputerRLError):
    """A durable write failed for want of space."""

    code = "disk_full"
    exit_code = 9


class RestartLimitReached(ComputerRLError):
    """A process died more often than the supervisor is told to repair."""

    code = "restart_limit"
    exit_code = 10


def error_classes() -> dict[str, type[ComputerRLError]]:
    """All classes of the tree by ``code``, for turning an error reply back into the error it was; a class without a code of its
    own counts as the one above it."""
    found: dict[str, type[ComputerRLError]] = {}
    pending: list[type[ComputerRLError]] = [ComputerRLError]
    while pending:
        cls = pending.pop()
        found.setdefault(cls.code, cls)
        pending.extend(cls.__subclasses__())
    return found
