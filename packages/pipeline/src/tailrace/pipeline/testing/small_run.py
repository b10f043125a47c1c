"""A small run on any host, with everything real except the engine, and checks that must hold whatever happened in it.

The engine draws tokens as a function of its weights, the prompt and the position. So each stored token can be checked against
the checkpoint of its version.
"""

from __future__ import annotations

import json
import secrets
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tailrace import contracts as c
from tailrace.contracts.plugins import load
from tailrace.controller.controller import Controller
from tailrace.controller.spec import EvaluationPlan, PipelineSpec
from tailrace.pipeline.roles.calls import DATA_DOOR
from tailrace.pipeline.roles.data import DataRole, DataSettings
from tailrace.pipeline.roles.prompts import DecodingMode, PromptSettings, SamplingTable
from tailrace.pipeline.roles.ranker import RankerRole, RankerSettings
from tailrace.pipeline.roles.relay import RelayRole, RelaySettings
from tailrace.pipeline.roles.replica import ReplicaRole, ReplicaSettings
from tailrace.pipeline.roles.scorer import ScorerRole, ScorerSettings
from tailrace.pipeline.roles.trainer import TrainerRole, TrainerSettings
from tailrace.pipeline.roles.transfer import WeightTransfer
from tailrace.pipeline.run.eventlog import Instant, read_log
from tailrace.rollout import WeightComparison
from tailrace.rollout.served_weights import read_whole
from tailrace.rollout.testing import FakeEngine, fake_token
from tailrace.runtime.executor.deployment import DATA, RANKER, RELAY, REPLICA, SCORER, TRAINER, Deadlines, Deployment
from tailrace.runtime.executor.executor import Executor
from tailrace.runtime.executor.seam import RoleSpec
from tailrace.trajstore import read_trained

STEPS, GROUPS, SAMPLES = 5, 4, 4
HAND_OVER_S = 10.0
MODES = {"sampled": DecodingMode(1.0), "greedy": DecodingMode(0.0)}
LOG, TRAINED = "events.jsonl", "trained.packed"


def fingerprint(weights: Iterable[tuple[str, Any]]) -> int:
    """A hash of a set of weights."""
    name, tensor = min(weights, key=lambda pair: pair[0])
    return zlib.crc32(name.encode() + tensor.detach().contiguous().view(-1).numpy().tobytes())


class SlowEngine(FakeEngine):
    """The fake engine on real weights, slow enough to be killed during its work."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.tensors: dict[str, Any] = {}

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        self.tensors = {name: tensor.clone() for name, tensor in weights}
        super().load_weights([("w", fingerprint(self.tensors.items()))])

    def digests(self, boxes: Sequence[c.WeightBox]) -> Sequence[c.WeightDigest]:
        return list(read_whole(self.tensors, boxes))

    def step(self) -> Sequence[c.Delta]:
        time.sleep(0.004)
        return super().step()

    def stats(self) -> c.EngineStats:
        return replace(super().stats(), kv_capacity_tokens=16 * 256)


class FakeReplicaRole(ReplicaRole):
    """The replica role on the fake engine."""

    def build_engine(self, engine: str, model: Path, options: Mapping[str, Any]) -> c.Engine:
        """Build the fake engine."""
        del engine, model, options
        return SlowEngine(max_num_seqs=16, max_model_len=256)


class NeverAnswersRole(RankerRole):
    """A ranker that takes longer for a prediction than the run lasts."""

    def submit(self, commands: Sequence[c.Command]) -> None:
        """Answer nothing."""


class SeededEngine(SlowEngine):
    """The same, but how long the samples of a prompt are follows from their seeds."""

    def submit(self, requests: Sequence[c.Request]) -> None:
        super().submit([self._with_length(request) for request in requests])

    def _with_length(self, request: c.Request) -> c.Request:
        sampling = request.sampling
        tokens = sampling.max_tokens if sampling.seed is None else 4 + sampling.seed % 32
        return replace(request, sampling=replace(sampling, max_tokens=tokens))


class SeededReplicaRole(ReplicaRole):
    """The replica role on the engine that keeps seeds."""

    def build_engine(self, engine: str, model: Path, options: Mapping[str, Any]) -> c.Engine:
        """Build the engine."""
        del engine, model, options
        return SeededEngine(max_num_seqs=16, max_model_len=256)


# ---- what runs ------------------------------------------------------------------------------------------------------


def policy(axis: str, name: str, **options: Any) -> Any:
    """A registered policy with these options."""
    return load(f"tailrace.{axis}", name)(**options)


def make_spec(**changes: Any) -> PipelineSpec:
    """A small Laminar pipeline that keeps every checkpoint, for `check_run`."""
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


def make_rounds_spec(cells: int = 1, *, lends: bool = False, **changes: Any) -> PipelineSpec:
    """A small RollPacker pipeline: two short rounds, then a long one, and so on; gradients are streamed.

    Args:
        cells: cells of the trainer.
        lends: whether replicas lend their devices to the cells, which then stand on them.
        **changes: other fields of the pipeline.
    """
    batching = policy(
        "batching", "tail-batching", prompts=GROUPS, samples=SAMPLES, prompt_factor=1.5, sample_factor=1.25
    )
    provisioning = policy("provisioning", "static", count=2)
    if lends:
        provisioning = policy("provisioning", "scale-down", count=2, max_tokens=120, every=0.01)
    return make_spec(
        admission=policy("admission", "on-policy"),
        batching=batching,
        sync=policy("sync", "barrier"),
        relocation=policy("relocation", "none"),
        training=policy("training", "streamed", groups=1),
        provisioning=provisioning,
        cells=cells,
        colocated=lends,
        buffer_groups=None,
        **{"steps": 3 * STEPS, **changes},
    )


def make_files(root: Path) -> Path:
    """Write a tiny model with its tokenizer, prompts and held-out problems."""
    from tailrace.reward.tasks import write_jsonl
    from tailrace.trainer.small_model import build_model
    from tailrace.trainer.tokenizer import train_tokenizer

    model = root / "model"
    rows = [
        {"prompt": f"{a} + {b} = ", "answer": str(a + b), "verifier": "exact"} for a in range(15) for b in range(10)
    ]
    train, held_out = rows[:100], rows[100:]
    train_tokenizer([row["prompt"] for row in rows], model, vocab_size=64)
    build_model(model, vocab_size=64, hidden=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp=32, seed=0)
    write_jsonl(root / "train.jsonl", train)
    write_jsonl(root / "held_out.jsonl", held_out)
    return model


def make_overlong(file: Path, row: int) -> None:
    """Make a prompt of a file longer than the fake engine takes."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[row]["prompt"] *= 200
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))


