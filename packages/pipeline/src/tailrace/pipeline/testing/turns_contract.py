"""The contract suite of hosts, for responses of several turns: whoever dies, no turn that ended is lost or answered twice.

class TestMyHost(TurnsContract):
    def make_host(self, started_s):
        return MyHost(started_s)

Replicas draw fake tokens, of which two end a turn. A real environment in worker processes answers, and a real store keeps all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailrace import contracts as c
from tailrace.controller.spec import PipelineSpec
from tailrace.controller.view import RunView
from tailrace.pipeline.roles.environment import EnvironmentRole, EnvironmentSettings
from tailrace.pipeline.roles.prompts import SamplingTable
from tailrace.pipeline.testing import small_environments
from tailrace.pipeline.testing.real_runs import RealRuns, Striking, Watching, rarely
from tailrace.pipeline.testing.small_run import (
    MODES,
    STEPS,
    TRAINED,
    commands_of,
    events_of,
    make_deployment,
    make_spec,
    make_staleflow_spec,
)
from tailrace.runtime.executor.deployment import ENVIRONMENT, REPLICA, Deployment
from tailrace.runtime.executor.seam import RoleSpec
from tailrace.trajstore import read_trained

_STOPS, _MOST_TOKENS, _MOST_TURNS = (1, 2), 120, 3


class _KillsInCalls(Striking):
    """Kills the environment, or a replica, as a trajectory is called that has been answered before, so many times."""

    def __init__(self, role: str, member: str, times: int) -> None:
        self._role, self._member, self.left = role, member, times
        self._answered: set[str] = set()
        self._struck: object = None

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        del now, run
        executor = self.executor
        self._answered.update(event.trajectory for event in events if isinstance(event, c.Turned))
        called = {name for command in commands if isinstance(command, c.Call) for name in command.trajectories}
        if self.left and called & self._answered and executor is not None:
            running = executor.members.get((self._role, self._member))
            if running is not None and running.up and running is not self._struck:  # its death may not be noticed yet
                self.left -= 1
                self._struck = running
                self._answered.clear()
                self.strike(self._role, self._member)


class TurnsContract(RealRuns):
    """Subclass it, provide `make_host`, and run it with pytest."""

    def test_turns_go_to_their_environment_and_back(self, tmp_path: Path, model: Path) -> None:
        """Observations stand in the responses where they were answered, and are not counted as generated."""
        run = self.turns(tmp_path, model)
        counts = run.counts
        assert counts.turns == len({(e.trajectory, e.turn) for e in events_of(tmp_path, c.Turned)}) > 0
        assert (counts.turns_lost, counts.sessions_lost) == (0, 0)
        rows = list(read_trained(tmp_path / TRAINED))
        assert any(row["observations"] for row in rows)
        assert sum(row["generated"] for row in rows) == counts.trained_tokens

    def test_turns_under_partial_rollout(self, tmp_path: Path, model: Path) -> None:
        """They are interrupted, go on under newer weights and migrate, in contexts of their own; a replica dies."""
        spec = make_staleflow_spec()
        run = self.turns(tmp_path, model, spec=spec, environment="Branches", faults=["replica@step2"])
        assert any(row["contexts"] for row in read_trained(tmp_path / TRAINED))
        assert (run.counts.turns_lost, run.counts.sessions_lost) == (0, 0)

    @pytest.mark.parametrize("fault", ["environment@step1", rarely("data@step1"), rarely("scorer@step1")])
    def test_a_member_that_dies_loses_no_turn(self, tmp_path: Path, model: Path, fault: str) -> None:
        """Its successor goes on with what the store has."""
        run = self.turns(tmp_path, model, faults=[fault])
        assert [role for role, _ in self.downs(tmp_path)] == [fault.partition("@")[0]]
        assert (run.counts.turns_lost, run.counts.sessions_lost) == (0, 0)

    @pytest.mark.deep
    @pytest.mark.parametrize(("role", "member"), [(ENVIRONMENT, "0"), (REPLICA, "r0")])
    def test_whoever_is_killed_while_calls_are_under_way_loses_no_turn(
        self, tmp_path: Path, model: Path, role: str, member: str
    ) -> None:
        """Three times, in the midst of episodes of several contexts."""
        kills = _KillsInCalls(role, member, 3)
        run = self.turns(tmp_path, model, environment="Branches", observer=kills)
        assert any(row["contexts"] for row in read_trained(tmp_path / TRAINED))
        assert not kills.left
        assert [down for down, _ in self.downs(tmp_path)] == [role] * 3
        counts = run.counts
        assert (counts.turns_lost, counts.sessions_lost) == (0, 0)
        assert role != ENVIRONMENT or counts.sessions_replayed > 0

    @pytest.mark.deep
    def test_calls_that_are_struck_in_their_midst_lose_no_turn(self, tmp_path: Path, model: Path) -> None:
        """The environment dies and raises in calls, and the worker processes of calls are killed and stopped."""
        faults = ["environment@step1:tool", "raise:environment@step2:tool"]
        faults += [f"{kind}environment:{name}@step{step}:tool" for kind, name, step in
                   (("", "worker", 1), ("", "0.worker", 2), ("hang:", "worker", 3))]  # fmt: skip
        run = self.turns(tmp_path, model, faults=faults, steps=2 * STEPS)
        assert {event.fault for event in events_of(tmp_path, c.Struck)} == set(faults)
        assert sorted(self.downs(tmp_path)) == [(ENVIRONMENT, "broke"), (ENVIRONMENT, "died")]
        assert (run.counts.turns_lost, run.counts.sessions_lost) == (0, 0)

    @pytest.mark.deep
    def test_a_session_that_cannot_be_had_again_begins_anew_and_is_counted(self, tmp_path: Path, model: Path) -> None:
        """No group fails of it."""
        kills = _KillsInCalls(ENVIRONMENT, "0", 2)
        run = self.turns(tmp_path, model, observer=kills, environment="TurnCounter", steps=2 * STEPS)
        anew = [command for command in commands_of(tmp_path, c.Abort) if command.reason.why is c.Why.SESSION_LOST]
        counts = run.counts
        assert counts.sessions_lost == sum(len(command.trajectories) for command in anew)
        assert counts.turns_lost >= counts.sessions_lost
        assert counts.failed == 0

    @pytest.mark.deep
    def test_a_driver_that_dies_between_turns_goes_on_with_them(self, tmp_path: Path, model: Path) -> None:
        """It dies as a turn has ended, as it is answered, and as a trajectory goes home."""
        spec = make_spec(environments=1, environment_sessions=16)
        deployment = self.answered(make_deployment(tmp_path, model), model)
        for kind in (c.TurnEnded, c.Turned, c.Turned):
            self.dies(spec, deployment, tmp_path, Watching(kind, None))
        run = self.goes_on(spec, deployment, tmp_path).view
        assert len(events_of(tmp_path, c.Resumed)) == 3
        assert (run.counts.turns_lost, run.counts.sessions_lost) == (0, 0)

    # ---- the runs -----------------------------------------------------------------------------------------------------

    def turns(
        self,
        root: Path,
        model: Path,
        *,
        spec: PipelineSpec | None = None,
        environment: str = "CountsAgain",
        steps: int = STEPS,
        **arguments: Any,
    ) -> RunView:
        """A run whose turns an environment answers."""
        spec = replace(spec or make_spec(), environments=1, environment_sessions=16, steps=steps)
        changed: Callable[[Deployment], Deployment] = lambda deployment: self.answered(deployment, model, environment)  # noqa: E731
        return self.run(root, model, spec=spec, changed=changed, **arguments)

    def answered(self, deployment: Deployment, model: Path, environment: str = "CountsAgain") -> Deployment:
        """A deployment with an environment."""
        replica = deployment.roles[REPLICA]
        sampling = SamplingTable(1.0, _MOST_TOKENS, _STOPS, MODES, turns=True)
        role = EnvironmentSettings(
            environment=f"{small_environments.__file__}:{environment}",
            options={"most": _MOST_TURNS},
            workers=2,
            call_s=30.0,
            max_turns=8,
            max_tokens=_MOST_TOKENS,
            tokenizer=model / "tokenizer.json",
            stop_token_ids=_STOPS,
        )
        roles = {
            **deployment.roles,
            REPLICA: replica.having(replace(replica.settings, sampling=sampling)),
            ENVIRONMENT: RoleSpec.of(EnvironmentRole, role),
        }
        return replace(deployment, roles=roles)
