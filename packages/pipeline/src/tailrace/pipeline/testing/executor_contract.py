"""The contract of executors: whatever hosts the members, the same run comes out, and what is killed is made good.

    class TestMyHost(ExecutorContract):
        def make_host(self):
            return MyHost()

Everything is real except the engine, which draws tokens as a function of the weights that it was given, the prompt and the
position: so each stored token can be checked against the checkpoint of the version that it claims.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tailrace import contracts as c
from tailrace.contracts.plugins import load
from tailrace.faulttol import Fault, parse_fault
from tailrace.pipeline.controller.controller import Controller
from tailrace.pipeline.controller.evaluations import EvaluationPlan
from tailrace.pipeline.executors.deployment import DEFAULT_FACTORIES, Deadlines, Deployment, RoleSpec
from tailrace.pipeline.executors.executor import Executor
from tailrace.pipeline.executors.host import Host, Placement
from tailrace.pipeline.roles.prompts import DecodingMode, SamplingTable
from tailrace.pipeline.roles.replica import ReplicaRole
from tailrace.pipeline.run.eventlog import EventLog, read_events
from tailrace.pipeline.spec import PipelineSpec
from tailrace.pipeline.testing.world import replay
from tailrace.rollout.testing import FakeEngine, fake_token

STEPS, GROUPS, SAMPLES = 5, 4, 4
MODES = {"sampled": DecodingMode(1.0), "greedy": DecodingMode(0.0)}


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


def make_spec(**changes: Any) -> PipelineSpec:
    """A small Laminar pipeline."""

    def policy(axis: str, name: str, **options: Any) -> Any:
        return load(f"tailrace.{axis}", name)(**options)

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
        "evaluation": EvaluationPlan(size=6, every=2, modes=("sampled",), last=("greedy",)),
    }
    return PipelineSpec(**{**fields, **changes})


def make_staleflow_spec(bound: int = 1) -> PipelineSpec:
    """A small StaleFlow pipeline: a strict bound under partial rollout, migration and surplus samples."""

    def policy(axis: str, name: str, **options: Any) -> Any:
        return load(f"tailrace.{axis}", name)(**options)

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
    vocabulary = train_tokenizer([row["prompt"] for row in rows], model, vocab_size=64)
    del vocabulary
    build_model(model, vocab_size=64, hidden=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp=32, seed=0)
    write_jsonl(root / "train.jsonl", rows)
    write_jsonl(root / "held_out.jsonl", rows[:50])
    return model


def make_deployment(
    root: Path, model: Path, *, relays: int = 1, name: str = "contract", mixed_versions: bool = False
) -> Deployment:
    """All roles of a run below a directory."""
    from tailrace.trainer import TrainerConfig

    (root / "checkpoints").mkdir(parents=True, exist_ok=True)
    prompts = {
        "tokenizer": model / "tokenizer.json",
        "train": model.parent / "train.jsonl",
        "held_out": model.parent / "held_out.jsonl",
        "modes": MODES,
        "shuffle_seed": 1,
    }
    one_thread = Placement(environment={"OMP_NUM_THREADS": "1"})
    config = TrainerConfig(lr=1e-2, device="cpu")
    trainer = {"model": model, "backend": "fsdp2", "config": config, "checkpoints": root / "checkpoints", "keep": 50}
    replica = {
        "engine": "fake",
        "model": model,
        "options": {},
        "sampling": SamplingTable(1.0, 120, (1, 2), MODES),
        "checkpoints": root / "checkpoints",
        "snapshot_s": 0.1,
    }
    return Deployment(
        name=f"tailrace-{name}",
        token="contract-suite-shared-token",  # noqa: S106 - nobody else is there
        data=RoleSpec(
            DEFAULT_FACTORIES["data"],
            {
                "store": root / "store.sqlite",
                "prompts": prompts,
                "verifier": "exact",
                "mixed_versions": mixed_versions,
            },
        ),
        scorer=RoleSpec(DEFAULT_FACTORIES["scorer"], {"verifier": "exact"}),
        trainer=RoleSpec(DEFAULT_FACTORIES["trainer"], trainer, one_thread),
        replica=RoleSpec(FakeReplicaRole, replica, one_thread),
        relays=relays,
        deadlines=Deadlines(start_s=120, step_s=60, publish_s=60, score_s=60, suspect_s=5, silent_s=30),
    )


class _Stop(Exception):  # noqa: N818 - it stands for the driver's death
    """The driver dies."""


class _DieAtStep:
    def __init__(self, step: int) -> None:
        self.step = step

    def observe(self, now: float, event: c.Event, commands: Sequence[c.Command], controller: Controller) -> None:
        del now, commands
        if isinstance(event, c.Stepped) and controller.learner.step == self.step:
            raise _Stop

    def tick(self, now: float, executor: Executor) -> None:
        del now, executor


class ExecutorContract:
    """Subclass it, provide `make_host`, and run it with pytest."""

    def make_host(self) -> Host:
        """A host of the kind that is tested."""
        raise AssertionError("a subclass provides the host")

    @pytest.fixture
    def model(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Files that all tests share."""
        return make_files(tmp_path_factory.mktemp("files"))

    def run(
        self,
        root: Path,
        model: Path,
        *,
        faults: Sequence[str] = (),
        relays: int = 1,
        spec: PipelineSpec | None = None,
    ) -> Controller:
        """One run, checked."""
        name = f"contract-{random.randrange(10**9)}"
        controller = Controller(spec or make_spec(), relays=relays)
        mixed = controller.ledger.mixes_versions
        deployment = make_deployment(root, model, relays=relays, name=name, mixed_versions=mixed)
        executor = Executor(self.make_host(), deployment)
        scripted: list[Fault] = [parse_fault(text) for text in faults]
        try:
            executor.open()
            with EventLog(root / "events.jsonl") as log:
                executor.run(controller, log, faults=scripted)
            self.check(controller, executor, root)
        finally:
            executor.close()
        return controller

    def check(self, controller: Controller, executor: Executor, root: Path) -> None:
        """Everything admitted was trained exactly once, and each token is its version's."""
        from tailrace.trainer import load_weights_file

        counts = controller.ledger.counts
        assert controller.learner.step == STEPS
        assert counts.admitted == counts.trained + counts.filtered
        assert counts.trained == STEPS * GROUPS
        assert controller.fleet.contradictions == 0
        audit = executor.data.call("audit")
        assert audit["consumed"] == STEPS * GROUPS * SAMPLES
        assert not audit["consumed_twice"]
        assert not audit["inconsistent"]
        weights: dict[int, int] = {}
        for version, names in self.trained(controller, root).items():
            for experience in executor.data.call("experiences", names):
                assert controller.ledger.mixes_versions or len({s.version for s in experience.segments}) == 1
                bound = controller.gate.bound
                assert bound is None or version - 1 - experience.oldest_version <= bound
                versions = [segment.version for segment in experience.segments for _ in segment.tokens]
                for held in set(versions) - weights.keys():
                    weights[held] = fingerprint(load_weights_file(root / "checkpoints" / str(held)))
                expected = [fake_token(weights[held], experience.prompt, i) for i, held in enumerate(versions)]
                assert list(experience.tokens) == [token for token, _ in expected]
                assert list(experience.logprobs) == [logprob for _, logprob in expected]
        log = list(read_events(root / "events.jsonl"))
        again = Controller(controller.spec, relays=controller.relays)
        replay(again, log)
        assert again.state() == controller.state()

    def trained(self, controller: Controller, root: Path) -> dict[int, list[str]]:
        """What each version that counts was trained on, from the log."""
        again = Controller(controller.spec, relays=controller.relays)
        ordered: dict[int, list[str]] = {}
        done: dict[int, list[str]] = {}
        for now, event in read_events(root / "events.jsonl"):
            if isinstance(event, c.Stepped):
                done[event.version] = ordered.pop(event.version)
            elif isinstance(event, c.Up) and event.role == "trainer":
                ordered.clear()  # a new one has forgotten what was accumulated
            for command in again.handle(event, now):
                if isinstance(command, c.Step):
                    last = [name for batch in command.mini_batches for name in batch]
                    ordered[command.version] = ordered.get(command.version, []) + last
                elif isinstance(command, c.Accumulate):
                    ordered[command.version] = ordered.get(command.version, []) + list(command.trajectories)
        return {version: names for version, names in done.items() if version in controller.learner.batches}

    def test_trains_every_prompt_once(self, tmp_path: Path, model: Path) -> None:
        """The plain run; held-out accuracy is measured on the way."""
        controller = self.run(tmp_path, model)
        assert controller.replica_restarts == 0
        assert {result.mode for result in controller.evaluations.results} == {"sampled", "greedy"}

    def test_a_killed_replica_is_replaced_and_nothing_is_lost(self, tmp_path: Path, model: Path) -> None:
        """SIGKILL where members are processes; training goes on."""
        controller = self.run(tmp_path, model, faults=["replica:r1@step1", "replica@step3"])
        assert controller.replica_restarts == 2

    def test_a_killed_trainer_goes_on_from_its_checkpoint(self, tmp_path: Path, model: Path) -> None:
        """What it had trained on since is trained on again, once."""
        controller = self.run(tmp_path, model, faults=["trainer@step2"])
        assert controller.learner.step == STEPS

    def test_a_killed_relay_is_replaced_and_gets_the_newest_version(self, tmp_path: Path, model: Path) -> None:
        """Replicas pull from the new one."""
        self.run(tmp_path, model, faults=["relay@step1"])

    def test_two_relays_form_a_chain(self, tmp_path: Path, model: Path) -> None:
        """Replicas read from both."""
        self.run(tmp_path, model, relays=2)

    def test_a_driver_that_died_goes_on_from_its_log(self, tmp_path: Path, model: Path) -> None:
        """The log rebuilds the controller; the stores say what survived."""
        from tailrace.trainer import checkpoints

        name = f"contract-{random.randrange(10**9)}"
        executor = Executor(self.make_host(), make_deployment(tmp_path, model, name=name), observers=[_DieAtStep(3)])
        executor.open()
        with EventLog(tmp_path / "events.jsonl") as log, pytest.raises(_Stop):
            executor.run(Controller(make_spec()), log)
        executor.host.close()
        controller = Controller(make_spec())
        log_before = list(read_events(tmp_path / "events.jsonl"))
        replay(controller, log_before)
        resumed = Executor(self.make_host(), make_deployment(tmp_path, model, name=name), started_s=log_before[-1][0])
        try:
            resumed.open()
            durable = max(v for v in checkpoints(tmp_path / "checkpoints") if v in controller.learner.batches)
            resumed.data.call("roll_back", durable)
            held = resumed.data.call("recover")
            with EventLog(tmp_path / "events.jsonl") as log:
                resumed.run(controller, log, first=c.Resumed(durable, held.finished, held.partial))
            self.check(controller, resumed, tmp_path)
        finally:
            resumed.close()

    def test_parts_of_a_batch_are_trained_on_before_it_is_complete(self, tmp_path: Path, model: Path) -> None:
        """Each part by itself, all of it consumed with the last; a trainer that dies has forgotten what it had of a batch."""
        streamed = load("tailrace.training", "streamed")(parts=GROUPS)
        controller = self.run(tmp_path, model, spec=make_spec(training=streamed), faults=["trainer@step2"])
        assert controller.learner.step == STEPS
        log = [event for _, event in read_events(tmp_path / "events.jsonl")]
        parts = [event for event in log if isinstance(event, c.Accumulated)]
        assert len(parts) >= STEPS * (GROUPS - 1)
        for stepped in (event for event in log if isinstance(event, c.Stepped)):
            assert stepped.metrics["trajectories"] == GROUPS * SAMPLES

    def test_tokens_and_versions_line_up_under_partial_rollout(self, tmp_path: Path, model: Path) -> None:
        """Interrupted, continued under newer weights and migrated, within the bound; a replica and the trainer die."""
        controller = self.run(tmp_path, model, spec=make_staleflow_spec(), faults=["replica@step1", "trainer@step3"])
        assert controller.coordinator.interrupting_pulls > 0
        assert controller.ledger.counts.resumed_on_newer > 0
        assert controller.replica_restarts == 1