def make_deployment(
    root: Path,
    model: Path,
    *,
    name: str | None = None,
    mixed_versions: bool = False,
    transfer: WeightTransfer = WeightTransfer(),  # noqa: B008 - it is frozen
    lr: float = 1e-2,
    ranks: int = 1,
    cells: int = 1,
    peers: bool = False,
) -> Deployment:
    """A deployment of all roles, with files in a directory.

    Args:
        root: the directory.
        model: the model directory.
        name: prefix of the relays' names; a new one if None.
        mixed_versions: whether a trajectory may continue under newer weights.
        transfer: the transport and codec.
        lr: the trainer's learning rate.
        ranks: number of trainer processes; more than one only on a host whose members are processes.
        cells: cells that they form.
        peers: whether replicas offer what they serve.
    """
    from tailrace.trainer import TrainerConfig

    checkpoints, rendezvous = root / "checkpoints", root / "rendezvous"
    for directory in (checkpoints, rendezvous):
        directory.mkdir(parents=True, exist_ok=True)
    prompts = PromptSettings(
        tokenizer=model / "tokenizer.json",
        train=model.parent / "train.jsonl",
        held_out=model.parent / "held_out.jsonl",
        modes=MODES,
        shuffle_seed=1,
    )
    trainer = TrainerSettings(
        model=model,
        backend="fsdp2",
        config=TrainerConfig(lr=lr, device="cpu", threads=1, cells=cells),
        checkpoints=checkpoints,
        transfer=transfer,
    )
    replica = ReplicaSettings(
        engine="fake",
        model=model,
        options={},
        sampling=SamplingTable(1.0, 120, (1, 2), MODES),
        checkpoints=checkpoints,
        transfer=transfer,
        snapshot_s=0.1,
        flush_s=0.1,
        still_report_s=0.5,
        sleep_level=2,
        comparison=WeightComparison(),
        offers=peers,
    )
    data = DataSettings(
        store=root / "store.sqlite",
        archive=root / TRAINED,
        prompts=prompts,
        verifier="exact",
        mixed_versions=mixed_versions,
    )
    ranker = RankerSettings(
        saved=root / "ranker",
        path=None,
        method="prompt-length",
        prompts=GROUPS,
        samples=SAMPLES,
        look_s=0.1,
        budget_s=30.0,
    )
    return Deployment(
        name=name or f"tailrace-{secrets.token_hex(6)}",
        token="contract-suite-shared-token",  # noqa: S106 - a test's own secret
        roles={
            DATA: RoleSpec.of(DataRole, data),
            SCORER: RoleSpec.of(ScorerRole, ScorerSettings(["exact"])),
            RANKER: RoleSpec.of(RankerRole, ranker),
            RELAY: RoleSpec.of(RelayRole, RelaySettings(transfer, peers=peers)),
            TRAINER: RoleSpec.of(TrainerRole, trainer),
            REPLICA: RoleSpec.of(FakeReplicaRole, replica),
        },
        trainer_ranks=ranks,
        trainer_cells=cells,
        rendezvous=rendezvous,
        deadlines=Deadlines(
            start_s=120, step_s=60, publish_s=60, pull_s=60, score_s=60, suspect_s=2, hand_over_s=HAND_OVER_S
        ),
    )


