"""Which policy stands on each axis of a case: one that is registered, or one of yours.

A policy of yours is the name of a plugin, a class (or function) whose options are drawn, or an object as it is.
"""

from __future__ import annotations

import enum
import inspect
import typing
from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any

from tailrace.contracts import (
    AdmissionGate,
    BatchingSource,
    Cause,
    Facts,
    Failure,
    ProvisioningPolicy,
    RecoveryAction,
    StepCosts,
    TailraceError,
    TrainingPolicy,
    Tried,
    expected_one_of,
    plugins,
)
from tailrace.controller.spec import AXES
from tailrace.fuzz.errors import CaseError
from tailrace.pipeline.config.models import Choice
from tailrace.pipeline.config.options import Factory, options_of
from tailrace.pipeline.config.policies import build_policy, check_form, load_policy, options_from

APART = ("detection",)
"""Policies that are drawn apart from the others, so that these are as they were before there were any."""
POLICIES = (*AXES, "sampler", *APART)
Policies = Mapping[str, Any]
NONE: Policies = MappingProxyType({})
DRAWN_APART = {"standby", "predicted", "projected", "tokens", "batchwise", "seeded"}
"""Options that are drawn apart (`draw_options`), so that the cases of most seeds are as they were before there were any."""
SMALL = Facts(
    prompts=1, samples=1, replicas=1, slots=1, max_tokens=1, trainer_devices=1, shuffle_seed=1, silent_s=1.0, surplus_groups=1,
    heads=1, costs=StepCosts(1.0, 1.0, 1.0, 1.0),
)  # fmt: skip
"""The facts with which options are tried that are drawn: a case has its own."""
NEWER = {
    "recovery": ("role-based",),
    "detection": ("role-aware", "rank-level", "cluster-level"),
    "batching": ("tail-batching",),
    "provisioning": ("adaptive-tp", "scale-down", "adaptive-tp-scale-down", "balanced", "hybrid"),
    "routing": ("skew-aware", "prefix-aware"),
    "sync": ("when-drained",),
    "training": ("single-fetch",),
    "sampler": ("in-order",),
}
"""Built-ins that are drawn apart from the others, so that the cases of most seeds are as they were before there were any."""
SHARE_OF_NEWER = 0.15
SHORT_LIVED = 0.16
"""How often a recovery is kept that ends the run with the first dead replica, or starts it over: little happens after that."""
DRAWS = 20  # of options, until a policy takes them


def check_axes(policies: Policies) -> None:
    """Every policy of yours stands on an axis.

    Raises:
        CaseError: there is no such axis.
    """
    for axis in policies:
        if axis not in POLICIES:
            raise CaseError(f"found a policy for {axis!r}, {expected_one_of(axis, POLICIES)}")


def draw_policy(random: Random, axis: str, policies: Policies = NONE) -> dict[str, Any]:
    """A policy of an axis with its options, as a configuration says it."""
    mine = policies.get(axis)
    if mine is not None:
        return _drawn(random, axis, _name(mine), policies)
    names = [name for name in plugins.names(f"tailrace.{axis}") if name not in NEWER.get(axis, ())]
    policy = _drawn(random, axis, random.choice(names))
    if axis == "recovery" and random.random() >= SHORT_LIVED:
        while policy["name"] == "restart-task" or ends_run(
            make_policy(axis, Choice(**policy)), "replica", failures=1, others=1
        ):
            policy = _drawn(random, axis, random.choice(names))
    return policy


def draw_newer(
    random: Random,
    axis: str,
    policies: Policies = NONE,
    share: float = SHARE_OF_NEWER,
    names: Sequence[str] = (),
) -> dict[str, dict[str, Any]]:
    """A newer built-in that takes the place of what was drawn on an axis: in most cases none.

    Args:
        share: share of cases in which there is one.
        names: those to choose from; empty: all.
    """
    chosen, name = random.random() < share, random.choice(names or NEWER[axis])
    drawn = _drawn(random, axis, name)
    return {axis: drawn} if chosen and axis not in policies else {}


def draw_options(random: Random, pipeline: Mapping[str, Any], policies: Policies = NONE) -> dict[str, dict[str, Any]]:
    """Policies of a pipeline that have options newer than themselves, with these in some cases: the others are as they were."""
    found = {}
    for axis, option in (("admission", "batchwise"), ("training", "tokens"), ("batching", "seeded")):
        chosen = pipeline[axis]
        kind = takes(axis, chosen["name"], policies).get(option)
        value = draw_value(random, kind) if random.random() < 0.5 else None
        if value and as_it_is(axis, policies) is None:
            found[axis] = {**chosen, option: value}
    return found


def make_policy(
    axis: str,
    choice: Choice,
    facts: Facts | None = None,
    policies: Policies = NONE,
) -> Any:
    """The policy that a case chooses; see `build_policy`.

    Raises:
        ConfigError: it does not take its options.
    """
    factory = policies.get(axis)
    if factory is None or isinstance(factory, str) or choice.name != _name(factory):
        return build_policy(axis, choice, facts)
    if _is_factory(factory):
        return build_policy(axis, choice, facts, factory)
    check_form(axis, choice.name, factory)
    return factory


