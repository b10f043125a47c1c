"""The contract suite of hosts, for RobustRL's modes: real small runs in which the trainer is struck, and a hybrid.

class TestMyHost(ModesContract):
    def make_host(self, started_s):
        return MyHost(started_s)
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.controller.spec import PipelineSpec, RolloutPool
from tailrace.faulttol.injection import LOAD, PHASES
from tailrace.pipeline.roles.scorer import ScorerRole, ScorerSettings
from tailrace.pipeline.run.eventlog import read_log
from tailrace.pipeline.run.figures.effective_time import EffectiveTime
from tailrace.pipeline.run.figures.folding import follow
from tailrace.pipeline.run.replay import replayed
from tailrace.pipeline.testing.real_runs import RealRuns, rarely
from tailrace.pipeline.testing.small_run import (
    HAND_OVER_S,
    LOG,
    SAMPLES,
    STEPS,
    SeededReplicaRole,
    commands_of,
    events_of,
    make_spec,
    policy,
)
from tailrace.reward import VerifierSettings
from tailrace.runtime.executor.deployment import REPLICA, SCORER, TRAINER, Deployment, PoolReplicas
from tailrace.runtime.executor.seam import RoleSpec
from tailrace.trainer.weights_file import weights_sha256

_POOLS = (RolloutPool("hybrid", 1, replica_batch=16, hybrid=True), RolloutPool("standalone", 1, replica_batch=16))
_LOST = {
    "sync": 1.0,
    "semi-sync": 1 / 2,
    "async": 1 / 3,
}  # of all devices, while the trainer recovers alone in its step
_LEAVE, _TAKE_BACK = "leave its devices", "take its devices back"


def make_mode_spec(mode: str, *, steps: int = 2 * STEPS) -> PipelineSpec:
    """A small RobustRL pipeline: two replicas, and recovery by role.

    Args:
        mode: sync, semi-sync or async.
        steps: batches.
    """
    provisioning = policy("provisioning", "static", count=2)
    if mode != "async":
        provisioning = policy("provisioning", "hybrid", count=2, yields_at=1.0 if mode == "sync" else 0.5)
    return make_spec(
        admission=policy("admission", "on-policy" if mode == "sync" else "one-step"),
        sync=policy("sync", "when-drained"),
        relocation=policy("relocation", "none"),
        provisioning=provisioning,
        recovery=policy("recovery", "role-based"),
        colocated=mode != "async",
        pools=_POOLS if mode == "semi-sync" else (),
        buffer_groups=None,
        steps=steps,
    )


def with_pools(deployment: Deployment) -> Deployment:
    """Both pools are started as the replicas are that are all alike."""
    return replace(deployment, pools={pool.name: PoolReplicas(deployment.roles[REPLICA], 1) for pool in _POOLS})


def with_rewards(root: Path, model: Path) -> tuple[Path, Callable[[Deployment], Deployment]]:
    """The task with an engine that keeps seeds, and a verifier that likes every other response: none is ever right.

    Returns the model directory beside the task's files, and how scorer and replicas are started.
    """
    judge = root / "judge.py"
    judge.write_text("def verify(response, answer, metadata):\n    return float(sum(map(ord, response)) % 2)\n")
    task = root / "task"
    shutil.copytree(model.parent, task)
    for name in ("train.jsonl", "held_out.jsonl"):
        rows = [json.loads(line) for line in (task / name).read_text().splitlines()]
        (task / name).write_text("".join(json.dumps(row | {"verifier": "judged"}) + "\n" for row in rows))
    settings = VerifierSettings(own={"judged": f"{judge}:verify"})

    def changed(deployment: Deployment) -> Deployment:
        scorer = RoleSpec.of(ScorerRole, ScorerSettings(["judged"], settings))
        replica = replace(deployment.roles[REPLICA], factory=SeededReplicaRole)
        return replace(deployment, roles={**deployment.roles, SCORER: scorer, REPLICA: replica})

    return task / model.name, changed


class ModesContract(RealRuns):
    """Subclass it, provide `make_host`, and run it with pytest."""

    @pytest.mark.parametrize("mode", ["sync", rarely("semi-sync"), rarely("async")])
    @pytest.mark.deep
    def test_a_trainer_struck_in_its_step_recovers_alone(self, tmp_path: Path, model: Path, mode: str) -> None:
        """Whatever the mode, no rollout is lost; and effective time is what the devices of the trainer are of all."""
        spec = make_mode_spec(mode)
        view = self.run(tmp_path, model, spec=spec, faults=["trainer@step2:backward"], changed=with_pools)
        assert [role for role, _ in self.downs(tmp_path)] == [TRAINER]
        assert (view.task_restarts, view.replica_restarts, view.restarts(TRAINER)) == (0, 0, 1)
        hybrids = {"sync": {"r0", "r1"}, "semi-sync": {"r0"}, "async": set()}[mode]
        assert self.check_turns(tmp_path, hybrids) > spec.steps  # one was begun twice
        log, controller = list(read_log(tmp_path / LOG)), Controller(spec)
        time = EffectiveTime(controller.view, 1)
        follow(replayed(controller, tmp_path / LOG), time)
        found = time.figures()
        assert 0 < found.ettr_strict <= found.ettr < 1
        away_s = self.away_s(tmp_path)
        begin_s = min(instant.now for instant in log if any(isinstance(one, c.Route) for one in instant.commands))
        assert found.ettr <= 1 - _LOST[mode] * away_s / (log[-1].now - begin_s) + 1e-3

    def test_a_trainer_struck_in_every_phase_ends_on_the_bits_of_a_run_without_faults(
        self, tmp_path: Path, model: Path
    ) -> None:
        """It runs in sync mode behind a fence, with groups in order of their numbers and rewards of what was generated."""
        seeded = policy("batching", "plain", samples=SAMPLES, seeded=True)
        passed = [phase for phase in PHASES[TRAINER] if phase != LOAD]
        spec = make_mode_spec("sync", steps=len(passed) + 4)
        spec = replace(spec, batching=seeded, sampler=policy("sampler", "in-order"), fence=True)
        judged, changed = with_rewards(tmp_path, model)
        one_a_step = [f"trainer@step{step}:{phase}" for step, phase in enumerate(passed, 2)]
        digests = {}
        for name, faults in {
            "calm": [],
            "struck": one_a_step,
            "struck as it loads": ["trainer@step4:optimizer", f"trainer@step4:{LOAD}"],
        }.items():
            root = tmp_path / name
            root.mkdir()
            view = self.run(root, judged, spec=spec, faults=faults, changed=changed)
            assert sorted(event.fault for event in events_of(root, c.Struck)) == sorted(faults)
            assert view.counts.filtered == 0, "groups were thrown away"
            digests[name] = weights_sha256(root / "checkpoints" / str(view.version))
            before = weights_sha256(root / "checkpoints" / str(view.version - 1))
            assert digests[name] != before, "nothing was learned, so nothing is shown"
        assert len(set(digests.values())) == 1, digests

    def test_a_hybrids_trainer_makes_optimizer_steps_on_parts_of_a_batch(self, tmp_path: Path, model: Path) -> None:
        """It has left the devices before every batch, so the first part brings its state back."""
        spec = replace(make_mode_spec("sync", steps=STEPS), training=policy("training", "dynamic-batch", parts=2))
        self.run(tmp_path, model, spec=spec, changed=with_pools)
        parts = commands_of(tmp_path, c.Accumulate)
        assert len(parts) == spec.steps
        assert all(part.update for part in parts)
        assert len(commands_of(tmp_path, c.Offload)) >= spec.steps
        self.check_turns(tmp_path, {"r0", "r1"})

    @pytest.mark.parametrize("mode", [rarely("sync"), "semi-sync"])
    def test_a_hybrids_fault_is_the_trainers(self, tmp_path: Path, model: Path, mode: str) -> None:
        """Both restart; a hybrid that is back finishes the rollouts first."""
        view = self.run(tmp_path, model, spec=make_mode_spec(mode), faults=["replica:r0@step2"], changed=with_pools)
        assert [role for role, _ in self.downs(tmp_path)] == [REPLICA]
        assert (view.task_restarts, view.replica_restarts, view.restarts(TRAINER)) == (0, 1, 1)
        reasons = {restart.role: restart.reason for restart in commands_of(tmp_path, c.Restart)}
        assert (reasons[TRAINER].why, reasons[TRAINER].who) == (c.Why.HYBRID, "r0")

    @pytest.mark.parametrize("kind", ["kill", rarely("hang"), "stall"])
    @pytest.mark.deep
    def test_members_that_are_struck_as_devices_change_hands_are_replaced(
        self, tmp_path: Path, model: Path, kind: str
    ) -> None:
        """Nothing is lost, no device has two users, and nobody is waited for without end: a stalled engine, which answers, is
        taken for down at the deadline of what it was told."""
        phases = [(REPLICA, "sleep"), (REPLICA, "wake")]
        if kind != "stall":
            phases += [(TRAINER, "offload"), (TRAINER, "onload")]
        faults = [f"{kind}:{role}@step{2 * place}:{phase}" for place, (role, phase) in enumerate(phases, 1)]
        spec = make_mode_spec("sync", steps=2 * STEPS)
        self.run(tmp_path, model, spec=spec, faults=faults, changed=with_pools)
        assert sorted(event.fault.removeprefix("kill:") for event in events_of(tmp_path, c.Struck)) == sorted(
            fault.removeprefix("kill:") for fault in faults
        )
        # A member that hangs is never told to be down; that it is restarted is.
        restarts = [restart.role for restart in commands_of(tmp_path, c.Restart)]
        assert (restarts.count(REPLICA), restarts.count(TRAINER)) == (2, len(phases))
        self.check_turns(tmp_path, {"r0", "r1"})
        late = [event.reason for event in events_of(tmp_path, c.Down) if event.reason.startswith("waited")]
        expected = [f"waited {HAND_OVER_S:.0f} s for replica r to {what}" for what in (_LEAVE, _TAKE_BACK)]
        assert sorted(re.sub(r"r\d", "r", reason) for reason in late) == (expected if kind == "stall" else [])

    def check_turns(self, root: Path, hybrids: set[str]) -> int:
        """Check that hybrids get no work while they are lent, that the trainer steps only while all that are up are, and that
        it has left the devices before one returns. Returns how many steps were begun."""
        lent, up, there, stepped = set[str](), {*hybrids}, False, 0
        for instant in read_log(root / LOG):
            for event in instant.events:
                if isinstance(event, c.Down) and event.role == REPLICA:
                    lent.discard(event.id)
                    up.discard(event.id)
                elif isinstance(event, c.Up) and event.role == REPLICA and event.id in hybrids:
                    up.add(event.id)
                elif isinstance(event, c.Offloaded) or (isinstance(event, c.Down) and event.role == TRAINER):
                    there = False
            for command in instant.commands:
                if isinstance(command, c.Lend):
                    lent.add(command.replica)
                elif isinstance(command, c.Return):
                    assert not there, f"{command.replica} returns while the trainer's state is on its devices"
                    lent.discard(command.replica)
                elif isinstance(command, c.Restart) and command.role == REPLICA:
                    lent.discard(command.id)
                    up.discard(command.id)
                elif isinstance(command, c.Restart) and command.role == TRAINER:
                    there = False
                elif isinstance(command, c.Route):
                    assert command.replica not in lent, f"{command.replica} gets work while it is lent"
                elif isinstance(command, c.Step):
                    stepped, there = stepped + 1, bool(hybrids)
                    assert lent == up, f"the trainer steps while {sorted(up - lent)} are not lent"
        return stepped

    def away_s(self, root: Path) -> float:
        """Seconds between the trainer's death and its return."""
        (down_s,) = [
            instant.now
            for instant in read_log(root / LOG)
            for event in instant.events
            if isinstance(event, c.Down) and event.role == TRAINER
        ]
        ups = [
            instant.now
            for instant in read_log(root / LOG)
            for event in instant.events
            if isinstance(event, c.Up) and event.role == TRAINER
        ]
        assert len(events_of(root, c.Up)) >= len(ups)
        return min(at for at in ups if at > down_s) - down_s
