"""The trainer role and real relays in real processes, really killed and suspended: training goes on whatever they do."""

import itertools
import os
import signal
import time

import pytest

from tailrace.contracts import Publish, Published, Reveal, Step, Stepped
from tailrace.paramserver import RelayReader
from tailrace.trainer import load_weights_file


class Run:
    """Steps and publishes as a controller would, and keeps what the trainer said."""

    def __init__(self, role, data, until):
        self.role, self.data, self.until = role, data, until
        self.events, self.version, self.seqs = [], 0, itertools.count(1)
        role.ready(None)

    def tell(self, *commands):
        self.role.submit(list(commands))

    def publish(self, relays, version=None):
        seq = next(self.seqs)
        self.tell(Publish(seq, self.version if version is None else version, {r.name: r.address for r in relays}))
        return seq

    def step(self, relays):
        """One step, with its publication; returns the number of that once the step is over."""
        self.version += 1
        self.tell(Step(next(self.seqs), self.version, (self.data.batch(self.version),)))
        seq = self.publish(relays)
        self.hear(lambda: self.said(Stepped)[-1:] and self.said(Stepped)[-1].version == self.version, "a step")
        return seq

    def hear(self, condition, what, timeout_s=30.0):
        def heard():
            self.events += self.role.events(0.02)
            return condition()

        self.until(heard, what, timeout_s)

    def said(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def published(self, seq):
        self.hear(lambda: Published(self.version, answers=seq) in self.events, f"version {self.version} to be out")


@pytest.fixture
def run(make_trainer, data, until):
    return Run(make_trainer(), data, until)


@pytest.fixture
def check(token, run):
    """Asserts that a relay shows the newest version with the weights that the trainer holds."""

    def same(relay):
        expected = dict(run.role._backend.weights())
        with RelayReader(relay.address, token=token) as reader, reader.lease(run.version, timeout_s=30) as held:
            for name, tensor in held.items():
                assert (tensor == expected[name]).all(), name

    return same


def test_training_goes_on_without_a_relay_and_the_newest_version_is_out_once_there_is_one(run, spawn, check):
    run.publish([])
    for _ in range(4):
        run.step([])
    assert run.said(Published) == []
    relay = spawn()
    seq = run.publish([relay])  # offered again
    run.published(seq)
    check(relay)
    assert run.said(Published) == [Published(4, answers=seq)]


def test_an_offer_to_a_relay_that_has_it_is_answered_too(run, spawn, check):
    first, second = spawn(), spawn()
    run.published(run.publish([first]))
    run.published(run.publish([first, second]))
    check(second)
    run.published(run.publish([second]))
    run.published(run.publish([second, first]))
    check(first)


RARELY = [pytest.param(victims, marks=pytest.mark.deep) for victims in ((1,), (2,), (0, 1), (1, 2))]


@pytest.mark.parametrize("victims", [(0,), (0, 1, 2), *RARELY])
@pytest.mark.cases(2)
def test_relays_killed_cost_no_step(run, spawn, check, victims):
    relays = [spawn() for _ in range(3)]
    run.publish(relays)
    run.published(run.step(relays))
    for victim in victims:
        relays[victim].kill()
    began = time.monotonic()
    for _ in range(3):
        run.step(relays)  # the executor has not noticed yet
    assert time.monotonic() - began < 10.0
    living = [relay for index, relay in enumerate(relays) if index not in victims]
    seq = run.step(living)  # it has
    if living:
        run.published(seq)
    fresh = [spawn(relays[victim].name) for victim in victims]
    again = run.publish([*living, *fresh])
    run.published(again)
    for relay in (*living, *fresh):
        check(relay)
    assert [event.version for event in run.said(Stepped)] == [1, 2, 3, 4, 5]


def test_the_master_killed_twice_while_a_publish_is_under_way(run, spawn, check):
    relays = {relay.name: relay for relay in (spawn() for _ in range(3))}
    run.publish([*relays.values()])
    run.published(run.step([*relays.values()]))
    for _ in range(2):
        master = next(r for r in relays.values() if r.address == run.role._publishing._group.master)
        run.version += 1
        run.tell(Step(next(run.seqs), run.version, (run.data.batch(run.version),)))
        run.publish([*relays.values()])
        master.kill()
        run.hear(lambda: run.said(Stepped)[-1].version == run.version, "the step")
        relays[master.name] = spawn(master.name)
        run.published(run.publish([*relays.values()]))
    for relay in relays.values():
        check(relay)


def test_a_suspended_master_is_passed_over(run, spawn, check):
    relays = [spawn() for _ in range(2)]
    run.published(run.publish(relays))
    os.kill(relays[0].pid, signal.SIGSTOP)
    began = time.monotonic()
    seq = run.step(relays)
    assert time.monotonic() - began < 5.0
    run.published(seq)  # on the other one: nobody has to be told
    check(relays[1])
    os.kill(relays[0].pid, signal.SIGCONT)
    check(relays[0])  # and it catches up


def test_another_model_is_published_instead(run, spawn, check, model, token):
    relay = spawn()
    run.step([])
    run.published(run.publish([relay]))
    run.role.adopt(model)
    run.version = 7  # another controller: its versions are further, and its numbers begin anew
    run.seqs = itertools.count(1)
    seq = run.publish([relay])
    run.published(seq)
    expected = dict(load_weights_file(model))
    with RelayReader(relay.address, token=token) as reader, reader.lease(7) as held:
        assert all((tensor == expected[name]).all() for name, tensor in held.items())
    assert run.said(Published)[-1] == Published(7, answers=seq)


def test_one_that_starts_in_the_middle_of_the_controls_undoes_nothing(make_trainer, data, until, spawn, model, token):
    role = make_trainer(held=model)
    run = Run(role, data, until)
    assert data.rolled_back == []
    relay = spawn()
    run.version = 9
    run.published(run.publish([relay]))
    expected = dict(load_weights_file(model))
    with RelayReader(relay.address, token=token) as reader, reader.lease(9) as held:
        assert all((tensor == expected[name]).all() for name, tensor in held.items())


def test_weights_that_no_relay_can_take_break_it(run, spawn, token, monkeypatch):
    from tailrace.paramserver import ManifestInvalid, NotEnoughSharedMemory

    relay = spawn()
    run.publish([relay])
    run.role._publishing._on_published(0, NotEnoughSharedMemory("a small /dev/shm"))
    with pytest.raises(NotEnoughSharedMemory, match="small"):
        run.hear(lambda: False, "the end")
    assert issubclass(ManifestInvalid, ValueError)


@pytest.mark.parametrize(("tp", "dtype"), [(2, "float32"), (1, "bfloat16")])
def test_ranks_of_megatron_publish_a_control_whole(tmp_path, tp, dtype):
    """Queries, keys and values are one buffer of a rank, gate and up another: a buffer is told once all of it was read."""
    import json
    from types import SimpleNamespace
    from typing import Any

    import torch

    from tailrace.pipeline.roles.rank_publisher import Shards
    from tailrace.pipeline.roles.transfer import WeightTransfer
    from tailrace.trainer.megatron_weights import gpt_layout
    from tailrace.trainer.small_model import build_model

    model = build_model(tmp_path, vocab_size=31, hidden=16, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=24)
    layout = gpt_layout(json.loads((model / "config.json").read_text()), tp, 2, "float32")
    backend: Any = SimpleNamespace(layout=lambda: layout.in_dtypes(lambda _: dtype))
    whole = {name: torch.full(tensor.shape, torch.nan) for name, tensor in load_weights_file(model)}
    for rank in range(2):
        told = list(Shards(backend, WeightTransfer(), rank, 1).weights(model))
        assert len(told) == len(layout.shards[f"rank{rank}"].buffers)
        for buffer in layout.shards[f"rank{rank}"].buffers:
            found = dict(told)[buffer.name]
            assert (found.shape, found.dtype) == (buffer.shape, getattr(torch, dtype))
            for piece in buffer.pieces:
                at = [
                    slice(first, first + end - begin) for first, (begin, end) in zip(piece.at, piece.box, strict=True)
                ]
                whole[piece.tensor][tuple(slice(*each) for each in piece.box)] = found[tuple(at)].float()
    for name, tensor in load_weights_file(model):
        assert torch.equal(whole[name], tensor.to(getattr(torch, dtype)).float()), name


def test_a_reveal_that_breaks_is_no_silence(run, monkeypatch):
    def breaks(version):
        raise ValueError(f"no such state of version {version}")

    monkeypatch.setattr(run.role._publishing._rank, "reveal", breaks)
    run.tell(Reveal(1, 7))
    with pytest.raises(ValueError, match="no such state of version 7"):
        run.hear(lambda: False, "the error")
