"""The contract suite of hosts, for batching in rounds: whatever is killed in a round, each prompt is trained on once.

class TestMyHost(RoundsContract):
    def make_host(self, started_s):
        return MyHost(started_s)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.controller.spec import PipelineSpec
from tailrace.controller.view import RunView
from tailrace.pipeline.run.eventlog import read_log
from tailrace.pipeline.run.figures.folding import follow
from tailrace.pipeline.run.figures.replicas import ReplicaFigures
from tailrace.pipeline.run.figures.rounds import RoundFigures
from tailrace.pipeline.testing.real_runs import Dies, Kills, RealRuns, Striking, notices_soon, rarely
from tailrace.pipeline.testing.small_run import LOG, STEPS, commands_of, make_deployment, make_rounds_spec
from tailrace.runtime.executor.deployment import REPLICA, TRAINER


class _DiesInRound(Striking):
    """Ends the driver in a round of this kind, when some of its responses have finished."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        del now, events, commands
        assert self.executor is not None
        found = self.executor.controller.rounds.view()
        if run.step > 0 and found is not None and found.kind == self._kind and 0 < found.generated < found.samples:
            raise Dies


class _KillsAtLend(Striking):
    """Kills the replica that lends its devices, or the one that is kept, when the cell there has begun to add gradients."""

    def __init__(self, *, lent: bool) -> None:
        self._lent = lent
        self._lenders: set[str] = set()
        self.killed: str | None = None

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        del now, events, run
        for command in commands:
            if isinstance(command, c.Lend):
                self._lenders.add(command.replica)
            elif isinstance(command, c.Return):
                self._lenders.discard(command.replica)
        if self.killed is None and self._lenders and any(isinstance(command, c.Accumulate) for command in commands):
            assert self.executor is not None
            replicas = sorted(name for role, name in self.executor.members if role == REPLICA)
            self.killed = next(name for name in replicas if (name in self._lenders) is self._lent)
            self.strike(REPLICA, self.killed)


class RoundsContract(RealRuns):
    """Subclass it, provide `make_host`, and run it with pytest."""

    @pytest.mark.parametrize("kind", [rarely("short"), "long"])
    @pytest.mark.deep
    def test_a_driver_that_died_in_a_round_goes_on_with_it(self, tmp_path: Path, model: Path, kind: str) -> None:
        """The log has the round with its groups and the queue in its order."""
        spec, deployment = make_rounds_spec(), make_deployment(tmp_path, model)
        left = self.dies(spec, deployment, tmp_path, _DiesInRound(kind))
        again, _ = self.rebuilt(spec, tmp_path)
        assert again.rounds.view() == left.rounds.view()
        assert again.source.state() == left.source.state()
        self.check_rounds(spec, tmp_path, self.goes_on(spec, deployment, tmp_path))

    def test_a_trainer_killed_in_a_round_adds_its_gradients_again(self, tmp_path: Path, model: Path) -> None:
        """Prompts of rounds that it forgot are trained on again, those in the queue wait there."""
        spec, kills = make_rounds_spec(), Kills("0", 2)
        self.run_rounds(spec, tmp_path, model, observer=kills)
        assert kills.killed is not None, "all groups of every batch were complete at once"
        assert [role for role, _ in self.downs(tmp_path)] == [TRAINER]

    @pytest.mark.parametrize("role", [REPLICA, TRAINER])
    def test_a_member_that_hangs_in_a_round_is_replaced(self, tmp_path: Path, model: Path, role: str) -> None:
        """It does not answer, and is killed."""
        steps = (
            8 * STEPS
        )  # the run is not to end before a silent member counts as dead: the others do its work meanwhile
        spec = notices_soon(make_rounds_spec(steps=steps))
        self.run_rounds(spec, tmp_path, model, faults=[f"hang:{role}@step1"])
        restarts = [(restart.role, restart.reason.why) for restart in commands_of(tmp_path, c.Restart)]
        assert restarts == [(role, c.Why.SILENT)]

    def lends(self, root: Path, model: Path, *, kills_lent: bool) -> None:
        """A lent or a kept replica is killed; devices come back, and are lent again in a later round."""
        spec, kills = make_rounds_spec(2, lends=True), _KillsAtLend(lent=kills_lent)
        controller = self.run_rounds(spec, root, model, ranks=2, observer=kills)
        assert kills.killed is not None, "no replica lent its devices"
        assert self.downs(root) == [(REPLICA, "died")]
        lends, returns = commands_of(root, c.Lend), commands_of(root, c.Return)
        assert len(lends) > 1
        assert len(lends) - len(returns) in ((0, 1) if kills_lent else (0,))  # a new process has its devices anyhow
        assert controller.lending.lent == []
        slept = ReplicaFigures()
        follow(read_log(root / LOG), slept)
        assert slept.sleeps >= len(lends) - 1, (
            "a replica that lent its devices was awake"
        )  # a killed one may not have shown it

    def run_rounds(
        self,
        spec: PipelineSpec,
        root: Path,
        model: Path,
        *,
        ranks: int = 1,
        faults: Sequence[str] = (),
        observer: Striking | None = None,
    ) -> Controller:
        """Do a run in rounds and check it. Returns the controller, rebuilt from its log."""
        self.run(root, model, spec=spec, ranks=ranks, faults=faults, observer=observer)
        controller, _ = self.rebuilt(spec, root)
        self.check_rounds(spec, root, controller)
        return controller

    def check_rounds(self, spec: PipelineSpec, root: Path, controller: Controller) -> None:
        """Check that each step was a whole round of its own prompts, and that the queue holds what was deferred."""
        figures = RoundFigures(spec)
        follow(read_log(root / LOG), figures)
        prompts = [prompt for one in figures.rounds for prompt in one.prompts]
        assert len(figures.rounds) == spec.steps
        assert len(prompts) == len(set(prompts)) == spec.steps * spec.batch_groups
        assert {one.kind for one in figures.rounds} == {"short", "long"}
        state = controller.source.state()
        waiting = [*state["rounds"]["queue"], *(prompt for prompt, _ in state["rounds"]["members"])]
        assert sorted(prompts + waiting) == list(range(state["next"])), "a prompt was lost, or came twice"
