"""The stream generation service on the fake engine: every sample once, the right version of every token, bounded readers."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("safetensors")
pytest.importorskip("torch")

from tailrace.contracts import Sampling
from tailrace.rollout import (
    OptionError,
    ReplicaCrashedError,
    RequestError,
    ServiceDownError,
    StreamGenerationService,
    UpdateFailedError,
    UpdateRefusedError,
    VersionTimeoutError,
)
from tailrace.rollout.own_directory import left_directories
from tailrace.rollout.service import ReplicaProcess
from tailrace.rollout.service import handle as handles
from tailrace.rollout.service.book import Book
from tailrace.rollout.service.handle import in_thread
from tailrace.rollout.service.prompts import PromptReader
from tailrace.rollout.testing import TensorFakeEngine, build_fake_engine, fake_token, fake_weights, save_fake_model

DEADLINE_S = 60.0
STOP = 7
MAX_TOKENS = 20


@pytest.fixture
def model(tmp_path):
    return save_fake_model(tmp_path / "model")


def on_fakes(model, *, replicas=2, engine=None, **options):
    step_s = options.pop("step_s", 0.0)
    build = engine or (lambda path, given: TensorFakeEngine(step_s=step_s, max_num_seqs=given["max_num_seqs"]))
    options = {"options": {"max_num_seqs": 4}, "max_tokens": MAX_TOKENS, "flush_s": 0.002, **options}
    return StreamGenerationService(model, replicas, start=in_thread(build), **options)


def run(scenario):
    async def limited():
        async with asyncio.timeout(DEADLINE_S):
            await scenario()

    asyncio.run(limited())


def children(pid=None):
    """The processes that a process has started, this one if it is not given."""
    tasks = Path(f"/proc/{pid or 'self'}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def is_a_replica(pid):
    try:
        return b"replica_child" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def assert_right(sample, prompt, max_tokens=MAX_TOKENS):
    """Each token is the one of its own version's weights, and the response ends where it must."""
    pairs = [fake_token(100 + version, prompt, position) for position, version in enumerate(sample.versions)]
    assert list(sample.tokens) == [token for token, _ in pairs]
    assert list(sample.logprobs) == [logprob for _, logprob in pairs]
    assert list(sample.versions) == sorted(sample.versions)
    assert STOP not in sample.tokens[:-1]
    assert sample.finish == ("stop" if sample.tokens[-1] == STOP else "length")
    assert sample.finish == "stop" or len(sample.tokens) == max_tokens


def test_each_sample_comes_once_and_is_the_models(model):
    prompts = [(index, index + 1) for index in range(30)]

    async def scenario():
        async with on_fakes(model) as service:
            seen = [sample async for sample in service.generate(prompts, samples=3)]
            assert service.status()["samples"] == {"running": 0, "unread": 0, "left": 0}
            assert len(service._book) == 0
        assert sorted(sample.key for sample in seen) == [(p, s) for p in range(30) for s in range(3)]
        for sample in seen:
            assert_right(sample, prompts[sample.prompt])
            assert set(sample.versions) == {0}

    run(scenario)


