"""A small run with everything real but the engine, on any host, and what must be true of it whatever happened.

The engine draws tokens as a function of the weights that it was given, the prompt and the position: so each stored token can
be checked against the checkpoint of the version that it claims.
"""

from __future__ import annotations

import secrets
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tailrace import contracts as c
from tailrace.contracts.plugins import load
from tailrace.pipeline.controller.controller import Controller
from tailrace.pipeline.executor.deployment import DATA, RELAY, REPLICA, SCORER, TRAINER, Deadlines, Deployment
from tailrace.pipeline.executor.executor import Executor
from tailrace.pipeline.executor.seam import RoleSpec
from tailrace.pipeline.roles.data import DataRole
from tailrace.pipeline.roles.prompts import DecodingMode, SamplingTable
from tailrace.pipeline.roles.relay import RelayRole
from tailrace.pipeline.roles.replica import ReplicaRole
from tailrace.pipeline.roles.scorer import ScorerRole
from tailrace.pipeline.roles.trainer import TrainerRole
from tailrace.pipeline.run.eventlog import Instant, read_log
from tailrace.pipeline.spec import EvaluationPlan, PipelineSpec
from tailrace.rollout.testing import FakeEngine, fake_token

STEPS, GROUPS, SAMPLES = 5, 4, 4
MODES = {"sampled": DecodingMode(1.0), "greedy": DecodingMode(0.0)}
LOG = "events.jsonl"


def fingerprint(weights: Iterable[tuple[str, Any]]) -> int:
    """A number that stands for a set of weights."""
    name, tensor = min(weights, key=lambda pair: pair[0])
    return zlib.crc32(name.encode() + tensor.detach().contiguous().view(-1).numpy().tobytes())


class _Engine(FakeEngine):
    """The fake engine on real weights, slow enough to be killed in the middle of something."""

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        super().load_weights([("w", fingerprint(weights))])

    def step(self) -> Sequence[c.Delta]:
        time.sleep(0.004)
        return super().step()


class FakeReplicaRole(ReplicaRole):
    """The replica role on the fake engine."""

    def build_engine(self, engine: str, model: Path, options: Mapping[str, Any]) -> c.Engine:
        """The fake."""
        del engine, model, options
        return _Engine(max_num_seqs=16, max_model_len=256)


# ---- what runs ------------------------------------------------------------------------------------------------------


def policy(axis: str, name: str, **options: Any) -> Any:
    """A registered policy."""
    return load(f"tailrace.{axis}", name)(**options)


def make_spec(**changes: Any) -> PipelineSpec:
    """A small Laminar pipeline. It keeps every checkpoint, for `check_run`."""
    fields: dict[str, Any] = {
        "admission": policy("admission", "inherent"),
        "batching": policy("batching", "plain", samples=SAMPLES),
        "routing": policy("routing", "least-loaded"),
        "sync": policy("sync", "on-idle"),
        "relocation": policy("relocation", "best-fit", roofline_batch=64, period_s=0.5),
        "training": policy("training", "full-batch"),
        "provisioning": policy("provisioning", "static", count=2),
        "recovery": policy("recovery", "isolate"),
        "sampler": policy("sampler", "fifo"),
        "steps": STEPS,
        "batch_groups": GROUPS,
        "replica_batch": 16,
        "buffer_groups": 16,
        "keep_checkpoints": 50,
        "evaluation": EvaluationPlan(size=6, every=2, modes=("sampled",), last=("greedy",)),
    }
    return PipelineSpec(**{**fields, **changes})


def make_staleflow_spec(bound: int = 1) -> PipelineSpec:
    """A small StaleFlow pipeline: a strict bound under partial rollout, migration and surplus samples."""
    cost = {"k1": 1e-6, "k2": 1e-3, "k3": 1e-4, "k4": 4e-3}
    return make_spec(
        admission=policy("admission", "bounded", bound=bound),
        batching=policy("batching", "redundant", samples=SAMPLES, surplus_samples=1),
        routing=policy("routing", "marginal-throughput", **cost),
        sync=policy("sync", "interrupting"),  # as often as possible
        relocation=policy("relocation", "migration", phi_wait=0, period_s=0.2, **cost),
        buffer_groups=None,
    )


def make_files(root: Path) -> Path:
    """A tiny model with its tokenizer, prompts and held-out problems."""
    from tailrace.reward.tasks import write_jsonl
    from tailrace.trainer.small import build_model
    from tailrace.trainer.tokenizer import train_tokenizer

    model = root / "model"
    rows = [
        {"prompt": f"{a} + {b} = ", "answer": str(a + b), "verifier": "exact"} for a in range(10) for b in range(10)
    ]
    train_tokenizer([row["prompt"] for row in rows], model, vocab_size=64)
    build_model(model, vocab_size=64, hidden=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp=32, seed=0)
    write_jsonl(root / "train.jsonl", rows)
    write_jsonl(root / "held_out.jsonl", rows[:50])
    return model


