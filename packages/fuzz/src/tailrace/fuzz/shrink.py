"""A smaller case that breaks in the same way: fewer faults first, then plain messages, then less of everything else.

Faults go by delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002): ever smaller
parts of the schedule are left out as long as the case still breaks. The rest is tried one simplification at a time, each
again after another was possible, until none is or the time is up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tailrace.contracts import TailraceError, plugins
from tailrace.fuzz.case import Case
from tailrace.fuzz.errors import CaseError
from tailrace.fuzz.faults import CaseFault
from tailrace.fuzz.policies import APART, NONE, POLICIES, Policies, as_it_is, takes
from tailrace.fuzz.trial import Violation, run_case
from tailrace.pipeline.config.models import PipelineConfig
from tailrace.runtime.executor.deployment import REPLICA


class Shrinker:
    """Makes one case smaller.

    Args:
        case: one that breaks.
        failure: how.
        limit_s: seconds to spend.
        most: cases to try.
        policies: those of yours that take part, by axis. They stay.
        run: runs a case; returns how it breaks, or None.
    """

    def __init__(
        self,
        case: Case,
        failure: Violation,
        *,
        limit_s: float = 20.0,
        most: float = math.inf,
        policies: Policies = NONE,
        run: Callable[[Case], Violation | None] | None = None,
    ) -> None:
        self.case, self.failure = case, failure
        self.tried, self._most = 0, most
        self._run = run if run is not None else lambda smaller: run_case(smaller, policies).failure
        # A batching policy of yours says itself how many samples a group has.
        samples = [] if as_it_is("batching", policies) is not None else [_fewer("samples_per_prompt", 2)]
        self._simpler = (
            *_SIMPLER,
            *samples,
            *(_plainer_policy(axis) for axis in POLICIES if axis not in (*policies, *APART)),
            *(_default(axis) for axis in APART if axis not in policies),
            _plainer_faults,
        )
        self._until_s = time.monotonic() + limit_s

    def shrink(self) -> Case:
        """The smallest case found."""
        self._drop_faults()
        while self._one_round() and self._in_time():
            self._drop_faults()
        return self.case

    def _one_round(self) -> bool:
        """Each simplification once; returns whether any was possible."""
        before = self.case
        for simplify in self._simpler:
            for smaller in simplify(self.case):
                if self._accepts(smaller):
                    break
        return self.case != before

    def _drop_faults(self) -> None:
        parts = 2
        while self.case.faults and self._in_time():
            faults = self.case.faults
            size = max(1, len(faults) // parts)
            rests = [(*faults[:at], *faults[at + size :]) for at in range(0, len(faults), size)]
            if any(self._accepts(_with(self.case, faults=rest)) for rest in rests):
                parts = 2
            elif size == 1:
                return
            else:
                parts *= 2

    def _accepts(self, smaller: Case | None) -> bool:
        if smaller is None or smaller == self.case or not self._in_time():
            return False
        self.tried += 1
        try:
            failure = self._run(smaller)
        except TailraceError:
            return False  # such a case cannot be
        if failure is None or not self.failure.same_as(failure):
            return False
        self.case, self.failure = smaller, failure
        return True

    def _in_time(self) -> bool:
        return self.tried < self._most and time.monotonic() < self._until_s


def _with(case: Case, **changes: Any) -> Case | None:
    try:
        return Case.model_validate({**{name: getattr(case, name) for name in Case.model_fields}, **changes})
    except (CaseError, ValueError):
        return None


def _part(case: Case, part: str, **changes: Any) -> Case | None:
    return _with(case, **{part: getattr(case, part).model_copy(update=changes)})


def _plain_messages(case: Case) -> Iterator[Case | None]:
    yield _with(case, messages={})
    yield _part(case, "messages", repeat=0.0)
    yield _part(case, "messages", delay_s=0.0)


def _less_around(case: Case) -> Iterator[Case | None]:
    yield _with(case, evaluation={})


def _no_scoring_failures(case: Case) -> Iterator[Case | None]:
    yield _with(case, scoring_failures=0.0)
    yield _with(case, unscored=0.0)


def _no_slow_store(case: Case) -> Iterator[Case | None]:
    yield _with(case, drops_s=0.0)


def _no_refusals(case: Case) -> Iterator[Case | None]:
    yield _with(case, refusals=0.0)


def _no_predictions(case: Case) -> Iterator[Case | None]:
    yield _with(case, predictions=0.0)


def _one_turn(case: Case) -> Iterator[Case | None]:
    yield _part(case, "workload", environment=None)


def _plain_environments(case: Case) -> Iterator[Case | None]:
    yield _with(case, environments={})
    for name, field in type(case.environments).model_fields.items():
        yield _part(case, "environments", **{name: field.default})


def _no_drift(case: Case) -> Iterator[Case | None]:
    yield _part(case, "workload", drift=None, reward_latency=None)


def _checkpoint_each(case: Case) -> Iterator[Case | None]:
    yield _with(case, checkpoint_every=1)
    yield _with(case, full_checkpoint_every=1)
    yield _with(case, fence=False)
    yield _with(case, newer_weights=False)
    yield _with(case, peers=False)
    yield _with(case, replica_versions=1)


def _keep_versions(case: Case) -> Iterator[Case | None]:
    yield _part(case, "weights", keep=0)


def _no_surplus(case: Case) -> Iterator[Case | None]:
    yield _pipeline(case, eviction=None)
    yield _pipeline(case, buffer_prompts=None)
    yield _pipeline(case, cycle_s=0.0)


def _plainer_policy(axis: str) -> Callable[[Case], Iterator[Case | None]]:
    """A policy with fewer options, and of the one that stays, no options set."""
    rank = {name: (len(takes(axis, name)), name) for name in plugins.names(f"tailrace.{axis}")}

    def simplify(case: Case) -> Iterator[Case | None]:
        now = getattr(case.pipeline, axis).name
        for name in sorted((name for name in rank if rank[name] < rank[now]), key=lambda name: rank[name]):
            yield _pipeline(case, **{axis: {"name": name}})
        yield _pipeline(case, **{axis: {"name": now}})

    return simplify


def _default(axis: str) -> Callable[[Case], Iterator[Case | None]]:
    """The policy of a configuration that says nothing of it."""

    def simplify(case: Case) -> Iterator[Case | None]:
        default = PipelineConfig.model_fields[axis].default
        if getattr(case.pipeline, axis) != default:
            yield _pipeline(case, **{axis: default.model_dump()})

    return simplify


def _fewer(name: str, least: int) -> Callable[[Case], Iterator[Case | None]]:
    def simplify(case: Case) -> Iterator[Case | None]:
        now = getattr(case.pipeline, name)
        for smaller in dict.fromkeys((least, now // 2, now - 1)):
            if least <= smaller < now:
                yield _pipeline(case, **{name: smaller})

    return simplify


def _fewer_replicas(case: Case) -> Iterator[Case | None]:
    for count in dict.fromkeys((1, case.replicas // 2, case.replicas - 1)):
        if 1 <= count < case.replicas:
            known = {f"r{index}" for index in range(count)}
            faults = [fault for fault in case.faults if fault.role != REPLICA or fault.member in known]
            yield _with(case, replicas=count, faults=tuple(faults))


def _no_pools(case: Case) -> Iterator[Case | None]:
    yield _with(case, far=0)
    yield _with(case, hybrids=0)


def _plainer_faults(case: Case) -> Iterator[Case | None]:
    for index, fault in enumerate(case.faults):
        first: dict[str, Any] = {"member": "r0"} if fault.role == REPLICA else {}
        for changes in (first, {"after_s": 0.0}, {"count": 1}, {"at_step": max(0, fault.at_step - 1)}):
            yield _with(case, faults=_replaced(case.faults, index, fault.model_copy(update=changes)))


def _replaced(faults: Sequence[CaseFault], index: int, fault: CaseFault) -> tuple[CaseFault, ...]:
    return (*faults[:index], fault, *faults[index + 1 :])


def _pipeline(case: Case, **changes: Any) -> Case | None:
    plain = {**case.pipeline.model_dump(), **changes}
    return _with(case, pipeline=plain)


_SIMPLER: Sequence[Callable[[Case], Iterator[Case | None]]] = (
    _plain_messages,
    _no_scoring_failures,
    _no_slow_store,
    _no_refusals,
    _no_predictions,
    _no_pools,
    _less_around,
    _fewer("steps", 1),
    _fewer_replicas,
    _fewer("prompts_per_step", 1),
    _fewer("prompts_per_replica", 1),
    _one_turn,
    _plain_environments,
    _no_drift,
    _no_surplus,
    _checkpoint_each,
    _keep_versions,
)
