"""Errors of scoring and of generated tasks."""

from tailrace.contracts import TailraceError


class RewardError(TailraceError):
    """Root of this package's errors."""


class ScoringError(RewardError, RuntimeError):
    """A verifier could not judge a response: an infrastructure failure, never a reward of zero."""


class VerdictError(RewardError, ValueError):
    """A verifier returned something that is no reward."""


class SignatureError(RewardError, TypeError):
    """A function cannot be called as a verifier is, or its parameters say that it expects something else."""


class ItemError(RewardError, TypeError):
    """A part of what is to be scored has another type than it should."""


class SettingsError(RewardError, ValueError):
    """A setting of the scheduler or an argument of a task is out of its range, or contradicts another."""


class CodeRowError(ScoringError):
    """A row's tests are missing or malformed."""


class SandboxFailedError(ScoringError):
    """The sandbox failed, not the program in it."""


class UnknownVerifierError(RewardError, LookupError):
    """A reference names no function."""


class UnknownTaskError(RewardError, LookupError):
    """No generated task has this name."""


class SpecificationError(RewardError, ValueError):
    """A text is no specification of a function as the task ``programs`` writes them."""


class WorkerTimeoutError(RewardError, TimeoutError):
    """A scoring worker did not answer within its deadline."""


class WorkerDiedError(RewardError, ChildProcessError):
    """A scoring worker ended while it was needed.

    Args:
        said: the message.
        status: its exit status, negative for a signal.
    """

    def __init__(self, said: str, status: int | None = None) -> None:
        super().__init__(said)
        self.status = status


class ScorerClosedError(RewardError, RuntimeError):
    """The scorer was used after it was closed."""


class TooFewQuestionsError(RewardError, ValueError):
    """A task has fewer distinct questions than were asked for."""


class NoSandboxError(RewardError, RuntimeError):
    """No sandbox works on this machine, or the one that was asked for does not."""


class JudgeError(RewardError, ValueError):
    """A judge cannot be made of what was given: its model, its template, its tokens or its options."""


class JudgeMemoryError(RewardError, MemoryError):
    """A judge does not fit its memory budget, however many layers are kept on the host."""


class JudgeClosedError(RewardError, RuntimeError):
    """A judge's process was used after it was closed."""
