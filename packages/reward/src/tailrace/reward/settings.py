"""Settings of the reward scheduler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.reward.errors import SettingsError
from tailrace.reward.judge.config import JudgeConfig
from tailrace.reward.timeouts import AdaptiveTimeout

TOLERANCE = 1e-9
"""The default relative error of numbers. Programs may add up in another order, and print more digits than the reference."""


class Kind(StrEnum):
    """What a verifier needs, and so the pool that it waits for.

    MATH: a function in a worker process; every verifier but the next two.
    CODE: a sandbox.
    JUDGE: a model.
    """

    MATH = "math"
    CODE = "code"
    JUDGE = "judge"


def kind_of(verifier: str) -> Kind:
    """The kind of a verifier by its name: ``code`` and ``judge`` have their own, all others are functions."""
    return {"code": Kind.CODE, "judge": Kind.JUDGE}.get(verifier, Kind.MATH)


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """A pool.

    Args:
        workers: scores under way at once.
        queue: scores that wait at most; beyond that, whoever brings one waits.
        attempts: how often a score is tried whose verifier or sandbox fails.

    Raises:
        SettingsError: a number is below 1.
    """

    workers: int = 1
    queue: int = 256
    attempts: int = 2

    def __post_init__(self) -> None:
        for name in ("workers", "queue", "attempts"):
            value = getattr(self, name)
            if value < 1:
                raise SettingsError(f"found {name} = {value}, expected at least 1")


@dataclass(frozen=True, slots=True)
class VerifierSettings(PoolSettings):
    """The pool of verifier functions.

    Args:
        own: your own verifiers in addition to the installed ones: name to ``"module:function"`` or ``"file.py:function"``. A
            data row can name only these and installed verifiers.
        timeout_s: deadline of one verification, in seconds. A function that misses it has failed.
        start_timeout_s: deadline for starting a worker and for importing a verifier in it.

    Raises:
        SettingsError: a number is out of its range, or a verifier is given otherwise.
    """

    own: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 10.0
    start_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        PoolSettings.__post_init__(self)
        check_seconds(timeout_s=self.timeout_s, start_timeout_s=self.start_timeout_s)
        for name, reference in self.own.items():
            if not isinstance(reference, str) or ":" not in reference:
                found = (
                    f"{reference!r:.60}" if isinstance(reference, str) else f"an object ({type(reference).__name__})"
                )
                raise SettingsError(
                    f"found {found} as the verifier {name!r}, expected where its function is found, as text: it runs in a "
                    "process of its own, and 'module:function' or 'file.py:function' says where"
                )


@dataclass(frozen=True, slots=True)
class CodeSettings(PoolSettings):
    """The pool of programs.

    Args:
        workers: programs that run at once.
        sandbox: name of the sandbox; ``auto`` takes the first that works.
        modules: installed modules that programs may import besides the standard library, such as ``numpy``.
        timeouts: the timeout of one test.
        recheck_share: time that may go into trying again, with the largest timeout, a sample of the programs that used up
            their timeout, as a share of the time of all scores. It shows how many timeouts were false; 0 turns it off.
        memory_mib: memory of a program; None: as much as its row's tests need, and 256 MiB at least. A row's own limit counts.
        output_kib: KiB that a test may give; None: four times what its row's tests expect, and 64 KiB at least. Likewise.
        tolerance: relative error of numbers where a program or a test writes them with a point or an exponent; where 0 is
            expected, the absolute error; 0: they are compared exactly. A row's own ``tolerance`` counts.
    """

    workers: int = 2
    sandbox: str = "auto"
    modules: tuple[str, ...] = ()
    timeouts: AdaptiveTimeout = field(default_factory=AdaptiveTimeout)
    recheck_share: float = 0.05
    memory_mib: int | None = None
    output_kib: int | None = None
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        PoolSettings.__post_init__(self)
        if not 0 <= self.recheck_share <= 1:
            raise SettingsError(f"found recheck_share = {self.recheck_share:g}, expected 0 to 1")
        if not 0 <= self.tolerance < 1:
            raise SettingsError(f"found tolerance = {self.tolerance:g}, expected 0 or more, and less than 1")
        for name, least in (("memory_mib", 16), ("output_kib", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise SettingsError(f"found {name} = {value}, expected at least {least}")


@dataclass(frozen=True, slots=True)
class JudgeSettings(PoolSettings):
    """The pool of a judge.

    Args:
        workers: responses that are judged at once; a batch takes as many as wait.
        judge: the model, its template and its limits; None: there is no judge, and rows that ask for one are refused.
        timeout_s: deadline of one score, in seconds. Loading the model does not count.
        start_timeout_s: deadline for starting the judge's process and loading its model.
    """

    workers: int = 16
    judge: JudgeConfig | None = None
    timeout_s: float = 120.0
    start_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        PoolSettings.__post_init__(self)
        check_seconds(timeout_s=self.timeout_s, start_timeout_s=self.start_timeout_s)


def check_seconds(**values: float) -> None:
    """Check deadlines.

    Raises:
        SettingsError: one is not above 0, or not finite.
    """
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise SettingsError(f"found {name} = {value:g}, expected more than 0 seconds")
