"""A run whose vLLM replicas are resized from 2 x TP 1 to 1 x TP 2 and back, with everything real: what it costs, what it gives.

    uv run python tools/bench/resize.py [--steps N] [--json FILE]

Two cores are two devices. Log-probabilities of every trajectory, those that were interrupted by a resize too, are compared with
plain transformers on the checkpoint of the version that generated it. On two cores there is no speed to gain. What grows is the
KV cache of a replica: each of its devices holds half of every token's keys and values.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.controller.spec import EvaluationPlan
from tailrace.faulttol import RoleAware
from tailrace.pipeline.roles.calls import DATA_DOOR
from tailrace.pipeline.roles.prompts import SamplingTable
from tailrace.pipeline.roles.replica import ReplicaRole
from tailrace.pipeline.run.eventlog import EventLog, read_log
from tailrace.pipeline.testing.small_run import LOG, MODES, TRAINED, make_deployment, make_files, make_spec
from tailrace.repack import to_size
from tailrace.runtime.executor.deployment import DATA, REPLICA, Deadlines, Deployment
from tailrace.runtime.executor.executor import Executor
from tailrace.runtime.executor.seam import RoleSpec
from tailrace.runtime.hosts.ray import RayHost
from tailrace.trajstore import read_trained

GROWN, BACK = 2, 4  # versions from which one replica spans two devices, and from which two span one each
KV_TOKENS = 12 * 32  # of a device that holds all heads
LAYERS, KV_HEADS, HEAD_DIM, VOCABULARY = 2, 2, 32, 64


@dataclasses.dataclass(frozen=True)
class ThereAndBack(c.ProvisioningPolicy):
    """The sizes of the replicas by version."""

    def plan(self, view: c.FleetView) -> Sequence[c.StartReplica | c.StopReplica | c.ResizeReplica]:
        """Start two, make one of them, and two of that."""
        staying = [member for member in view.of(REPLICA) if member.health is not c.Health.STOPPING]
        size = 2 if GROWN <= view.progress.version < BACK else 1
        if not staying:
            return [c.StartReplica(tp=size)] * (2 // size)
        return () if all(one.tp == size for one in staying) else to_size(staying, size, 2, c.Reason(c.Why.PLANNED))


def deployment(root: Path) -> Deployment:
    from tailrace.trainer.small_model import build_model

    make_files(root)
    model = build_model(
        root / "model", vocab_size=VOCABULARY, hidden=64, layers=LAYERS, heads=4, kv_heads=KV_HEADS,
        head_dim=HEAD_DIM, mlp=96, seed=3,
    )  # fmt: skip
    made = make_deployment(root, model)
    replica = made.roles[REPLICA]
    options = {
        "device": "cpu", "dtype": "float32", "threads": 1, "block_tokens": 32, "max_num_seqs": 16, "max_model_len": 256,
        "kv_cache_bytes": KV_TOKENS * 2 * LAYERS * KV_HEADS * HEAD_DIM * 4,
    }  # fmt: skip
    sampling = SamplingTable(1.0, 160, (), MODES)
    settings = dataclasses.replace(replica.settings, engine="vllm", options=options, sampling=sampling)
    role = RoleSpec.of(ReplicaRole, settings, environment={"OMP_NUM_THREADS": "1"})
    # Two processes of vLLM start at once on two cores, which others may use too.
    limits = Deadlines(start_s=1800, step_s=600, publish_s=600, pull_s=600, score_s=600, suspect_s=60)
    return dataclasses.replace(made, roles={**made.roles, REPLICA: role}, deadlines=limits)


def run(root: Path, steps: int) -> dict[str, Any]:
    spec = make_spec(
        provisioning=ThereAndBack(),
        detection=RoleAware(silent_s=600.0),
        steps=steps,
        replica_batch=16,
        buffer_groups=8,
        evaluation=EvaluationPlan(),
    )
    controller = Controller(spec)
    executor = Executor(RayHost(), deployment(root))
    log = EventLog(root / LOG)
    try:
        executor.run(controller, log)
        DATA_DOOR.open(executor.host.caller(DATA)).export(root / TRAINED)
    finally:
        log.close()
        executor.close()
    assert controller.view.finished, controller.view.failure
    return figures(root, controller)


def figures(root: Path, controller: Controller) -> dict[str, Any]:
    """What the log and the archive say."""
    stretches: list[dict[str, Any]] = []
    resizes: list[dict[str, Any]] = []
    sizes: dict[str, int] = {}
    finished_at: dict[str, int] = {}
    last: dict[str, c.Snapshot] = {}
    waiting: set[str] = set()

    def settle() -> None:
        told = {name: snapshot for name, snapshot in last.items() if name in sizes}
        stretches.append(
            {
                "tp": next(iter(sizes.values())),
                "replicas": len(sizes),
                "kv_capacity_tokens": sum(snapshot.kv_capacity_tokens for snapshot in told.values()),
                "preemptions": sum(snapshot.preemptions for snapshot in told.values()),
                "finished": sum(snapshot.finished for snapshot in told.values()),
            }
        )

    for instant in read_log(root / LOG):
        for one in instant.commands:
            if isinstance(one, c.Interrupt) and one.reason.why is c.Why.RESIZING and not waiting:
                resizes.append({"at_s": instant.now})
            if isinstance(one, c.Resize):
                if not waiting:
                    settle()
                    last.clear()
                    if not resizes or "seconds" in resizes[-1]:
                        resizes.append({"at_s": instant.now})
                    resizes[-1] |= {"tp": one.tp}
                sizes[one.replica] = one.tp
                waiting.add(one.replica)
            elif isinstance(one, c.Start) and one.role == REPLICA:
                sizes[one.id] = one.tp or 1
                if resizes:
                    waiting.add(one.id)
        for event in instant.events:
            if isinstance(event, c.Snapshot) and event.replica not in waiting:
                last[event.replica] = event
            elif isinstance(event, c.Finished):
                finished_at[event.trajectory] = sizes[event.replica]
            elif isinstance(event, c.Pulled) and event.replica in waiting:
                waiting.discard(event.replica)
                if not waiting and "seconds" not in resizes[-1]:
                    resizes[-1]["seconds"] = round(instant.now - resizes[-1].pop("at_s"), 1)
            elif isinstance(event, c.Down) and event.role == REPLICA:
                sizes.pop(event.id, None)
    settle()
    errors, resumed = logprob_errors(root, finished_at)
    return {
        "stretches": stretches,
        "resizes": resizes,
        "largest_logprob_error": errors,
        "trajectories": len(finished_at),
        "interrupted_by_a_resize": resumed,
        "trained_groups": controller.view.counts.trained,
    }


def logprob_errors(root: Path, finished_at: dict[str, int]) -> tuple[dict[str, float], int]:
    """The largest difference from plain transformers by the size of the replica where a trajectory finished."""
    from transformers import AutoModelForCausalLM

    from tailrace.rollout.testing.contract import log_probabilities
    from tailrace.trainer import load_weights_file

    model = AutoModelForCausalLM.from_pretrained(str(root / "model")).eval()
    rows = list(read_trained(root / TRAINED))
    errors: dict[str, float] = {}
    for version in sorted({row["versions"][0] for row in rows}):
        model.load_state_dict(dict(load_weights_file(root / "checkpoints" / str(version))), strict=False)
        for row in rows:
            if row["versions"][0] == version:
                expected = log_probabilities(model, tuple(row["prompt"]), tuple(row["tokens"]), 1.0)
                error = max(abs(a - b) for a, b in zip(expected, row["logprobs"], strict=True))
                size = f"tp {finished_at[row['trajectory']]}"
                errors[size] = max(errors.get(size, 0.0), error)
    resizing = {
        name
        for instant in read_log(root / LOG)
        for one in instant.commands
        if isinstance(one, c.Interrupt) and one.reason.why in (c.Why.RESIZING, c.Why.STOPPING)
        for name in one.trajectories
    }
    return errors, len(resizing & {row["trajectory"] for row in rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), given.steps)
    print(json.dumps(found, indent=1))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
