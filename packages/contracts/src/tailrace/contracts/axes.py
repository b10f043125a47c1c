"""The base class of each axis, and the check that a policy has it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from tailrace.contracts.detection import DetectionPolicy
from tailrace.contracts.errors import PluginError
from tailrace.contracts.policies import (
    AdmissionGate,
    AdmissionPolicy,
    AxisPolicy,
    BatchingPolicy,
    BatchingSource,
    ProvisioningPolicy,
    RecoveryPolicy,
    RelocationPolicy,
    RoutingPolicy,
    SyncPolicy,
    TrainingPolicy,
)

BASES: dict[str, type[AxisPolicy]] = {
    "admission": AdmissionPolicy,
    "batching": BatchingPolicy,
    "routing": RoutingPolicy,
    "sync": SyncPolicy,
    "relocation": RelocationPolicy,
    "training": TrainingPolicy,
    "provisioning": ProvisioningPolicy,
    "recovery": RecoveryPolicy,
    "detection": DetectionPolicy,
}
"""The base class of each axis's policies, and of those that detect failures."""
_GIVEN = {
    *(
        "samples",
        "prompts",
        "count",
        "surplus",
        "tp",
        "slots",
        "trajectories",
        "trainer_devices",
        "heads",
        "k1",
        "k2",
        "k3",
    ),
    *("k4", "pool_costs", "max_tokens", "shares", "shuffle_seed", "silent_s"),
}
"""Options that were filled by their names before there was `AxisPolicy.options_from`."""


def check_policy(axis: str, policy: object) -> None:
    """Check that a policy, or its class, has the base class of its axis, and so a default for all that it does not write.

    The gate or the source that a policy opens is checked too.

    Args:
        axis: a key of `BASES`.

    Raises:
        PluginError: one inherits no base class, lacks an abstract method, or has a value where the base class has a method.
    """
    _check_base(BASES[axis], policy)
    if isinstance(policy, AdmissionPolicy):
        _check_base(AdmissionGate, policy.gate(1))
    elif isinstance(policy, BatchingPolicy):
        _check_base(BatchingSource, policy.open())


def check_options(kind: type[AxisPolicy]) -> None:
    """Check that a policy's class does not leave it to an option's name that the run fills it.

    Raises:
        PluginError: it has such an option and does not say where it comes from.
    """
    if any("options_from" in vars(one) for one in kind.__mro__ if one is not AxisPolicy):
        return
    old = [name for name in inspect.signature(kind).parameters if name in _GIVEN]
    if old:
        raise PluginError(
            f"found {kind.__name__}.{old[0]}, which follows from the run no more because of its name, expected the class "
            f"method {kind.__name__}.options_from(facts) of AxisPolicy, which answers the options that do, such as "
            "{'samples': facts.samples}, or {} where none does"
        )


def _check_base(base: type[Any], found: object) -> None:
    kind = found if isinstance(found, type) else type(found)
    written = sorted(getattr(base, "__abstractmethods__", ()))
    if not issubclass(kind, base):
        raise PluginError(
            f"found {kind.__name__}, which does not inherit {base.__name__}, expected class {kind.__name__}({base.__name__}) "
            f"of tailrace.contracts with {', '.join(written)}; what it may do beside that it says by overriding "
            f"{', '.join(_methods(base, optional=True)) or 'nothing'}"
        )
    lacking = [name for name in written if getattr(getattr(kind, name), "__isabstractmethod__", False)]
    if lacking:
        raise PluginError(f"found {kind.__name__} without {', '.join(lacking)}, expected what {base.__name__} asks for")
    values = [name for name in _methods(base) if not callable(getattr(found, name))]
    if values:
        raise PluginError(
            f"found {kind.__name__}.{values[0]}, which is no method, expected a method as in {base.__name__}, or another name"
        )


def _methods(base: type[Any], *, optional: bool = False) -> list[str]:
    """The names of a base class's methods, or only of those that need not be written."""
    of_all = dict.fromkeys(name for kind in base.__mro__ if kind is not object for name in vars(kind))
    mine = [name for name in of_all if callable(getattr(base, name)) and not name.startswith("_")]
    return [name for name in mine if not (optional and name in base.__abstractmethods__)]


@dataclass(frozen=True, slots=True)
class Tried:
    """Values that fuzzing gives an option: ``period_s: Annotated[float, Tried((0.5, 2.0))] = 5.0``.

    Args:
        values: one of them is drawn; one that stands there twice is drawn twice as often, and None leaves the option out.
        rarely: one of these is drawn one time in ten instead: for values that soon end a run.
    """

    values: tuple[Any, ...]
    rarely: tuple[Any, ...] = ()
