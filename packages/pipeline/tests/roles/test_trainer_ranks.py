"""Two ranks in two processes: each sends its own shards to the relay that the first one names; none gathers the others'."""

import os
import pickle
import subprocess
import sys

import pytest

from tailrace.contracts import Checkpoint, Durable, Publish, Published, Step, Stepped
from tailrace.paramserver import RelayReader
from tailrace.pipeline.roles.trainer import TrainerSettings
from tailrace.runtime.executor.seam import MemberStart
from tailrace.trainer import TrainerConfig, load_weights_file

RANK = """
import pathlib, pickle, sys, threading, time
from dataclasses import replace
from tailrace.contracts import Reveal
from tailrace.pipeline.roles.trainer import TrainerRole
from tailrace.trainer import TrainerConfig
from tailrace.trainer.testing import PackedData, make_experiences

class Data:
    def __init__(self):
        self.made = PackedData(make_experiences(8, 4, vocab_size=64, seed=3))
    def call(self, method, *arguments, timeout_s=60.0):
        if method == "trim":
            return 0  # nothing is left to forget
        return getattr(self.made, method)(*arguments) if hasattr(self.made, method) else None

class Second:  # what the first rank tells it goes through a file
    def __init__(self, path):
        self.path = path
    def call(self, method, address, timeout_s=60.0):
        assert method == "follow"
        self.path.with_suffix(".new").write_text(address)
        self.path.with_suffix(".new").rename(self.path)

arguments, before, held, after, path = pickle.loads(sys.stdin.buffer.read())
settings, start = arguments
followers = [Second(path)] if start.rank == 0 else []
role = TrainerRole(settings, replace(start, store=Data(), followers=followers, incarnation=3))
def gather(*_):
    raise AssertionError("nobody gathers weights")
role._backend.weights = gather
def listen():
    told = None
    while True:
        if path.exists() and (stamp := path.stat().st_mtime_ns) != told:
            told = stamp
            role.follow(path.read_text())
        time.sleep(0.01)
if start.rank == 1:
    threading.Thread(target=listen, daemon=True).start()
role.ready(None)
role.submit(before)
events, deadline = [], time.monotonic() + 60
def hear(version):
    while role._staged != version or role._worker.waiting:
        events.extend(role.events(0.02))
        assert time.monotonic() < deadline
hear(2)
time.sleep(1.0)  # for what is in the background
events += role.events(0.1)
role.adopt(held)
role.submit(after)
hear(7)
time.sleep(0.5)
role.submit([Reveal(3, 7)])
time.sleep(1.0)
events += role.events(0.1)
role.close()
sys.stdout.buffer.write(pickle.dumps(events))
"""


@pytest.mark.deep
def test_two_ranks_publish_together_what_none_of_them_holds(tmp_path, model, token, spawn):
    relay = spawn()
    relays = {"0": relay.address}
    batch = tuple((tuple(f"{group}.{sample}" for sample in range(4)),) for group in range(8))
    before = [
        Publish(1, 0),
        Publish(2, 0),
        Step(3, 1, batch[0]),
        Publish(4, 1, relays),
        Publish(5, 1),
        Step(6, 2, batch[1]),
    ]
    before += [Checkpoint(7, 2), Publish(8, 2, relays), Publish(9, 2, relays)]
    after = [Publish(1, 7, relays, sealed=True), Publish(2, 7, relays, sealed=True)]
    (tmp_path / "checkpoints").mkdir()
    ranks = []
    for rank in range(2):
        config = TrainerConfig(lr=1e-2, device="cpu", threads=1)
        settings = TrainerSettings(model, "fsdp2", config, tmp_path / "checkpoints")
        start = MemberStart(token=token, rank=rank, world_size=2, rendezvous=tmp_path / "rendezvous")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-c", RANK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        process.stdin.write(pickle.dumps(((settings, start), before, model, after, tmp_path / "master")))
        process.stdin.close()
        process.stdin = None
        ranks.append(process)
    try:
        first, second = (pickle.loads(process.communicate(timeout=120)[0]) for process in ranks)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert second == []  # only the first one answers
    assert [(e.version, e.answers) for e in first if isinstance(e, Stepped)] == [(1, 3), (2, 6)]
    assert [(e.version, e.answers, e.full) for e in first if isinstance(e, Durable)] == [(2, 7, True)]
    published = [e for e in first if isinstance(e, Published)]
    assert Published(2, answers=9) in published
    assert published[-1] == Published(7, answers=2)  # it was sealed
    expected = dict(load_weights_file(tmp_path / "checkpoints" / "2"))
    with RelayReader(relay.address, token=token) as reader:
        for version, weights in ((2, expected), (7, dict(load_weights_file(model)))):
            with reader.lease(version) as held:
                assert all((tensor == weights[name]).all() for name, tensor in held.items())
