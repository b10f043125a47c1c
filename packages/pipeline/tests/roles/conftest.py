"""Roles by themselves: called as an executor calls them, on real files, relays and a real tiny trainer."""

import dataclasses
import threading
import time
import uuid

import pytest

from tailrace.paramserver import RelayProcess, new_token
from tailrace.pipeline.roles.prompts import DecodingMode
from tailrace.runtime.executor.seam import MemberDeadError, MemberStart

MODES = {"sampled": DecodingMode(1.0), "forced": DecodingMode(0.0, prefix="= ")}


class DirectCaller:
    """Calls a role of this process. While the role is None it is gone, and looked for again until the patience ends."""

    def __init__(self, role=None):
        self.role, self.calls = role, []

    def call(self, method, *arguments, timeout_s=60.0):
        deadline = time.monotonic() + timeout_s
        while (role := self.role) is None:
            if time.monotonic() > deadline:
                raise MemberDeadError("the data role is gone")
            time.sleep(0.01)
        self.calls.append((method, arguments))
        return getattr(role, method)(*arguments)


@pytest.fixture
def caller():
    return DirectCaller()


@pytest.fixture(scope="session")
def token():
    return new_token()


@pytest.fixture
def until():
    """Waits for a condition, and fails when it does not come true."""

    def wait(condition, what, timeout_s=30.0):
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
            time.sleep(0.02)
        return found

    return wait


@pytest.fixture
def gather(until):
    """Polls a role as an executor does, until it has said enough; returns all events."""

    def poll(role, enough, what, timeout_s=30.0):
        events = []

        def more():
            events.extend(role.events(0.05))
            return enough(events)

        until(more, what, timeout_s)
        return events

    return poll


@pytest.fixture
def spawn(token):
    """Starts relay processes."""
    relays = []

    def start(name=None):
        relays.append(RelayProcess.start(name or f"roles-{uuid.uuid4().hex}", token=token))
        return relays[-1]

    yield start
    for relay in relays:
        relay.kill()
    for relay in relays:
        RelayProcess.clear(relay.name)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny model with its tokenizer, prompts and held-out problems beside it."""
    from tailrace.reward.tasks import write_jsonl
    from tailrace.trainer.small_model import build_model
    from tailrace.trainer.tokenizer import train_tokenizer

    root = tmp_path_factory.mktemp("files")
    rows = [
        {"prompt": f"{a} + {b} = ", "answer": str(a + b), "verifier": "exact"} for a in range(10) for b in range(10)
    ]
    train_tokenizer([row["prompt"] for row in rows], root / "model", vocab_size=64)
    build_model(root / "model", vocab_size=64, hidden=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp=32, seed=0)
    write_jsonl(root / "train.jsonl", rows)
    write_jsonl(root / "held_out.jsonl", rows[50:60])
    return root / "model"


@pytest.fixture
def data_settings(tmp_path, model):
    from tailrace.pipeline.roles.data import DataSettings
    from tailrace.pipeline.roles.prompts import PromptSettings

    prompts = PromptSettings(
        tokenizer=model / "tokenizer.json",
        train=model.parent / "train.jsonl",
        held_out=model.parent / "held_out.jsonl",
        modes=MODES,
        shuffle_seed=None,
    )
    return DataSettings(tmp_path / "store.sqlite", prompts, "exact")


def split(settings, **given):
    """The settings of a role, and what the executor gives a member, from all of both."""
    names = {field.name for field in dataclasses.fields(settings)}
    mine = {name: value for name, value in given.items() if name in names}
    return settings(**mine), MemberStart(**{name: value for name, value in given.items() if name not in names})


@pytest.fixture
def split_settings():
    return split


class Batches:
    """The data role as the trainer sees it: any number of made-up batches of one group."""

    def __init__(self):
        from tailrace.trainer.testing import PackedData, make_experiences

        self._packed = PackedData(make_experiences(40, 4, vocab_size=64, seed=3))
        self.made, self.packed = self._packed.made, self._packed.packed
        self.consumed, self.rolled_back, self.trimmed = [], [], []
        self.failing = False
        self.go, self.reached = threading.Event(), threading.Event()
        self.go.set()
        self.mark = threading.Event()
        self.mark.set()

    def batch(self, number):
        return tuple(f"{number}.{sample}" for sample in range(4))

    def outlines(self, names):
        self.reached.set()
        assert self.go.wait(30)
        if self.failing:
            raise ZeroDivisionError("in the store")
        return self._packed.outlines(names)

    def consume(self, names, version):
        assert self.mark.wait(30)
        if self.failing:
            raise ZeroDivisionError("in the store")
        self.consumed.append((version, list(names)))

    def trim(self, version):
        self.trimmed.append(version)
        return 0 if self.trimmed.count(version) % 3 == 0 else 5

    def roll_back(self, version):
        self.rolled_back.append(version)


@pytest.fixture
def data():
    return Batches()


@pytest.fixture
def make_trainer(model, token, caller, data, tmp_path):
    from tailrace.pipeline.roles.trainer import TrainerRole, TrainerSettings
    from tailrace.trainer import TrainerConfig

    roles = []
    (tmp_path / "checkpoints").mkdir()
    caller.role = data

    def start(**options):
        for role in roles:  # a process has one
            role.close()
        roles.clear()
        arguments = {
            "model": model,
            "backend": "fsdp2",
            "config": TrainerConfig(lr=1e-2, device="cpu", threads=1),
            "store": caller,
            "token": token,
            "checkpoints": tmp_path / "checkpoints",
        }
        roles.append(TrainerRole(*split(TrainerSettings, **{**arguments, **options})))
        return roles[-1]

    start.made = roles
    yield start
    for role in roles:
        role.close()