def takes(axis: str, name: str, policies: Policies = NONE) -> Mapping[str, Any]:
    """The options of a policy by name, with their types; none of an object, which has them already."""
    factory = _factory(axis, name, policies)
    return {} if factory is None else options_of(factory)


def as_it_is(axis: str, policies: Policies) -> Any | None:
    """The object of yours on an axis; None where the policy is made for each case."""
    mine = policies.get(axis)
    return None if isinstance(mine, str) or _is_factory(mine) else mine


def launches_rounds(batching: Choice, policies: Policies = NONE) -> bool:
    """Whether a batching policy launches groups in rounds."""
    source: BatchingSource = make_policy("batching", batching, policies=policies).open()
    return source.launches_rounds()


def admits_rounds(admission: Choice, policies: Policies = NONE) -> bool:
    """Whether an admission policy knows rounds, whose batches differ in size."""
    gate: AdmissionGate = make_policy("admission", admission, policies=policies).gate(1)
    return gate.admits_rounds()


def lends_devices(provisioning: Choice, policies: Policies = NONE) -> bool:
    """Whether a provisioning policy lends devices to the trainer, whose cells must then share them."""
    policy: ProvisioningPolicy = make_policy("provisioning", provisioning, policies=policies)
    return policy.lends_devices()


def yields_devices(provisioning: Choice, policies: Policies = NONE) -> bool:
    """Whether a provisioning policy has hybrids, which stand on the trainer's devices and yield to it."""
    policy: ProvisioningPolicy = make_policy("provisioning", provisioning, policies=policies)
    return policy.yields_from() is not None


def streams_parts(training: Choice, policies: Policies = NONE) -> bool:
    """Whether a training policy makes optimizer steps on parts of a fixed size, before their batch is complete."""
    policy: TrainingPolicy = make_policy("training", training, policies=policies)
    return policy.streams and policy.early_gradients() is None


def ends_run(recovery: Any, role: str, *, failures: int, others: int, first: bool = False) -> bool:
    """Whether a recovery ends the run when a member has failed so often, and the whole task was restarted before each time.

    Args:
        recovery: the policy.
        role: the member's.
        failures: of it, the last one included.
        others: members of the role that are not down.
        first: whether it failed in a first iteration.
    """
    failure = Failure(
        role, "0", cause=Cause.DIED, failures=failures, role_failures=failures, others=others, step_failures=failures,
        task_restarts=failures - 1, first_iteration=first,
    )  # fmt: skip
    return bool(recovery.on_down(failure) is RecoveryAction.FAIL)


def _drawn(random: Random, axis: str, name: str, policies: Policies = NONE) -> dict[str, Any]:
    """Options are drawn until the policy takes them; what it takes together with others is for it to say."""
    fields = {option: kind for option, kind in takes(axis, name, policies).items() if option not in DRAWN_APART}
    for _ in range(DRAWS):
        options = {option: value for option, kind in fields.items() if (value := draw_value(random, kind)) is not None}
        factory = _factory(axis, name, policies)
        if factory is None or _takes_them(factory, options):
            return {"name": name, **options}
    raise CaseError(f"policy {name!r} of axis {axis} took none of {DRAWS} draws of its options: {fields!r:.300}")


def _takes_them(factory: Factory, options: Mapping[str, Any]) -> bool:
    try:
        factory(**{**options_from(factory, SMALL), **options})
    except (TailraceError, ValueError, TypeError):
        return False
    return True


def _factory(axis: str, name: str, policies: Policies) -> Factory | None:
    mine = policies.get(axis)
    if mine is None or isinstance(mine, str) or name != _name(mine):
        return load_policy(axis, name)
    return mine if _is_factory(mine) else None


def _is_factory(policy: Any) -> bool:
    return isinstance(policy, type) or inspect.isroutine(policy)


def _name(policy: Any) -> str:
    if isinstance(policy, str):
        return policy
    made = policy if _is_factory(policy) else type(policy)
    return f"{made.__module__}.{made.__qualname__}"


def draw_value(random: Random, kind: Any) -> Any:
    """A value of a type: truths, literals and enumerations as they are, anything else where `Tried` stands beside it.

    None leaves the option as it is, as a configuration would: TOML has no word for it.
    """
    if typing.get_origin(kind) is typing.Annotated:
        kind, *marks = typing.get_args(kind)
        for told in marks:
            if isinstance(told, Tried):
                return random.choice(told.rarely if told.rarely and random.random() < 0.1 else told.values)
    if kind is bool:
        return random.random() < 0.5
    if typing.get_origin(kind) is typing.Literal:
        return random.choice(typing.get_args(kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return random.choice(list(kind)).value
    return None