def make_deployment(root: Path, model: Path, *, name: str | None = None, mixed_versions: bool = False) -> Deployment:
    """All roles of a run below a directory.

    Args:
        name: of the run's relays; a new one if None.
    """
    from tailrace.trainer import TrainerConfig

    checkpoints = root / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    prompts = {
        "tokenizer": model / "tokenizer.json",
        "train": model.parent / "train.jsonl",
        "held_out": model.parent / "held_out.jsonl",
        "modes": MODES,
        "shuffle_seed": 1,
    }
    trainer = {
        "model": model,
        "backend": "fsdp2",
        "config": TrainerConfig(lr=1e-2, device="cpu", threads=1),
        "checkpoints": checkpoints,
    }
    replica = {
        "engine": "fake",
        "model": model,
        "options": {},
        "sampling": SamplingTable(1.0, 120, (1, 2), MODES),
        "checkpoints": checkpoints,
        "snapshot_s": 0.1,
        "still_report_s": 0.5,
    }
    data = {"store": root / "store.sqlite", "prompts": prompts, "verifier": "exact", "mixed_versions": mixed_versions}
    return Deployment(
        name=name or f"tailrace-{secrets.token_hex(6)}",
        token="contract-suite-shared-token",  # noqa: S106 - nobody else is there
        roles={
            DATA: RoleSpec(DataRole, data),
            SCORER: RoleSpec(ScorerRole, {"verifier": "exact"}),
            RELAY: RoleSpec(RelayRole),
            TRAINER: RoleSpec(TrainerRole, trainer),
            REPLICA: RoleSpec(FakeReplicaRole, replica),
        },
        deadlines=Deadlines(start_s=120, step_s=60, publish_s=60, pull_s=60, score_s=60, suspect_s=2, silent_s=6),
    )


# ---- what must be true of it ----------------------------------------------------------------------------------------


def check_run(controller: Controller, executor: Executor, root: Path) -> None:
    """Everything admitted was trained on exactly once, each token is its version's, and the log tells the same.

    Raises:
        AssertionError: something of that is not so.
    """
    from tailrace.pipeline.run.launch import replay  # not in every member's process

    view = controller.view
    spec, counts = controller.spec, view.counts
    groups, samples = spec.steps * spec.batch_groups, spec.batching.open().next(controller.coordinator.progress())
    assert view.finished, view.failure
    assert view.step == spec.steps
    assert counts.admitted == counts.trained + counts.filtered + counts.failed
    assert counts.trained == groups
    assert view.contradictions == 0
    assert view.bound is None or max(view.staleness_at_consumption, default=0) <= view.bound
    audit = executor.data.call("audit")
    assert samples is None or audit["consumed"] == groups * samples.needed
    assert not audit["consumed_twice"]
    assert not audit["inconsistent"]
    _check_tokens(controller, executor, root)
    again = Controller(spec, relays=controller.relays)
    replay(again, root / LOG)
    assert again.state() == controller.state()


def _check_tokens(controller: Controller, executor: Executor, root: Path) -> None:
    """As far as the checkpoints of their versions are there: all, where the run keeps so many."""
    from tailrace.trainer import CheckpointError, load_weights_file

    view = controller.view

    def known(version: int) -> int | None:
        try:
            return fingerprint(load_weights_file(root / "checkpoints" / str(version)))
        except (CheckpointError, OSError):
            assert controller.spec.keep_checkpoints < STEPS
            return None

    weights: dict[int, int | None] = {}
    for version, names in trained(read_log(root / LOG), view.made).items():
        for experience in executor.data.call("experiences", names):
            assert view.mixes_versions or len({segment.version for segment in experience.segments}) == 1
            assert view.bound is None or version - 1 - experience.oldest_version <= view.bound
            versions = [segment.version for segment in experience.segments for _ in segment.tokens]
            for held in set(versions) - weights.keys():
                weights[held] = known(held)
            drawn = zip(versions, experience.tokens, experience.logprobs, strict=True)
            for position, (held, token, logprob) in enumerate(drawn):
                made_by = weights[held]
                assert made_by is None or (token, logprob) == fake_token(made_by, experience.prompt, position)


def trained(log: Iterable[Instant], counts: Callable[[int], bool]) -> dict[int, list[str]]:
    """What each version was trained on, from the log alone.

    Args:
        counts: whether a version counts; one that the trainer fell back behind does not.
    """
    ordered: dict[int, list[str]] = {}
    done: dict[int, list[str]] = {}
    for instant in log:
        for event in instant.events:
            if isinstance(event, c.Stepped):
                done[event.version] = ordered.pop(event.version)
            elif isinstance(event, c.Up) and event.role == TRAINER:
                ordered.clear()  # a new one has forgotten what was accumulated
        for command in instant.commands:
            if isinstance(command, c.Accumulate):
                ordered.setdefault(command.version, []).extend(command.trajectories)
            elif isinstance(command, c.Step):
                ordered.setdefault(command.version, []).extend(name for part in command.mini_batches for name in part)
    return {version: names for version, names in done.items() if counts(version)}


def events_of(root: Path, *kinds: type) -> list[Any]:
    """Events of these kinds in a run's log."""
    return [event for instant in read_log(root / LOG) for event in instant.events if isinstance(event, kinds)]


def commands_of(root: Path, *kinds: type) -> list[Any]:
    """Commands of these kinds in a run's log."""
    return [command for instant in read_log(root / LOG) for command in instant.commands if isinstance(command, kinds)]