def test_short_samples_come_before_long_ones_are_complete(model):
    lengths = {(index,): 3 if index else 60 for index in range(4)}

    async def scenario():
        async with on_fakes(model, replicas=1, step_s=0.002, max_tokens=60) as service:
            order = [sample.prompt async for sample in service.generate([*lengths], max_tokens=60)]
        ends = {
            prompt: next((at for at in range(60) if fake_token(100, prompt, at)[0] == STOP), 59) for prompt in lengths
        }
        assert [ends[(prompt,)] for prompt in order] == sorted(ends.values())

    run(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_updates_in_the_middle_leave_each_token_its_version(model, seed):
    draw = random.Random(seed)
    prompts = [(index, seed) for index in range(draw.randint(5, 25))]

    async def scenario():
        async with on_fakes(model, step_s=0.001, replicas=draw.randint(1, 3)) as service:
            seen = []

            async def read():
                seen.extend([sample async for sample in service.generate(prompts, samples=2)])

            async def update():
                for version in (1, 3, 4):
                    await asyncio.sleep(draw.choice([0, 0.005, 0.02]))
                    await service.update(fake_weights(100 + version), version)
                    assert service.version == version

            await asyncio.gather(read(), update())
            assert sorted(one.key for one in seen) == [(p, s) for p in range(len(prompts)) for s in range(2)]
            for sample in seen:
                assert_right(sample, prompts[sample.prompt])
            assert len(list(service.weights.directory.iterdir())) == 1  # older versions are gone
        assert not service.weights.directory.exists()

    run(scenario)


@pytest.mark.parametrize(
    ("weights", "version", "words"),
    [
        (fake_weights(1), 2, ["version 2", "above 2"]),
        (fake_weights(1), 1, ["version 1", "above 2"]),
        ({"w": fake_weights(1)["w"]}, 3, ["partial", "1 of 2", "'v'"]),
        ({**fake_weights(1), "x": fake_weights(1)["w"]}, 3, ["'x'", "does not have"]),
        ({**fake_weights(1), "v": fake_weights(1)["w"]}, 3, ["'v'", "[1]", "[2, 3]"]),
    ],
)
def test_an_older_or_partial_update_is_refused_and_changes_nothing(model, weights, version, words):
    async def scenario():
        async with on_fakes(model) as service:
            await service.update(fake_weights(102), 2)
            with pytest.raises(UpdateRefusedError) as error:
                await service.update(weights, version)
            assert all(word in str(error.value) for word in words), error.value
            assert service.version == 2
            [sample] = [one async for one in service.generate([(1, 2)])]
            assert set(sample.versions) == {2}
            assert_right(sample, (1, 2))

    run(scenario)


def test_an_update_that_one_replica_cannot_load_is_served_by_none(model):
    built = []

    class Choosy(TensorFakeEngine):
        def __init__(self, index):
            super().__init__(max_num_seqs=4, step_s=0.001)
            self.index = index

        def load_weights(self, weights):
            weights = list(weights)
            if self.index and int(dict(weights)["w"]) == 101:
                raise MemoryError("no room")
            super().load_weights(weights)

    def build(path, options):
        built.append(None)
        return Choosy(len(built) - 1)

    async def scenario():
        async with on_fakes(model, engine=build) as service:
            seen, prompts = [], [(index,) for index in range(40)]

            async def read():
                seen.extend([sample async for sample in service.generate(prompts)])

            async def update():
                await asyncio.sleep(0.01)
                with pytest.raises(UpdateFailedError, match=r"no room.*version 0 is served"):
                    await service.update(fake_weights(101), 1)

            await asyncio.gather(read(), update())
            assert service.version == 0
            assert {version for sample in seen for version in sample.versions} == {0}
            assert len(seen) == 40
            await service.update(fake_weights(102), 2)  # the next one is taken
            [sample] = [one async for one in service.generate([(1, 2)])]
            assert set(sample.versions) == {2}
        assert len(built) == 2

    run(scenario)


def test_a_slow_reader_stops_generation(model):
    async def scenario():
        async with on_fakes(model, ahead=6) as service:
            stream = service.generate([(index,) for index in range(50)])
            async with aclosing(stream):
                await anext(stream)
                for _ in range(20):
                    await asyncio.sleep(0.01)
                    samples = service.status()["samples"]
                    assert samples["running"] + samples["unread"] <= 6
                assert samples == {"running": 0, "unread": 6, "left": 49}
                other = [sample async for sample in service.generate([(1,)], samples=20)]  # it stops nobody else
                assert len(other) == 20
                assert len([sample async for sample in stream]) == 49

    run(scenario)


def test_who_leaves_stops_what_is_left(model):
    async def scenario():
        async with on_fakes(model, step_s=0.001) as service:
            async with aclosing(service.generate([(index,) for index in range(500)])) as stream:
                await anext(stream)
            status = service.status()
            assert status["samples"] == {"running": 0, "unread": 0, "left": 0}
            assert [one["running"] for one in status["replicas"]] == [0, 0]
            assert len(service._book) == 0
            assert len([sample async for sample in service.generate([(1,)], samples=9)]) == 9

    run(scenario)


def test_a_replica_that_dies_loses_no_token(model):
    made, kept = [], []

    class Mortal(TensorFakeEngine):
        def submit(self, requests):
            kept.extend(request.kept for request in requests)
            super().submit(requests)

        def step(self):
            if self is made[0] and any(len(tokens) > 5 for tokens in self._made.values()):
                raise MemoryError("gone")
            return super().step()

    def build(path, options):
        made.append(Mortal(max_num_seqs=4, step_s=0.001))
        return made[-1]

    async def scenario():
        prompts = [(index, 9) for index in range(40)]
        async with on_fakes(model, engine=build) as service:
            seen = [sample async for sample in service.generate(prompts)]
        assert sorted(sample.prompt for sample in seen) == list(range(40))
        for sample in seen:
            assert_right(sample, prompts[sample.prompt])
        assert len(made) == 3
        assert any(kept), "nothing went on from its tokens"

    run(scenario)


def test_a_service_without_a_replica_left_says_why(model):
    class Doomed(TensorFakeEngine):
        def step(self):
            raise MemoryError("every time")

    async def scenario():
        async with on_fakes(model, restarts=1, engine=lambda path, options: Doomed()) as service:
            with pytest.raises(ServiceDownError, match="every time"):
                [sample async for sample in service.generate([(1,)])]
            with pytest.raises(ServiceDownError, match="every time"):
                await service.update(fake_weights(1), 1)

    run(scenario)


def test_an_engine_that_does_not_load_is_the_error_of_the_start(model):
    def build(path, options):
        raise OptionError("no such device")

    async def scenario():
        with pytest.raises(OptionError, match="no such device"):
            async with on_fakes(model, engine=build):
                pass

    run(scenario)


def test_a_process_killed_in_the_middle_loses_nothing(model):
    pids = []

    def start(setup):
        handle = ReplicaProcess(setup, build_fake_engine)
        pids.append(handle.pid)
        return handle

    async def scenario():
        prompts = [(index, 3) for index in range(60)]
        options = {"max_num_seqs": 4, "step_s": 0.002}
        service = StreamGenerationService(model, options=options, max_tokens=MAX_TOKENS, start=start)
        async with service:
            seen = []
            async for sample in service.generate(prompts):
                seen.append(sample)
                if len(seen) == 3:
                    os.kill(pids[0], signal.SIGKILL)
                if len(seen) == 10:
                    await service.update(fake_weights(105), 5)
            assert sorted(sample.prompt for sample in seen) == list(range(60))
            for sample in seen:
                assert_right(sample, prompts[sample.prompt])
            assert {version for sample in seen for version in sample.versions} == {0, 5}
            while len(pids) < 3:
                await asyncio.sleep(0.01)
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    run(scenario)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="there is no SIGSTOP")
@pytest.mark.deep
def test_a_process_that_is_suspended_is_replaced(model, monkeypatch):
    """It says nothing any more, not even that it stands still, and its connection stays."""
    monkeypatch.setattr("tailrace.rollout.service.replicas._SILENT_S", 1.0)
    pids = []

    def start(setup):
        handle = ReplicaProcess(setup, build_fake_engine)
        pids.append(handle.pid)
        return handle

    async def scenario():
        prompts = [(index, 3) for index in range(60)]
        options = {"max_num_seqs": 4, "step_s": 0.002}
        service = StreamGenerationService(model, options=options, max_tokens=MAX_TOKENS, start=start, still_s=1.0)
        async with service:
            seen = []
            async for sample in service.generate(prompts):
                seen.append(sample)
                if len(seen) == 3:
                    os.kill(pids[0], signal.SIGSTOP)
            assert sorted(sample.prompt for sample in seen) == list(range(60))
            for sample in seen:
                assert_right(sample, prompts[sample.prompt])
            assert not lives(pids[0])

    run(scenario)


