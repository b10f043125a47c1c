"""Checkpoints in the memory of another machine, in real processes that are really killed; machines are names here."""

import shutil
import uuid

import pytest

from tailrace.contracts import Checkpoint, Durable, Step
from tailrace.pipeline.roles import relay as relay_module
from tailrace.pipeline.roles import trainer as trainer_module
from tailrace.pipeline.roles.peer_memory import PeerMemory
from tailrace.pipeline.roles.relay import RelayRole, RelaySettings
from tailrace.runtime.errors import CheckpointUnusableError, DeadlineError
from tailrace.runtime.executor.doors import Ready
from tailrace.runtime.executor.seam import MemberStart
from tailrace.trainer.checkpoint_files import verify


class Machine:
    """A relay role that says it stands on a machine of this name; a caller of itself."""

    def __init__(self, name, token, patch):
        self.name, self.token, self._patch = name, token, patch
        self.role = RelayRole(RelaySettings(), MemberStart(name=f"peer-{uuid.uuid4().hex}", token=token))

    def call(self, method, *arguments, timeout_s=60.0):
        self._patch.setattr(relay_module, "machine", lambda: self.name)
        return getattr(self.role, method)(*arguments)

    def lose_memory(self):
        self.role._memory.kill()


@pytest.fixture
def machines(token, monkeypatch):
    found = [Machine(name, token, monkeypatch) for name in ("", "second", "third")]
    yield found
    for one in found:
        one.role.close()


@pytest.fixture
def saved(make_trainer, data, gather):
    """Trains and saves versions 1 to `count`; returns the trainer."""

    def run(machines, count=1, **options):
        role = make_trainer(holders=machines, **options)
        role.ready(None)
        for version in range(1, count + 1):
            role.submit(
                [Step(version, version, (data.batch(version),)), Checkpoint(10 + version, version, (version - 1,))]
            )
            gather(role, lambda events: any(isinstance(event, Durable) for event in events), f"checkpoint {version}")
        return role

    return run


def held(machine):
    """Versions in the memory of a machine."""
    from tailrace.paramserver import RelayReader

    if machine.role._memory is None:
        return None
    with RelayReader(machine.role._memory.address, token=machine.token) as reader:
        return reader.versions()


def weights(role):
    return {name: tensor.clone() for name, tensor in role._backend.weights()}


def same(left, right):
    return left.keys() == right.keys() and all((left[name] == right[name]).all() for name in left)


def test_a_durable_checkpoint_is_on_disk_and_on_one_other_machine(machines, saved, tmp_path):
    saved(machines, count=3)
    assert [held(machine) for machine in machines] == [
        None,
        [2, 3],
        None,
    ]  # that of the trainer's own machine holds none
    for version in (2, 3):
        verify(tmp_path / "checkpoints" / str(version))


@pytest.mark.parametrize(
    "loss", ["gone", *(pytest.param(each, marks=pytest.mark.deep) for each in ("damaged", "cut short"))]
)
def test_what_the_disk_lost_comes_back_from_the_other_machine(machines, saved, make_trainer, model, tmp_path, loss):
    model = shutil.copytree(model, tmp_path / "model")
    (model / "merges.txt").touch()  # an empty file, as some tokenizers have
    role = saved(machines, count=2, model=model)
    expected, directory = weights(role), tmp_path / "checkpoints" / "2"
    victim = directory / "model.safetensors"
    if loss == "gone":
        shutil.rmtree(tmp_path / "checkpoints")
        (tmp_path / "checkpoints").mkdir()
    elif loss == "damaged":
        victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    else:
        victim.write_bytes(victim.read_bytes()[:-1])
    role = make_trainer(holders=machines, model=model)
    assert role.ready(2) == Ready(2)
    assert same(weights(role), expected)
    verify(directory)


def test_a_trainer_that_comes_to_the_machine_that_holds_it_finds_it(
    machines, saved, make_trainer, tmp_path, monkeypatch
):
    expected = weights(saved(machines))
    shutil.rmtree(tmp_path / "checkpoints" / "1")
    monkeypatch.setattr(trainer_module, "machine", lambda: "second")
    role = make_trainer(holders=machines)
    role.ready(1)
    assert same(weights(role), expected)


def test_the_disk_alone_is_enough_if_the_other_machine_is_lost(machines, saved, make_trainer):
    expected = weights(saved(machines))
    machines[1].lose_memory()
    role = make_trainer(holders=machines)
    role.ready(1)
    assert same(weights(role), expected)


@pytest.mark.deep
def test_with_both_lost_it_says_so(machines, saved, make_trainer, tmp_path):
    saved(machines)
    machines[1].lose_memory()
    shutil.rmtree(tmp_path / "checkpoints" / "1")
    role = make_trainer(holders=machines)
    with pytest.raises(CheckpointUnusableError, match="found no copy of checkpoint 1 in the memory of any machine"):
        role.ready(1)


def test_the_next_machine_takes_it_if_the_first_is_lost_and_one_that_came_back_again(machines, saved, data, gather):
    role = saved(machines)
    machines[1].role.close()  # and asks of it fail from now on

    def gone(method, *arguments, timeout_s=60.0):
        raise DeadlineError("it does not answer")

    machines[1].call = gone
    role.submit([Step(2, 2, (data.batch(2),)), Checkpoint(12, 2, (1,))])
    gather(role, lambda events: any(isinstance(event, Durable) for event in events), "the next checkpoint")
    assert held(machines[2]) == [2]


def test_without_another_machine_it_is_told_at_the_deadline(machines, saved, token, tmp_path):
    saved(machines)
    for known in ([], machines[:1]):
        with pytest.raises(
            DeadlineError, match="another machine to hold the checkpoint of version 1: no other machine"
        ):
            PeerMemory(known, token, "").keep(tmp_path / "checkpoints" / "1", 1, 0.3)
