"""A controller's whole state as plain data, so that two can be compared: one that ran, and one that its log rebuilt."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from tailrace.contracts import AdmissionGate, BatchingSource
from tailrace.pipeline.controller.discards import Discards
from tailrace.pipeline.controller.environments import Environments
from tailrace.pipeline.controller.evaluations import Evaluations
from tailrace.pipeline.controller.failures import Failures
from tailrace.pipeline.controller.fleet import Replicas
from tailrace.pipeline.controller.ledger import Ledger
from tailrace.pipeline.controller.members import Members
from tailrace.pipeline.controller.outbox import Outbox
from tailrace.pipeline.controller.trainer_state import TrainerState


class _Owners(Protocol):
    ledger: Ledger
    members: Members
    fleet: Replicas
    trainer: TrainerState
    evaluations: Evaluations
    outbox: Outbox
    gate: AdmissionGate
    source: BatchingSource
    discards: Discards
    environments: Environments
    failures: Failures


def plain_state(owners: _Owners, parts: Mapping[str, object]) -> dict[str, Any]:
    """The state of all that a controller owns.

    Args:
        owners: the controller.
        parts: objects of which only the plain attributes are state, by name.
    """
    plain: dict[str, Any] = {
        "ledger": dataclasses.asdict(owners.ledger),
        "members": owners.members.plain(),
        "fleet": owners.fleet.plain(),
        "trainer": dataclasses.asdict(owners.trainer),
        "evaluations": dataclasses.asdict(owners.evaluations),
        "environments": owners.environments.plain(),
        "troubles": dataclasses.asdict(owners.failures.troubles),
    }
    for name, part in parts.items():
        plain[name] = {key: v for key, v in vars(part).items() if isinstance(v, int | float | str | None)}
    plain["seq"], plain["gate"], plain["source"] = owners.outbox.seq, owners.gate.state(), owners.source.state()
    plain["discards"] = {seq: list(names) for seq, (names, _) in owners.discards.pending.items()}
    return plain
