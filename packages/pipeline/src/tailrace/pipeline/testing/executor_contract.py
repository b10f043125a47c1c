"""The contract suite of hosts: on every host, runs give the same results and recover from killed members.

    class TestMyHost(ExecutorContract):
        def make_host(self, started_s):
            return MyHost(started_s)

Everything is real except the engine, see `tailrace.pipeline.testing.small_run`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.controller.spec import PipelineSpec
from tailrace.faulttol import parse_fault
from tailrace.faulttol.injection import LENDING, LOAD, PHASES
from tailrace.pipeline.run.eventlog import EventLog, read_log
from tailrace.pipeline.run.figures.predictions import PredictionFigures
from tailrace.pipeline.testing.real_runs import Damages, Kills, KillsTheRanker, RealRuns, Watching, rarely
from tailrace.pipeline.testing.small_run import (
    GROUPS,
    LOG,
    SAMPLES,
    STEPS,
    NeverAnswersRole,
    commands_of,
    events_of,
    make_deployment,
    make_overlong,
    make_spec,
    make_staleflow_spec,
    policy,
)
from tailrace.runtime.errors import RunFailedError
from tailrace.runtime.executor.deployment import RANKER, RELAY, REPLICA, TRAINER, Deployment, MachineChecks
from tailrace.runtime.executor.executor import Executor
from tailrace.trainer import checkpoints
from tailrace.trajstore import PromptPool


@dataclass(frozen=True)
class _Handover(c.ProvisioningPolicy):
    """Starts two replicas, and after the first step replaces them by a third."""

    def plan(self, view: c.FleetView) -> Sequence[c.StartReplica | c.StopReplica]:
        known = [member.id for member in view.of(REPLICA)]
        if not known:
            return [c.StartReplica()] * 2
        if view.progress.version == 0 or "r2" in known:
            return ()
        return [c.StartReplica(), *(c.StopReplica(name) for name in known)]


@dataclass(frozen=True)
class _Resizes(c.ProvisioningPolicy):
    """Two replicas of one device; one of two after the first step, and two again after the third."""

    def plan(self, view: c.FleetView) -> Sequence[c.StartReplica | c.StopReplica | c.ResizeReplica]:
        known = [member for member in view.of(REPLICA) if member.health is not c.Health.STOPPING]
        if not known:
            return [c.StartReplica()] * 2
        if view.progress.version in (1, 2):
            first, *others = known
            grows = [c.ResizeReplica(first.id, 2)] if first.tp == 1 else []
            return [*(c.StopReplica(member.id) for member in others), *grows]
        if known[0].tp == 2:
            return [c.ResizeReplica(known[0].id, 1), c.StartReplica()]
        return ()


_MOMENTS: tuple[tuple[type, int | None], ...] = ((c.Up, None), (c.Published, 0), (c.Scored, None), (c.Stepped, 2))


def _with_a_ranker(steps: int) -> PipelineSpec:
    routing = policy("routing", "skew-aware", k1=0.0, k2=0.0, k3=4e-4, k4=0.01)
    return make_spec(ranker=True, routing=routing, steps=steps)


def _checked(directory: Path) -> Callable[[Deployment], Deployment]:
    """Has machines checked, by their disk."""
    checks = MachineChecks(("disk",), directory, timeout_s=60.0)
    return lambda deployment: replace(deployment, checks=checks)


class ExecutorContract(RealRuns):
    """Subclass it, provide `make_host`, and run it with pytest."""

    # ---- without faults -------------------------------------------------------------------------------------------

    def test_trains_every_prompt_once(self, tmp_path: Path, model: Path) -> None:
        """A run without faults measures held-out accuracy and keeps the newest checkpoints."""
        run = self.run(tmp_path, model, spec=make_spec(keep_checkpoints=2))
        assert self.downs(tmp_path) == []
        assert {result.mode for result in run.evaluations} == {"sampled", "greedy"}
        left = {int(path.name) for path in (tmp_path / "checkpoints").iterdir() if path.name.isdecimal()}
        assert {STEPS - 1, STEPS} <= left < set(range(STEPS + 1))

    def test_tokens_and_versions_line_up_under_partial_rollout(self, tmp_path: Path, model: Path) -> None:
        """Trajectories are interrupted, resumed under newer weights and migrated; a replica and the trainer die."""
        faults = ["replica@step1", "trainer@step3"]
        run = self.run(tmp_path, model, spec=make_staleflow_spec(), faults=faults)
        assert run.interrupting_pulls > 0
        assert run.counts.resumed_on_newer > 0
        assert run.replica_restarts == 1

    def test_replicas_come_and_go(self, tmp_path: Path, model: Path) -> None:
        """A provisioning policy replaces replicas during the run; their trajectories resume elsewhere."""
        self.run(tmp_path, model, spec=make_spec(provisioning=_Handover()))
        assert [start.id for start in commands_of(tmp_path, c.Start) if start.role == REPLICA] == ["r0", "r1", "r2"]
        assert sorted(stop.id for stop in commands_of(tmp_path, c.Stop)) == ["r0", "r1"]
        assert self.downs(tmp_path) == [(REPLICA, "stopped")] * 2
        assert {event.replica for event in events_of(tmp_path, c.Finished)} == {"r0", "r1", "r2"}

    def test_replicas_are_resized(self, tmp_path: Path, model: Path) -> None:
        """A provisioning policy lets one replica take the place of two, and back; their trajectories resume."""
        self.run(tmp_path, model, spec=make_spec(provisioning=_Resizes(), sync=policy("sync", "barrier")))
        assert [(resize.replica, resize.tp) for resize in commands_of(tmp_path, c.Resize)] == [("r0", 2), ("r0", 1)]
        assert [start.id for start in commands_of(tmp_path, c.Start) if start.role == REPLICA] == ["r0", "r1", "r2"]
        assert self.downs(tmp_path) == [(REPLICA, "stopped")]

    # ---- members that die -----------------------------------------------------------------------------------------

    def test_a_killed_replica_is_replaced_and_nothing_is_lost(self, tmp_path: Path, model: Path) -> None:
        """Training continues after a replica was killed (by SIGKILL if members are processes)."""
        run = self.run(tmp_path, model, faults=["replica:r1@step1", "replica@step3"])
        assert run.replica_restarts == 2

    def test_a_machine_that_passes_its_checks_is_used_again(self, tmp_path: Path, model: Path) -> None:
        """Members that start in place of killed ones start after the checks; those of the beginning start without."""
        run = self.run(
            tmp_path,
            model,
            spec=make_spec(machine_checks=True),
            faults=["replica:r1@step1", "trainer@step2"],
            changed=_checked(tmp_path),
        )
        restarts = commands_of(tmp_path, c.Restart)
        assert {(restart.role, restart.place.check) for restart in restarts} == {(REPLICA, True), (TRAINER, True)}
        assert len(restarts) == 2
        assert not any(start.place.check for start in commands_of(tmp_path, c.Start))
        assert run.replica_restarts == 1

    @pytest.mark.deep
    def test_a_machine_that_does_not_pass_its_checks_is_not_used_again(self, tmp_path: Path, model: Path) -> None:
        """Nothing starts there, and a run without another machine ends with what the check found."""
        deployment = _checked(tmp_path / "no-disk")(make_deployment(tmp_path, model))
        executor = Executor(self.make_host(0.0), deployment)
        with (
            EventLog(tmp_path / LOG) as log,
            pytest.raises(RunFailedError, match=r"did not pass the check 'disk': .*no-disk"),
        ):
            executor.run(Controller(make_spec(machine_checks=True)), log, faults=[parse_fault("trainer@step1")])
        executor.close(1.0)
        unfit = [event for event in events_of(tmp_path, c.Down) if event.cause is c.Cause.MACHINE]
        assert unfit
        machines = {event.machine for event in events_of(tmp_path, c.Up) if event.role == TRAINER}
        assert {event.machine for event in unfit} == machines

    def test_a_killed_trainer_goes_on_from_its_checkpoint(self, tmp_path: Path, model: Path) -> None:
        """Batches after the checkpoint, and accumulated parts of a batch, are trained on again, once."""
        in_parts = make_spec(training=policy("training", "dynamic-batch", parts=GROUPS))
        self.run(tmp_path, model, spec=in_parts, faults=["trainer@step2"])
        assert [role for role, _ in self.downs(tmp_path)] == [TRAINER]
        assert len(events_of(tmp_path, c.Accumulated)) >= STEPS * (GROUPS - 1)
        for stepped in events_of(tmp_path, c.Stepped):
            assert stepped.metrics["trajectories"] == GROUPS * SAMPLES

    @pytest.mark.deep
    def test_a_trainer_killed_between_groups_adds_their_gradients_again(self, tmp_path: Path, model: Path) -> None:
        """Gradients are added group by group; those of the batch under way die with the trainer."""
        self.killed_between_groups(tmp_path, model, rank="0", cells=1)

    def killed_between_groups(self, root: Path, model: Path, *, rank: str, cells: int) -> None:
        """Kill a rank while gradients of a batch are added, each cell being one rank."""
        training = policy("training", "streamed", groups=1)
        kills = Kills(rank, 2)
        spec = make_spec(training=training, cells=cells, steps=2 * STEPS)
        self.run(root, model, spec=spec, ranks=cells, observer=kills)
        assert kills.killed is not None, "all groups of every batch were complete at once"
        assert [role for role, _ in self.downs(root)] == [TRAINER]
        given = [command.trajectories for command in commands_of(root, c.Accumulate)]
        given += [part for command in commands_of(root, c.Step) for part in command.mini_batches]
        names = [name for part in given for name in part]
        assert len(set(names)) < len(names), "nothing was given again"
        assert {command.cell for command in commands_of(root, c.Accumulate)} == set(range(cells))
        assert {event.cell for event in events_of(root, c.Accumulated)} == set(range(cells))
        for stepped in events_of(root, c.Stepped):
            assert stepped.metrics["trajectories"] == GROUPS * SAMPLES
            assert stepped.metrics["staleness_max"] >= stepped.metrics["staleness_mean"] >= 0

    def test_any_relay_may_die_and_no_step_is_lost(self, tmp_path: Path, model: Path) -> None:
        """Three relays: the first dies, then the first again, then both others at once."""
        faults = ["relay:0@step1", "relay:0@step7", "relay:1@step13", "relay:2@step13"]
        steps = 6 * STEPS  # each is back before it dies again, and before the run ends
        run = self.run(tmp_path, model, relays=3, spec=make_spec(steps=steps), faults=faults)
        assert [role for role, _ in self.downs(tmp_path)] == [RELAY] * 4
        assert run.restarts(RELAY) == 4
        assert [event.version for event in events_of(tmp_path, c.Stepped)] == list(range(1, steps + 1))

    def test_the_data_role_dies_alone(self, tmp_path: Path, model: Path) -> None:
        """It is restarted with its store; no other member goes down, and nothing is lost."""
        run = self.run(tmp_path, model, faults=["data@step1", "data@step3"])
        assert [role for role, _ in self.downs(tmp_path)] == ["data", "data"]
        assert (run.replica_restarts, run.restarts(TRAINER)) == (0, 0)

    @pytest.mark.deep
    def test_a_scorer_that_dies_uses_up_no_attempt(self, tmp_path: Path, model: Path) -> None:
        """The next scorer scores its trajectories, although only one attempt is allowed."""
        spec = make_spec(scoring_attempts=1, steps=2 * STEPS)  # the last steps need the second one's successor
        run = self.run(tmp_path, model, spec=spec, faults=["scorer@step1", "scorer@step2"])
        assert [role for role, _ in self.downs(tmp_path)] == ["scorer", "scorer"]
        assert run.counts.failed == 0
        assert events_of(tmp_path, c.ScoringFailed) == []

    @pytest.mark.parametrize("fault", ["ranker@step2", rarely("hang:ranker@step2")])
    def test_a_ranker_that_dies_or_hangs_holds_nobody_up(self, tmp_path: Path, model: Path, fault: str) -> None:
        """It learns from what finishes, and is asked before it has; its successor goes on with what it has learned.

        The run may end before one that hangs has been silent for long enough.
        """
        run = self.run(tmp_path, model, spec=_with_a_ranker(3 * STEPS), faults=[fault])
        downs = [role for role, _ in self.downs(tmp_path)]
        assert downs == [RANKER] or (fault.startswith("hang") and downs == [])
        assert run.restarts(RANKER) == len(downs)
        answers = events_of(tmp_path, c.Predicted)
        assert all(event.p90 >= event.tokens >= 1 for event in answers)
        learned = [event.phase for event in events_of(tmp_path, c.Activity) if event.role == RANKER]
        assert "trained" in learned or not downs
        assert events_of(tmp_path, c.PredictionFailed)
        assert run.counts.unpredicted > 0

    def test_a_ranker_slower_than_the_run_holds_nobody_up(self, tmp_path: Path, model: Path) -> None:
        """No launch waits for its answers: all go without one, and are counted."""

        def slowed(deployment: Deployment) -> Deployment:
            ranker = replace(deployment.roles[RANKER], factory=NeverAnswersRole)
            return replace(deployment, roles={**deployment.roles, RANKER: ranker})

        run = self.run(tmp_path, model, spec=_with_a_ranker(STEPS), changed=slowed)
        assert self.downs(tmp_path) == []
        assert commands_of(tmp_path, c.Predict)
        assert run.counts.unpredicted == run.counts.admitted * SAMPLES
        figures = PredictionFigures()
        for instant in read_log(tmp_path / LOG):
            figures.observe(instant.now, instant.events, instant.commands)
        assert figures.plain() == {
            "unpredicted_share": 1.0,
            "predicted_ahead_s": None,
            "waited_for_predictions_s": 0.0,
        }

    def test_a_ranker_learns_unasked_and_its_successor_goes_on_with_what_it_has_learned(
        self, tmp_path: Path, model: Path
    ) -> None:
        """All prompts that it is asked for at first have no length. It learns nevertheless, and is killed at once."""
        kills = KillsTheRanker()
        run = self.run(tmp_path, model, spec=_with_a_ranker(8 * STEPS), observer=kills)
        assert kills.killed
        assert [role for role, _ in self.downs(tmp_path)] == [RANKER]
        learned = [event.phase for event in events_of(tmp_path, c.Activity) if event.role == RANKER]
        assert learned.count("trained") == 1
        found = run.prediction_outcomes
        assert sorted(outcome.prompt for outcome in found) == list(range(8 * STEPS * GROUPS))
        assert found[0].predicted is None
        assert found[-1].predicted is not None
        assert 0 < run.counts.unpredicted < run.counts.trained_trajectories

    @pytest.mark.deep
    def test_what_was_predicted_outlives_the_driver(self, tmp_path: Path, model: Path) -> None:
        """The log has it, and every group that was trained on counts once; the ranker goes on with what it had saved."""
        spec, deployment = _with_a_ranker(3 * STEPS), make_deployment(tmp_path, model)
        self.dies(spec, deployment, tmp_path, Watching(c.Predicted, None))
        run = self.goes_on(spec, deployment, tmp_path).view
        assert sorted(outcome.prompt for outcome in run.prediction_outcomes) == list(range(3 * STEPS * GROUPS))
        assert run.prediction_outcomes[-1].predicted is not None
        learned = [event.phase for event in events_of(tmp_path, c.Activity) if event.role == RANKER]
        assert learned.count("trained") == 1

    def test_a_prompt_that_an_engine_refuses_fails_its_group_alone(self, tmp_path: Path, model: Path) -> None:
        """No replica dies of it, and the run goes on with the others; a held-out prompt counts neither way."""
        files = tmp_path / "files"
        shutil.copytree(model.parent, files)
        third = PromptPool.from_file(files / "train.jsonl", shuffle_seed=1)[2].row
        for name, row in (("train", third), ("held_out", 4)):
            make_overlong(files / f"{name}.jsonl", row)
        run = self.run(tmp_path, files / "model")
        assert self.downs(tmp_path) == []
        assert run.counts.failed_because == {c.Why.REFUSED: 1}
        assert "expected fewer than max_model_len=256" in run.counts.failed_words[c.Why.REFUSED]
        refused = {event.trajectory for event in events_of(tmp_path, c.Refused)}
        (group,) = {name.partition(".")[0] for name in refused if not name.startswith("e")}
        assert group == "2"
        assert {(len(result.rewards), result.failed) for result in run.evaluations} == {(5, 1)}

    # ---- members that are struck in a phase -----------------------------------------------------------------------

    def test_a_trainer_is_struck_in_each_of_its_phases(self, tmp_path: Path, model: Path) -> None:
        """It never gets further than the phase; its batch is trained on once, by another."""
        phases = [phase for phase in PHASES[TRAINER] if phase not in LENDING]
        faults = [f"trainer@step{1 if phase == LOAD else place}:{phase}" for place, phase in enumerate(phases, 1)]
        self.run(tmp_path, model, spec=make_spec(steps=2 * STEPS), faults=faults)
        struck = events_of(tmp_path, c.Struck)
        assert sorted(event.fault for event in struck) == sorted(faults)
        assert all(event.fault.endswith(f":{event.phase}") and event.kind == "kill" for event in struck)
        assert [role for role, _ in self.downs(tmp_path)] == [TRAINER] * len(phases)

    def test_a_replica_is_struck_in_each_of_its_phases(self, tmp_path: Path, model: Path) -> None:
        """A kill, an exception and a stall strike it; tokens so far are kept."""
        faults = ["raise:replica:r1@step0:prefill", "replica:r0@step1:decode", "replica:r1@step1:pull"]
        faults.append("stall:replica:r0@step2:decode")
        detection = policy("detection", "role-aware", replica_s=1.0)
        spec = make_spec(steps=4 * STEPS, detection=detection)  # the run is not to end before a replica is back
        self.run(tmp_path, model, spec=spec, faults=faults)
        assert {event.fault for event in events_of(tmp_path, c.Struck)} == set(faults)
        assert sorted(self.downs(tmp_path)) == [(REPLICA, "broke"), (REPLICA, "died"), (REPLICA, "died")]
        restarts = [(restart.role, restart.reason.why) for restart in commands_of(tmp_path, c.Restart)]
        assert (REPLICA, c.Why.STILL) in restarts

    @pytest.mark.deep
    def test_an_exception_in_a_role_replaces_it(self, tmp_path: Path, model: Path) -> None:
        """Wherever it is raised; what the member was given is done by the next one."""
        faults = ["raise:data@step1", "raise:scorer@step1", "raise:relay@step2", "raise:trainer@step3:optimizer"]
        self.run(tmp_path, model, spec=make_spec(steps=2 * STEPS), faults=faults)
        assert sorted(self.downs(tmp_path)) == [(role, "broke") for role in ("data", "relay", "scorer", "trainer")]

    # ---- members that hang or stand still -------------------------------------------------------------------------

    def test_an_engine_that_stands_still_is_replaced_and_its_work_goes_on(self, tmp_path: Path, model: Path) -> None:
        """Its process lives and answers; its tokens are kept."""
        spec = make_spec(detection=policy("detection", "role-aware", replica_s=1.0))
        run = self.run(tmp_path, model, spec=spec, faults=["stall:replica@step1"])
        assert self.downs(tmp_path) == []
        restarts = [(restart.role, restart.reason.why) for restart in commands_of(tmp_path, c.Restart)]
        assert restarts == [(REPLICA, c.Why.STILL)]
        assert run.replica_restarts == 1

    @pytest.mark.parametrize("roles", [("replica", "relay", "scorer"), rarely(("trainer", "data"))], ids="+".join)
    @pytest.mark.deep
    def test_members_that_hang_are_replaced(self, tmp_path: Path, model: Path, roles: Sequence[str]) -> None:
        """They do not answer (after SIGSTOP if members are processes), and are killed."""
        self.run(tmp_path, model, faults=[f"hang:{role}@step1" for role in roles])
        assert self.downs(tmp_path) == []
        restarts = [(restart.role, restart.reason.why) for restart in commands_of(tmp_path, c.Restart)]
        assert sorted(restarts) == sorted((role, c.Why.SILENT) for role in roles)

    # ---- the fence ------------------------------------------------------------------------------------------------

    def test_with_a_fence_no_replica_is_newer_than_the_trainer_can_be_again(self, tmp_path: Path, model: Path) -> None:
        """Trainer and relays are killed, also while a version is saved: what is pulled is durable, and never made again."""
        self.fenced(tmp_path, model, ranks=1)

    def fenced(self, root: Path, model: Path, *, ranks: int) -> None:
        """Run with a fence and that many ranks of the trainer; two of the killed relays hold what is sealed."""
        faults = ["trainer@step2", "relay:0@step3", "trainer@step4", "relay:1@step5"]
        run = self.run(root, model, relays=2, ranks=ranks, spec=make_spec(fence=True, steps=2 * STEPS), faults=faults)
        assert {role for role, _ in self.downs(root)} == {TRAINER, RELAY}
        assert run.published_before_durable == 0
        durable, seen = {0}, set()
        for event in events_of(root, c.Durable, c.Published, c.Stepped):
            if isinstance(event, c.Durable):
                durable.add(event.version)
            elif isinstance(event, c.Stepped):
                assert event.version not in seen
            else:
                assert event.version in durable
                seen.add(event.version)
        assert {pull.version for pull in commands_of(root, c.Pull)} <= seen
        assert all(publish.sealed for publish in commands_of(root, c.Publish) if publish.version not in durable)

    # ---- checkpoints and the driver -------------------------------------------------------------------------------

    def test_a_trainer_killed_between_full_states_goes_on_from_the_last(self, tmp_path: Path, model: Path) -> None:
        """Weights at each step, full state at every third. It is killed between two, and while it saves either kind."""
        spec = make_spec(full_checkpoint_every=3, steps=2 * STEPS)
        faults = ["trainer@step2:checkpoint", "trainer@step5", "trainer@step7:checkpoint"]
        self.run(tmp_path, model, spec=spec, faults=faults)
        assert self.downs(tmp_path) == [(TRAINER, "died")] * len(faults)
        saves = commands_of(tmp_path, c.Checkpoint)
        assert {command.full for command in saves} == {True, False}
        durable = {event.version: event.full for event in events_of(tmp_path, c.Durable)}
        assert all(event.nbytes > 0 for event in events_of(tmp_path, c.Durable))
        versions = [restart.version for restart in commands_of(tmp_path, c.Restart) if restart.role == TRAINER]
        assert all(version is None or durable[version] for version in versions)
        names = [name for command in commands_of(tmp_path, c.Step) for part in command.mini_batches for name in part]
        assert len(set(names)) < len(names), "nothing was trained on again"
        kept = checkpoints(tmp_path / "checkpoints")
        assert set(checkpoints(tmp_path / "checkpoints", full=True)) < set(kept), "no weights alone were kept"

    @pytest.mark.deep
    def test_an_older_checkpoint_is_used_where_the_newest_is_damaged(self, tmp_path: Path, model: Path) -> None:
        """Batches after the older checkpoint are trained on again."""
        damages = Damages(tmp_path / "checkpoints" / "3")
        spec = make_spec(keep_checkpoints=2)
        self.run(tmp_path, model, spec=spec, observer=damages)
        causes = [cause for role, cause in self.downs(tmp_path) if role == TRAINER]
        assert causes == ["died", "checkpoint"]
        versions = [restart.version for restart in commands_of(tmp_path, c.Restart) if restart.role == TRAINER]
        assert versions == [3, 2]

    def test_a_driver_that_died_goes_on_from_its_log(self, tmp_path: Path, model: Path) -> None:
        """It dies during the run and again during the resumption; the log rebuilds the controller each time.

        Few checkpoints are kept, and the store is trimmed behind them.
        """
        deployment, spec = make_deployment(tmp_path, model), make_spec(keep_checkpoints=2)
        self.dies(spec, deployment, tmp_path, Watching(c.Stepped, 3))
        for kind in (c.Up, c.Published, c.Stepped):
            self.dies(spec, deployment, tmp_path, Watching(kind, None))
        self.goes_on(spec, deployment, tmp_path)
        assert len(events_of(tmp_path, c.Resumed)) == 4

    def test_a_controller_that_died_is_replaced_and_nobody_restarts(self, tmp_path: Path, model: Path) -> None:
        """It dies while members start, while a version is published, in a step, and when one was made."""
        deaths = [Watching(kind, version) for kind, version in _MOMENTS]
        self.is_replaced(make_spec(), make_deployment(tmp_path, model), tmp_path, deaths)
        assert [event.epoch for event in events_of(tmp_path, c.Attached)] == [2, 3, 4, 5]
        assert self.downs(tmp_path) == []
        assert commands_of(tmp_path, c.Restart) == []
        assert [event.version for event in events_of(tmp_path, c.Stepped)] == list(range(1, STEPS + 1))

    def test_a_run_that_gave_up_goes_on(self, tmp_path: Path, model: Path) -> None:
        """A policy ends it at the first failure; once resumed, failures count anew."""
        spec = make_spec(recovery=policy("recovery", "restart-task", max_task_restarts=0))
        deployment = make_deployment(tmp_path, model)
        executor = Executor(self.make_host(0.0), deployment)
        with (
            EventLog(tmp_path / LOG) as log,
            pytest.raises(RunFailedError, match="replica r0 is down and is not restarted"),
        ):
            executor.run(Controller(spec), log, faults=[parse_fault("replica:r0@step2")])
        executor.close(1.0)
        self.goes_on(spec, deployment, tmp_path)


# The contract of every host for restarts of the whole task: subclass it beside `ExecutorContract`.

TASK_STEPS = 4


class TaskContract(RealRuns):
    """Runs whose recovery restarts every member. Each trains on every prompt once, which `run` checks."""

    def test_a_trainer_that_dies_in_the_first_iteration_restarts_the_task(self, tmp_path: Path, model: Path) -> None:
        """The members of all roles are new; the store keeps what it holds."""
        spec = make_spec(recovery=policy("recovery", "role-based"), steps=TASK_STEPS)
        run = self.run(tmp_path, model, spec=spec, faults=["trainer@step0"])
        assert (run.step, run.task_restarts) == (TASK_STEPS, 1)
        restarted = {command.role: command.reason.why for command in commands_of(tmp_path, c.Restart)}
        assert restarted.pop(TRAINER) is c.Why.FAILED
        assert set(restarted) == {"data", "scorer", "relay", "replica"}
        assert set(restarted.values()) == {c.Why.TASK_RESTART}

    def test_a_trainer_that_dies_later_restarts_alone(self, tmp_path: Path, model: Path) -> None:
        """Rollouts go on meanwhile."""
        spec = make_spec(recovery=policy("recovery", "role-based"), steps=TASK_STEPS)
        run = self.run(tmp_path, model, spec=spec, faults=["trainer@step2"])
        assert (run.step, run.task_restarts) == (TASK_STEPS, 0)
        assert [command.role for command in commands_of(tmp_path, c.Restart)] == [TRAINER]

    @pytest.mark.parametrize("role", ["replica", rarely("trainer")])
    def test_the_baseline_begins_the_step_over(self, tmp_path: Path, model: Path, role: str) -> None:
        """Whatever dies, all restart, and what was generated since the checkpoint is generated again."""
        spec = make_spec(recovery=policy("recovery", "restart-task"), steps=TASK_STEPS)
        run = self.run(tmp_path, model, spec=spec, faults=[f"{role}@step2"])
        assert (run.step, run.task_restarts) == (TASK_STEPS, 1)
        assert len({(command.role, command.id) for command in commands_of(tmp_path, c.Restart)}) == 6
