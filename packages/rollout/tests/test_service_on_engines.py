"""The stream generation service on real engines: updates, a reader that is cut, requests that are cancelled."""

import asyncio
import importlib.util
import random
from contextlib import aclosing

import pytest

pytest.importorskip("transformers")

from tailrace.rollout import StreamGenerationService
from tailrace.rollout.testing import save_tiny_model
from tailrace.rollout.testing.contract import VOCABULARY, log_probabilities

SEED, SAMPLES, MAX_TOKENS, DEADLINE_S = 7, 3, 200, 900.0
OPTIONS = {"device": "cpu", "dtype": "float32", "threads": 1, "max_num_seqs": 8}


@pytest.mark.parametrize("engine", ["transformers", pytest.param("vllm", marks=pytest.mark.deep)])
@pytest.mark.timeout(1200)
@pytest.mark.deep
def test_every_sample_comes_once_and_every_token_is_its_versions(engine, tmp_path):
    """A reader is cut, the weights change twice meanwhile, and a request beside it is cancelled: samples are still exact."""
    if importlib.util.find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed")
    models = {version: save_tiny_model(tmp_path / str(version), seed=version, layers=2) for version in range(3)}
    draw = random.Random(SEED)
    prompts = [tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 20))) for _ in range(8)]
    wanted = {(prompt, sample) for prompt in range(len(prompts)) for sample in range(SAMPLES)}

    async def scenario():
        service = StreamGenerationService(tmp_path / "0", engine=engine, options=OPTIONS)
        async with asyncio.timeout(DEADLINE_S), service:
            cancelled = await service.open([(1,)], 50, max_tokens=MAX_TOKENS)
            stream = await service.open(prompts, SAMPLES, max_tokens=MAX_TOKENS)
            seen = {}

            async def read(most):
                async with aclosing(stream.read()) as samples:
                    async for sample in samples:
                        assert sample.key not in seen
                        seen[sample.key] = sample
                        if len(seen) >= most:
                            return

            async def update(version):
                while not any(state["running"] for state in service.status()["replicas"]):
                    await asyncio.sleep(0.01)
                await service.update(models[version].state_dict(), version)

            await update(1)
            service.cancel(cancelled)
            await read(len(wanted) // 3)
            stream.resume([*seen])  # the reader was cut, and says what it has
            await asyncio.gather(read(len(wanted)), update(2))
            assert service.status()["samples"] == {"running": 0, "unread": 0, "left": 0}
            service.cancel(stream)
            later = [one async for one in service.generate([(5, 6)], max_tokens=4, at_least_version=2)]
            assert {version for sample in later for version in sample.versions} == {2}
        return seen

    seen = asyncio.run(scenario())
    assert seen.keys() == wanted, f"seed {SEED}"
    assert len({version for sample in seen.values() for version in sample.versions}) > 1, "no update came in the middle"
    for sample in seen.values():
        assert list(sample.versions) == sorted(sample.versions)
        assert len(sample.tokens) == MAX_TOKENS
        for version in set(sample.versions):
            expected = log_probabilities(models[version], prompts[sample.prompt], sample.tokens, 1.0)
            pairs = zip(sample.logprobs, expected, sample.versions, strict=True)
            assert max(abs(got - right) for got, right, at in pairs if at == version) < 1e-3, (
                SEED,
                sample.key,
                version,
            )