BROKEN_OFF = """
import os, struct, sys, time
from multiprocessing.connection import Connection

pipe = Connection(int(sys.argv[1]))
pipe.recv()
pipe.send(("up", None))
os.write(pipe.fileno(), struct.pack("!i", 1000) + b"the beginning of a message")
time.sleep(600)
"""


def test_a_process_that_stands_still_in_the_middle_of_a_message_is_given_up(tmp_path, monkeypatch):
    (tmp_path / "broken_off.py").write_text(BROKEN_OFF)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(handles, "_CHILD", "broken_off")
    monkeypatch.setattr(handles, "_MESSAGE_S", 1)
    weights: Any = SimpleNamespace(directory=tmp_path)
    setup = handles.ReplicaSetup("r0#1", tmp_path, "fake", {}, Book(), weights, 0.1, 60.0, DEADLINE_S)
    process = ReplicaProcess(setup)
    try:
        with pytest.raises(ReplicaCrashedError, match="'r0#1' broke off in the middle of a message and said nothing"):
            list(iter(lambda: process.events(0.5), None))
    finally:
        process.close(0.0)


def test_closing_ends_what_waits_for_a_version(model):
    """A request that waits for one, and the update that brings it, in the middle of its load."""
    loading, go = threading.Event(), threading.Event()

    class Slow(TensorFakeEngine):
        def load_weights(self, weights):
            weights = list(weights)
            if int(dict(weights)["w"]) == 101:
                loading.set()
                go.wait(DEADLINE_S)
            super().load_weights(weights)

    async def scenario():
        service = on_fakes(model, engine=lambda path, options: Slow(max_num_seqs=4))
        await service.start()

        async def read():
            return [one async for one in service.generate([(1, 2)], at_least_version=1)]

        reading, updating = asyncio.create_task(read()), asyncio.create_task(service.update(fake_weights(101), 1))
        await asyncio.to_thread(loading.wait, DEADLINE_S)
        closing = asyncio.create_task(service.close())
        with pytest.raises(ServiceDownError, match="is closed"):
            await reading
        with pytest.raises(UpdateFailedError, match="is closed; version 0 is served"):
            await updating
        assert not closing.done()
        go.set()
        await closing

    run(scenario)


