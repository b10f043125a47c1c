"""The contract suite of hosts, for replicas that come and go with the times of the stages: nothing is lost, tokens line up.

class TestMyHost(BalanceContract):
    def make_host(self, started_s):
        return MyHost(started_s)

Engines are slow at first, so that generation takes many times as long as training. From the moment that a file exists they are
fast, and the trainer is slow.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tailrace import contracts as c
from tailrace.controller.spec import EvaluationPlan, PipelineSpec
from tailrace.controller.view import RunView
from tailrace.pipeline.roles.replica import ReplicaSettings
from tailrace.pipeline.roles.trainer import TrainerRole, TrainerSettings
from tailrace.pipeline.run.eventlog import read_log
from tailrace.pipeline.run.figures.folding import follow
from tailrace.pipeline.run.figures.replicas import ReplicaFigures
from tailrace.pipeline.testing.real_runs import RealRuns, Striking
from tailrace.pipeline.testing.small_run import (
    LOG,
    FakeReplicaRole,
    SlowEngine,
    commands_of,
    events_of,
    make_spec,
    policy,
)
from tailrace.runtime.executor.deployment import REPLICA, TRAINER, Deployment
from tailrace.runtime.executor.executor import Executor
from tailrace.runtime.executor.seam import MemberStart, RoleSpec

_EASIER, _STEPS, _JOINER = "easier", 18, "r1"
_SLOW_STEP_S, _SLOW_TRAINING_S, _SLOW_START_S = 0.05, 1.2, 1.0


class _Engine(SlowEngine):
    """An engine that is slow until the file exists."""

    easier = Path()

    def step(self) -> Sequence[c.Delta]:
        if not self.easier.exists():
            time.sleep(_SLOW_STEP_S)
        return super().step()


class _Replica(FakeReplicaRole):
    """Its first incarnation takes its time to start, if it is the joiner, so that it can be killed before it is up."""

    def __init__(self, settings: ReplicaSettings, start: MemberStart) -> None:
        if (start.id, start.incarnation) == (_JOINER, 1):
            time.sleep(_SLOW_START_S)
        super().__init__(settings, start)

    def build_engine(self, engine: str, model: Path, options: Mapping[str, Any]) -> c.Engine:
        del engine, model
        built = _Engine(max_num_seqs=16, max_model_len=256)
        built.easier = Path(options[_EASIER])
        return built


class _Trainer(TrainerRole):
    """A trainer that is slow from the moment that the file exists."""

    def __init__(self, easier: Path, settings: TrainerSettings, start: MemberStart) -> None:
        self._easier = easier
        super().__init__(settings, start)

    def carry_out(self, command: c.Command) -> None:
        if isinstance(command, c.Step) and self._easier.exists():
            time.sleep(_SLOW_TRAINING_S)
        super().carry_out(command)


class _Eases(Striking):
    """Makes the prompts easier once the joiner has finished a response; kills the joiner once while it starts, if asked to."""

    def __init__(self, easier: Path, *, kills: bool) -> None:
        self._easier, self._kills = easier, kills

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        del now, commands, run
        if any(event.replica == _JOINER for event in _finished(events)):
            self._easier.touch()

    def tick(self, now: float, executor: Executor) -> None:
        del now
        joiner = executor.members.get((REPLICA, _JOINER))
        if self._kills and joiner is not None:
            assert not joiner.up
            self._kills = False
            self.strike(REPLICA, _JOINER)


class BalanceContract(RealRuns):
    """Subclass it, provide `make_host`, and run it with pytest."""

    def test_one_joins_a_slow_generation_and_leaves_a_fast_one(self, tmp_path: Path, model: Path) -> None:
        """It really starts, pulls a whole version, finishes responses, and is gone in the end."""
        self.balanced(tmp_path, model, kills=False)
        assert self.downs(tmp_path) == [(REPLICA, "stopped")]

    @pytest.mark.deep
    def test_a_joiner_that_is_killed_while_it_starts_comes_again(self, tmp_path: Path, model: Path) -> None:
        """It is killed by SIGKILL, if members are processes."""
        self.balanced(tmp_path, model, kills=True)
        assert self.downs(tmp_path) == [(REPLICA, "died"), (REPLICA, "stopped")]
        assert [restart.id for restart in commands_of(tmp_path, c.Restart)] == [_JOINER]

    def balanced(self, root: Path, model: Path, *, kills: bool) -> None:
        """A run with one replica, a second that joins, and one that leaves."""
        easier = root / _EASIER

        def slow(deployment: Deployment) -> Deployment:
            roles = dict(deployment.roles)
            settings = replace(roles[REPLICA].settings, options={_EASIER: str(easier)})
            roles[REPLICA] = RoleSpec.of(_Replica, settings)
            roles[TRAINER] = RoleSpec.of(partial(_Trainer, easier), roles[TRAINER].settings)
            return replace(deployment, roles=roles)

        self.run(root, model, spec=_spec(), observer=_Eases(easier, kills=kills), changed=slow)
        came_and_went = ReplicaFigures()
        follow(read_log(root / LOG), came_and_went)
        assert (came_and_went.added, came_and_went.removed) == (1, 1)
        starts = [start for start in commands_of(root, c.Start) if start.role == REPLICA]
        assert [(start.id, start.reason.why) for start in starts] == [
            ("r0", c.Why.PLANNED),
            (_JOINER, c.Why.GENERATION_SLOWER),
        ]
        (stop,) = commands_of(root, c.Stop)
        assert stop.reason.why is c.Why.TRAINING_SLOWER
        assert {event.replica for event in events_of(root, c.Finished)} == {"r0", _JOINER}


def _spec() -> PipelineSpec:
    """One replica at the start and room for a second; one step of staleness at most."""
    return make_spec(
        admission=policy("admission", "one-step"),
        relocation=policy("relocation", "none"),
        provisioning=policy("provisioning", "balanced", count=1, devices=2, patience=2, cooldown=1),
        evaluation=EvaluationPlan(),
        buffer_groups=None,
        steps=_STEPS,
    )


def _finished(events: Iterable[c.Event]) -> list[c.Finished]:
    return [event for event in events if isinstance(event, c.Finished)]
