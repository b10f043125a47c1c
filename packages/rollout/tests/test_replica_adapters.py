"""A replica that generates with several versions of an adapter: a pull interrupts only what it has no room for."""

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tailrace.contracts import Finished, Interrupted
from tailrace.rollout.own_directory import ADAPTER, scratch
from tailrace.rollout.testing import FakeEngine, MemorySource, fake_token

from .replica_harness import Adapters, Harness, prompts, route


class Held(FakeEngine):
    """It generates only while it may."""

    def __init__(self, adapters):
        super().__init__(max_num_seqs=16, adapters=adapters)
        self.load_weights([("w", 100)])
        self.goes = threading.Event()

    def step(self):
        if self.goes.is_set():
            return super().step()
        time.sleep(0.001)
        return []


def drawn_by_its_version(h, name):
    kept = h.source.kept[name]
    return kept.tokens == [
        fake_token(100 + 10 * version, kept.prompt, place)[0] for place, version in enumerate(kept.versions)
    ]


def test_a_pull_of_an_adapter_lets_what_runs_end_under_its_own_version():
    weights = Adapters({version: {"a": version} for version in range(1, 4)})
    with Harness(MemorySource(prompts(3)), engine=Held(2), weights=weights, versions=2) as h:
        for seq in (1, 3, 5):
            h.pull((seq + 1) // 2, seq)
            h.worker.submit(route(seq + 1, str(seq // 2)))
        (event,) = h.of(Interrupted)
        assert event.trajectory == "0", "there is room for one version beside the new one"
        h.engine.goes.set()
        h.until("the others to finish", lambda: len(h.of(Finished)) == 2)
        assert [set(h.source.kept[name].versions) for name in ("1", "2")] == [{2}, {3}]
        assert drawn_by_its_version(h, "1")
        assert drawn_by_its_version(h, "2")


@pytest.mark.parametrize(("broken", "ends"), [({"b": 1}, set()), ({"whole": -777}, {"0"})])
def test_what_runs_goes_on_after_a_pull_that_changed_nothing_and_ends_with_its_weights(broken, ends):
    weights = Adapters({1: {"a": 1}, 2: broken})
    if not ends:
        del weights.versions[2]
    with Harness(MemorySource(prompts(1)), engine=Held(3), weights=weights, versions=3) as h:
        h.pull(1, 1)
        h.worker.submit(route(2, "0"))
        h.pull(2, 3)
        assert {event.trajectory for event in h.of(Interrupted)} == ends
        h.engine.goes.set()
        if not ends:
            h.until("it to finish", lambda: h.of(Finished))
            assert set(h.source.kept["0"].versions) == {1}
            assert drawn_by_its_version(h, "0")


@pytest.mark.parametrize("seed", range(6))
def test_each_token_tells_the_version_that_drew_it_whatever_is_pulled_beside(seed):
    draw = random.Random(seed)
    most = draw.choice([1, 2, 3])
    weights = Adapters({version: {"a": version} for version in range(1, 30)})
    with Harness(MemorySource(prompts(12)), engine=Held(most), weights=weights, versions=most) as h:
        numbers, version, fresh = iter(range(1, 1000)), 1, [str(place) for place in range(12)]
        h.engine.goes.set()
        h.pull(version, next(numbers))
        while True:
            ended = {event.trajectory for event in h.of(Finished)}
            left = {event.trajectory for event in h.seen if isinstance(event, Interrupted)} - ended
            h.seen = [event for event in h.seen if not isinstance(event, Interrupted)]
            if len(ended) == 12:
                break
            names = sorted(left) + [fresh.pop() for _ in range(min(len(fresh), draw.randint(0, 3)))]
            if names:
                h.worker.submit(route(next(numbers), *names))
            if version < 29 and draw.random() < 0.5:
                version += 1
                h.pull(version, next(numbers))
            h.collect(0.002)
        assert all(drawn_by_its_version(h, str(place)) for place in range(12))
        if most > 1:
            assert any(len(kept.tokens) == 20 and len(set(kept.versions)) == 1 for kept in h.source.kept.values())


def test_what_a_replica_that_is_killed_was_loading_goes_with_the_next_one(tmp_path, monkeypatch):
    loads = """
import pathlib, sys, time
from tailrace.rollout import own_directory
own_directory.SHARED = pathlib.Path(sys.argv[1])
with own_directory.scratch(own_directory.ADAPTER) as folder:
    (folder / "adapter_model.safetensors").write_text("half")
    print(folder, flush=True)
    time.sleep(120)
"""
    monkeypatch.setattr("tailrace.rollout.own_directory.SHARED", tmp_path)
    replicas = [
        subprocess.Popen([sys.executable, "-c", loads, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        killed, alive = (Path(replica.stdout.readline().strip()) for replica in replicas)
        replicas[0].kill()
        replicas[0].wait(10)
        assert killed.exists()
        with scratch(ADAPTER) as own:
            assert {*tmp_path.iterdir()} == {own, alive}
        assert [*tmp_path.iterdir()] == [alive]
    finally:
        for replica in replicas:
            replica.kill()
            replica.communicate()