def test_a_process_that_does_not_start_says_why(model):
    async def scenario():
        with pytest.raises(ReplicaCrashedError, match="engine option 'speed' is unknown"):
            async with StreamGenerationService(model, 1, engine="transformers", options={"speed": 3}):
                pass

    run(scenario)


def test_a_process_that_does_not_start_in_time_is_ended(model):
    async def scenario():
        with pytest.raises(ReplicaCrashedError, match=r"did not start within 0\.001 s"):
            async with StreamGenerationService(model, 1, engine="transformers", start_timeout_s=0.001):
                pass

    run(scenario)


def test_closing_does_not_wait_for_engines_that_load(model):
    pids, before = [], set(children())

    def start(setup):
        threading.Thread(target=watch, daemon=True).start()
        return ReplicaProcess(setup, build_fake_engine)

    def watch():
        while len(pids) < 2:
            pids[:] = set(children()) - before
            time.sleep(0.01)

    async def scenario():
        service = StreamGenerationService(model, options={"load_s": 600}, start=start)
        starting = [asyncio.create_task(service.start()) for _ in range(2)]
        while len(pids) < 2:
            await asyncio.sleep(0.01)
        assert service.weights.directory.is_dir()
        await service.close()
        assert not service.weights.directory.exists()
        for one in starting:
            with pytest.raises(ServiceDownError, match="closed"):
                await one
        assert not [pid for pid in pids if lives(pid)]

    run(scenario)


def test_an_engine_that_loads_does_not_outlive_its_service_whose_directory_is_known(model, tmp_path, monkeypatch):
    program = f"""
import asyncio, functools
from tailrace.rollout import StreamGenerationService
from tailrace.rollout.service import ReplicaProcess
from tailrace.rollout.testing import build_fake_engine

start = functools.partial(ReplicaProcess, build=build_fake_engine)
asyncio.run(StreamGenerationService({str(model)!r}, 1, options={{"load_s": 600}}, start=start).start())
"""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(scratch)}) as service:
        deadline = time.monotonic() + DEADLINE_S
        while not (found := [pid for pid in children(service.pid) if is_a_replica(pid)]):  # libraries start others, too
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(list(scratch.iterdir())) == 1
        assert left_directories() == []
        service.kill()
    while any(map(lives, found)):
        assert time.monotonic() < deadline, "it loads on"
        time.sleep(0.05)
    assert left_directories() == [*scratch.iterdir()] != []


def test_with_a_ranker_the_longest_start_first(model):
    async def scenario():
        started = []

        class Watched(TensorFakeEngine):
            def submit(self, requests):
                started.extend(request.prompt[0] for request in requests)
                super().submit(requests)

        class Ranker:
            def rank(self, prompts):
                return sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))

        service = on_fakes(model, replicas=1, ranker=Ranker(), engine=lambda path, options: Watched(max_num_seqs=4))
        service._reader.text = lambda prompts: ["x" * prompt[0] for prompt in prompts]
        async with service:
            assert len([sample async for sample in service.generate([(3,), (9,), (1,), (5,)])]) == 4
        assert started == [9, 5, 3, 1]

    run(scenario)


