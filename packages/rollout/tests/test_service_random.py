"""All that can happen to the service at once, by seeds: replicas die, stand still, do not load, start again; updates fail or
are cancelled; readers are cut, come back or leave. Each sample comes once, whole, and under versions that were served."""

import asyncio
import itertools
import random
import time

import pytest

pytest.importorskip("safetensors")
pytest.importorskip("torch")

from tailrace.rollout import UpdateFailedError
from tailrace.rollout.testing import TensorFakeEngine, fake_weights, save_fake_model

from .test_service import DEADLINE_S, assert_right, on_fakes, run

STILL_S = 0.5


class Frail(TensorFakeEngine):
    """Dies in a step, stands still in it, or does not load a version after the first, as often as is drawn."""

    def __init__(self, seed, dies, stalls, refuses):
        super().__init__(max_num_seqs=4, step_s=0.0005)
        self._draw, self._dies, self._stalls, self._refuses = random.Random(seed), dies, stalls, refuses

    def step(self):
        if self._draw.random() < self._dies:
            raise MemoryError("gone")
        if self._draw.random() < self._stalls:
            time.sleep(2 * STILL_S)  # it is given up meanwhile, and goes on all the same
        return super().step()

    def load_weights(self, weights):
        weights = list(weights)
        if int(dict(weights)["w"]) > 100 and self._draw.random() < self._refuses:
            raise MemoryError("no room")
        super().load_weights(weights)


async def read(service, draw, reader):
    """A reader that may leave, and that may be cut and come back; it has each sample once, and each is right."""
    prompts = [(reader, index) for index in range(draw.randint(1, 15))]
    samples, leaves, cut = draw.randint(1, 3), draw.random() < 0.2, draw.choice([0.0, 0.05, 0.3])
    stream, have, mislaid = await service.open(prompts, samples), {}, {}
    while len(have) < samples * len(prompts):
        async for sample in stream.read():
            assert sample.key not in have
            assert_right(sample, prompts[sample.prompt])
            have[sample.key] = sample
            if draw.random() < max(cut, 0.1 * leaves):
                break
        if leaves and draw.random() < 0.3:
            break
        have = {**mislaid, **have}  # it may find what it said it had not, which runs again meanwhile
        mislaid = {
            key: have.pop(key) for key in draw.sample(sorted(have), draw.randint(0, len(have)))[: draw.choice([0, 2])]
        }
        stream.resume([*have])
    service.cancel(stream)
    return [version for sample in have.values() for version in sample.versions]


async def update(service, draw, served):
    """Updates, of which some fail and some are cancelled while replicas load; `served` gets what may be seen in tokens."""
    for version in range(1, draw.randint(2, 6)):
        await asyncio.sleep(draw.choice([0.0, 0.005, 0.03]))
        try:
            async with asyncio.timeout(draw.choice([None, None, 0.003])):
                await service.update(fake_weights(100 + version), version)
        except UpdateFailedError:
            assert service.version != version
            continue
        except TimeoutError:  # it goes on by itself, and succeeds or fails
            pass
        else:
            assert service.version == version
        served.add(version)


@pytest.mark.parametrize("seed", range(16))
def test_everything_at_once(tmp_path, seed):
    draw, numbers = random.Random(seed), itertools.count()
    dies, stalls, refuses = draw.choice([0.0, 0.001, 0.01]), draw.choice([0.0, 0.002]), draw.choice([0.0, 0.1, 0.4])
    options = {"replicas": draw.randint(1, 4), "ahead": draw.choice([1, 5, 50]), "restarts": 10**6, "still_s": STILL_S}
    print("seed", seed, "dies", dies, "stalls", stalls, "refuses", refuses, options)

    async def scenario():
        model = save_fake_model(tmp_path / "model")
        engine = lambda path, given: Frail(1000 * seed + next(numbers), dies, stalls, refuses)  # noqa: E731
        async with on_fakes(model, engine=engine, **options) as service:
            served = {0}
            readers = [read(service, random.Random(draw.random()), number) for number in range(draw.randint(1, 5))]
            _, *seen = await asyncio.gather(update(service, draw, served), *readers)
            async with asyncio.timeout(DEADLINE_S):  # who died loads what the others serve
                while any(one["version"] != service.version for one in service.status()["replicas"]):
                    await asyncio.sleep(0.01)
            assert {version for versions in seen for version in versions} <= served
            status = service.status()
            assert status["samples"] == {"running": 0, "unread": 0, "left": 0}
            assert [one["running"] for one in status["replicas"]] == [0] * options["replicas"]  # type: ignore[operator]
            assert len(service._book) == 0
            before = service.version  # an update that nobody waited for may end meanwhile
            async for sample in service.generate([(1, 2)] * 8):
                assert set(sample.versions) <= {before, service.version}

    run(scenario)
