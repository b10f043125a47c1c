"""The contract of every host for restarts of the whole task: subclass it beside `ExecutorContract`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace import contracts as c
from tailrace.pipeline.testing.real_runs import RealRuns, rarely
from tailrace.pipeline.testing.small_run import commands_of, make_spec, policy
from tailrace.runtime.executor.deployment import TRAINER

STEPS = 4


class TaskContract(RealRuns):
    """Runs whose recovery restarts every member. Each trains on every prompt once, which `run` checks."""

    def test_a_trainer_that_dies_in_the_first_iteration_restarts_the_task(self, tmp_path: Path, model: Path) -> None:
        """The members of all roles are new; the store keeps what it holds."""
        spec = make_spec(recovery=policy("recovery", "role-based"), steps=STEPS)
        run = self.run(tmp_path, model, spec=spec, faults=["trainer@step0"])
        assert (run.step, run.task_restarts) == (STEPS, 1)
        restarted = {command.role: command.reason.why for command in commands_of(tmp_path, c.Restart)}
        assert restarted.pop(TRAINER) is c.Why.FAILED
        assert set(restarted) == {"data", "scorer", "relay", "replica"}
        assert set(restarted.values()) == {c.Why.TASK_RESTART}

    def test_a_trainer_that_dies_later_restarts_alone(self, tmp_path: Path, model: Path) -> None:
        """Rollouts go on meanwhile."""
        spec = make_spec(recovery=policy("recovery", "role-based"), steps=STEPS)
        run = self.run(tmp_path, model, spec=spec, faults=["trainer@step2"])
        assert (run.step, run.task_restarts) == (STEPS, 0)
        assert [command.role for command in commands_of(tmp_path, c.Restart)] == [TRAINER]

    @pytest.mark.parametrize("role", ["replica", rarely("trainer")])
    def test_the_baseline_begins_the_step_over(self, tmp_path: Path, model: Path, role: str) -> None:
        """Whatever dies, all restart, and what was generated since the checkpoint is generated again."""
        spec = make_spec(recovery=policy("recovery", "restart-task"), steps=STEPS)
        run = self.run(tmp_path, model, spec=spec, faults=[f"{role}@step2"])
        assert (run.step, run.task_restarts) == (STEPS, 1)
        assert len({(command.role, command.id) for command in commands_of(tmp_path, c.Restart)}) == 6