@pytest.mark.parametrize("answer", [[0, 0, 1], [0, 1], None, "raise"])
def test_a_ranker_that_fails_costs_the_order_alone(model, answer):
    class Ranker:
        def rank(self, prompts):
            if answer == "raise":
                raise ValueError("no features")
            return answer

    async def scenario():
        service = on_fakes(model, ranker=Ranker())
        service._reader.text = lambda prompts: [str(prompt) for prompt in prompts]
        async with service:
            assert len([sample async for sample in service.generate([(1,), (2,), (3,)])]) == 3
            assert service.status()["unranked"] == 3

    run(scenario)


def test_an_update_whose_service_closes_while_it_is_written_says_so(model):
    async def scenario():
        service, writing, go = on_fakes(model, replicas=1), threading.Event(), threading.Event()

        def stage():
            writing.set()
            go.wait(DEADLINE_S)
            service.weights.stage(fake_weights(101), 1)

        await service.start()
        updating = asyncio.create_task(service.update_with(stage, 1))
        await asyncio.to_thread(writing.wait, DEADLINE_S)
        await service.close()
        go.set()
        with pytest.raises(ServiceDownError, match="the service is closed"):
            await updating
        assert not service.weights.directory.exists()

    run(scenario)


def test_a_version_that_is_loaded_is_not_served_yet(model):
    """A request that waits for it does not start under the one before if no replica can load it."""
    loading, fail = threading.Event(), threading.Event()

    class Choosy(TensorFakeEngine):
        def load_weights(self, weights):
            weights = list(weights)
            if int(dict(weights)["w"]) == 101:
                loading.set()
                fail.wait(DEADLINE_S)
                raise MemoryError("no room")
            super().load_weights(weights)

    async def scenario():
        async with on_fakes(model, replicas=1, engine=lambda path, options: Choosy(max_num_seqs=4)) as service:
            updating = asyncio.create_task(service.update(fake_weights(101), 1))
            await asyncio.to_thread(loading.wait, DEADLINE_S)
            assert service.version == service.status()["version"] == 0

            async def read():
                return [one async for one in service.generate([(1, 2)], at_least_version=1, version_timeout_s=0.5)]

            reading = asyncio.create_task(read())
            await asyncio.sleep(0.05)
            fail.set()
            with pytest.raises(UpdateFailedError):
                await updating
            with pytest.raises(VersionTimeoutError):
                await reading

    try:
        run(scenario)
    finally:
        fail.set()


@pytest.mark.parametrize("ahead", [0, -1])
def test_a_window_without_room_is_refused(model, ahead):
    with pytest.raises(OptionError, match=f"ahead: found {ahead}, expected at least 1"):
        on_fakes(model, ahead=ahead)


def test_rankers_that_hang_hold_up_no_update(model):
    hang = threading.Event()

    class Ranker:
        def rank(self, prompts):
            hang.wait(DEADLINE_S)
            return range(len(prompts))

    async def scenario():
        service = on_fakes(model, ranker=Ranker(), rank_timeout_s=0.01)
        service._reader.text = lambda prompts: [str(prompt) for prompt in prompts]
        async with service:
            for _ in range(40):  # more than there are threads for an event loop's work
                assert len([sample async for sample in service.generate([(1,), (2,)], max_tokens=1)]) == 2
            async with asyncio.timeout(DEADLINE_S / 4):
                await service.update(fake_weights(101), 1)
            assert service.status()["unranked"] == 80
        hang.set()

    try:
        run(scenario)
    finally:
        hang.set()