# ---- what must be true of it ----------------------------------------------------------------------------------------


def check_run(controller: Controller, executor: Executor, root: Path) -> None:
    """Check that every admitted group was trained on exactly once, each token fits its version, and the log agrees.

    Raises:
        AssertionError: one of these does not hold.
    """
    from tailrace.pipeline.run.replay import replay  # not in every member's process

    view = controller.view
    spec, counts = controller.spec, view.counts
    groups, samples = spec.steps * spec.batch_groups, spec.batching.open().next(controller.owned.progress())
    assert view.finished, view.failure
    assert view.step == spec.steps
    assert counts.admitted == counts.trained + counts.filtered + counts.failed + counts.deferred
    assert counts.trained == groups
    assert view.contradictions == 0
    assert view.bound is None or max(view.staleness_at_consumption, default=0) <= view.bound
    audit = DATA_DOOR.open(executor.host.caller(DATA)).audit()
    assert samples is None or audit["consumed"] == groups * samples.needed
    assert not audit["consumed_twice"]
    assert not audit["inconsistent"]
    _check_tokens(controller, executor, root)
    again = Controller(spec, relays=controller.relays)
    replay(again, root / LOG)
    assert again.state() == controller.state()


def _check_tokens(controller: Controller, executor: Executor, root: Path) -> None:
    """Check each token whose version's checkpoint exists; that is all of them if the run keeps every checkpoint."""
    from tailrace.trainer import CheckpointError, load_weights_file

    view = controller.view
    transfer: WeightTransfer = executor.deployment.roles[REPLICA].settings.transfer

    def known(version: int) -> int | None:
        try:
            return fingerprint(transfer.as_published(load_weights_file(root / "checkpoints" / str(version))))
        except (CheckpointError, OSError):
            saved = controller.spec.keep_checkpoints >= STEPS and not controller.spec.newer_weights
            assert not saved or not view.made(version)  # it died with the trainer
            return None

    weights: dict[int, int | None] = {}
    DATA_DOOR.open(executor.host.caller(DATA)).export(root / TRAINED)
    rows = {row["trajectory"]: row for row in read_trained(root / TRAINED)}
    found = trained(read_log(root / LOG), view.made)
    archived = Counter(row["consumed_version"] for row in rows.values())
    logged = {version: len(names) for version, names in found.items()}
    told = f"the archive has rows of versions {dict(archived)}, the log of {logged}"
    assert rows.keys() == {name for names in found.values() for name in names}, told
    for version, names in found.items():
        for row in map(rows.__getitem__, names):
            versions = row["versions"]
            assert view.mixes_versions or len(set(versions)) == 1
            assert row["consumed_version"] == version
            assert view.bound is None or version - 1 - min(versions) <= view.bound
            for held in set(versions) - weights.keys():
                weights[held] = known(held)
            drawn = zip(versions, row["tokens"], row["logprobs"], strict=True)
            observed = {position for begin, end in row["observations"] for position in range(begin, end)}
            prompt, begun = row["prompt"], 0
            for position, (held, token, logprob) in enumerate(drawn):
                if position in row["contexts"]:  # an engine gets the first token of a context as its prompt
                    prompt, begun = [token], position + 1
                made_by = None if position in observed else weights[held]
                assert made_by is None or (token, logprob) == fake_token(made_by, prompt, position - begun)


def trained(log: Iterable[Instant], counts: Callable[[int], bool]) -> dict[int, list[str]]:
    """The trajectories that each version was trained on, from the log alone.

    Args:
        log: the instants.
        counts: whether a version counts; a version that a fall-back undid does not.
    """
    ordered: dict[int, list[str]] = {}
    done: dict[int, list[str]] = {}
    for instant in log:
        for event in instant.events:
            if isinstance(event, c.Stepped):
                done[event.version] = ordered.pop(event.version)
            elif isinstance(event, c.Up) and event.role == TRAINER:
                ordered.clear()  # a restarted trainer has lost what was accumulated
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