def test_a_request_waits_for_the_version_that_it_wants(model):
    async def scenario():
        async with on_fakes(model) as service:
            with pytest.raises(VersionTimeoutError, match="version 4 did not come"):
                [one async for one in service.generate([(1,)], at_least_version=4, version_timeout_s=0.02)]

            async def read():
                return [one async for one in service.generate([(1, 2)], at_least_version=4)]

            reading = asyncio.create_task(read())
            await asyncio.sleep(0.01)
            await service.update(fake_weights(104), 4)
            [sample] = await reading
            assert set(sample.versions) == {4}

    run(scenario)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([()],), "prompt 0 is empty"),
        (([(1,), tuple(range(64))],), "prompt 1 has 64 tokens, expected fewer than the context of 64"),
        (([(1, 2), (3, 100_000)],), "prompt 1 has the token 100000, expected 0 to 99999"),
        (([(1, -1)],), "prompt 0 has the token -1, expected 0 to 99999"),
        ((["text"],), "tokenizer.json"),
        (([(1,)], 0), "samples=0"),
        (([(1,)], 1.5), "samples=1.5"),
        (([(1,)], True), "samples=True"),
        (([(1, 1.5)],), "prompt 0 has the token 1.5"),
        (([(1, None)],), "prompt 0 has the token None"),
        (([5],), "prompt 0: found int, expected text or token ids"),
        (("text",), "found one text, expected a list of prompts"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(model, arguments, words):
    async def scenario():
        async with on_fakes(model, replicas=1) as service:
            with pytest.raises(RequestError, match=words):
                [sample async for sample in service.generate(*arguments)]

    run(scenario)


@pytest.mark.parametrize("seed", range(8))
def test_a_reader_that_is_cut_gets_every_sample_once(model, seed):
    draw = random.Random(seed)

    async def scenario():
        async with on_fakes(model, ahead=draw.choice([1, 3, 50])) as service:
            prompts = [(index, seed) for index in range(draw.randint(1, 12))]
            stream = await service.open(prompts, 2)
            have = {}
            for _ in range(100):
                async for sample in stream.read():
                    if draw.random() < 0.1:  # read, and lost on the way
                        break
                    assert sample.key not in have
                    assert_right(sample, prompts[sample.prompt])
                    have[sample.key] = sample
                    if draw.random() < 0.2:
                        break
                if len(have) == 2 * len(prompts):
                    break
                # what it says that it has may also be less than it has: it lost the rest itself
                have = dict(draw.sample(sorted(have.items()), draw.randint(len(have) // 2, len(have))))
                stream.resume([*have])
            assert len(have) == 2 * len(prompts)
            service.cancel(stream)
            assert len(service._book) == 0

    run(scenario)


def test_a_reader_that_begins_after_another_has_resumed_takes_nothing(model):
    """Its connection is gone already: what it took, the other one would miss."""

    async def scenario():
        async with on_fakes(model) as service:
            stream = await service.open([(1, 2), (3, 4)], 2)
            late = stream.read()
            stream.resume(())
            later = stream.read()
            stream.resume(())
            assert len([sample async for sample in stream.read()]) == 4
            for reader in (late, later):
                with pytest.raises(ServiceDownError, match="another reader has resumed"):
                    await anext(reader)
            service.cancel(stream)

    run(scenario)


def test_an_update_for_which_there_is_no_room_leaves_nothing(model, monkeypatch):
    def full(tensors, path):
        Path(path).write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    async def scenario():
        async with on_fakes(model) as service:
            before = {path.name for path in service.weights.directory.iterdir()}
            with monkeypatch.context() as patched:
                patched.setattr("safetensors.torch.save_file", full)
                with pytest.raises(OSError, match="No space left"):
                    await service.update(fake_weights(101), 1)
            assert {path.name for path in service.weights.directory.iterdir()} == before
            await service.update(fake_weights(102), 2)
            assert service.version == 2

    run(scenario)


def test_the_sampling_of_a_request(model):
    async def scenario():
        seen = []

        class Watched(TensorFakeEngine):
            def submit(self, requests):
                seen.extend(request.sampling for request in requests)
                super().submit(requests)

        async with on_fakes(model, engine=lambda path, options: Watched(), temperature=0.5) as service:
            [sample] = [one async for one in service.generate([(1, 2)], max_tokens=5)]
            assert_right(sample, (1, 2), max_tokens=5)
        assert seen == [Sampling(0.5, 5, (STOP,))]

    run(scenario)


@pytest.mark.parametrize(
    ("settings", "before"),
    [(None, (2,)), ({"add_bos_token": False}, ()), ({"add_bos_token": True, "bos_token": "b"}, (1,))],
)
def test_text_stands_behind_what_the_tokenizer_puts_before_it(tmp_path, settings, before):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A <s>", special_tokens=[("<s>", 2)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    if settings is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    reader = PromptReader(tmp_path, 64)
    assert reader.encode(["a b", (0, 1)]) == [(*before, 0, 1), (0, 1)]  # ids are as they are given
    begun = tokenizer.decode(list(before), skip_special_tokens=False)
    assert reader.encode([f"{begun} a".strip()]) == [(*before, 0)]
    with pytest.raises(RequestError, match="prompt 0 is empty"):
        reader.encode([""])
