"""Responses of a real engine with frozen weights, all of a round submitted at once; rewards by the task's own verifiers."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tailrace.contracts import Engine, Request, Sampling, TrajectoryRef
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.roles.prompts import Prompts, item_metadata
from tailrace.pipeline.run.prepare import Prepared
from tailrace.pipeline.run.scorer_setup import score_settings
from tailrace.reward import RewardScheduler, ScoreItem, ScoringFailure

_STILL_S = 60.0  # an engine with work that yields nothing for so long has failed


@dataclass(frozen=True)
class Text:
    """A response as its tokens."""

    prompt: int
    ids: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return len(self.ids)


class EngineLoop:
    """A `Generator` that drives an engine. The noise of a sample depends on the seed, its prompt, the draw and its number."""

    def __init__(
        self,
        engine: Engine,
        encode: Callable[[int], tuple[int, ...]],
        sampling: Sampling,
        seed: int,
        *,
        same_noise: bool,
    ) -> None:
        self._engine, self._encode, self._sampling, self._seed = engine, encode, sampling, seed
        self._same = same_noise
        self._starts: dict[int, int] = {}
        self._partial: dict[str, list[int]] = {}
        self._ready: list[tuple[int, Text]] = []
        self._started = 0

    def start(self, prompts: Sequence[int], samples: int) -> None:
        self._started += 1
        for prompt in prompts:
            draw = self._starts.get(prompt, 0)
            self._starts[prompt] = draw if self._same else draw + 1
            tokens = self._encode(prompt)
            for sample in range(samples):
                name = f"{prompt}.{sample}.{self._started}"
                noise = hashlib.blake2b(f"{self._seed} {prompt} {draw} {sample}".encode(), digest_size=8).digest()
                self._partial[name] = []
                seeded = replace(self._sampling, seed=int.from_bytes(noise) >> 1)
                self._engine.submit([Request(name, tokens, seeded)])

    def finished(self) -> tuple[int, Text]:
        since = time.monotonic()
        while not self._ready:
            for delta in self._engine.step():
                since = time.monotonic()
                self._partial[delta.id] += delta.tokens
                if delta.finish is not None:
                    prompt = int(delta.id.partition(".")[0])
                    self._ready.append((prompt, Text(prompt, tuple(self._partial.pop(delta.id)))))
            if time.monotonic() - since > _STILL_S:
                raise TimeoutError(f"found no token for {_STILL_S:.0f} s with {len(self._partial)} responses in flight")
        return self._ready.pop(0)

    def abort(self, prompts: Iterable[int]) -> None:
        gone = set(prompts)
        names = [name for name in self._partial if int(name.partition(".")[0]) in gone]
        if names:
            self._engine.abort(names)
        for name in names:
            del self._partial[name]
        self._ready = [(prompt, text) for prompt, text in self._ready if prompt not in gone]


def ref(prompt: int) -> TrajectoryRef:
    """A training trajectory of a prompt."""
    return TrajectoryRef(str(prompt), prompt, 0, prompt=prompt)


class Scores:
    """The reward of each response, which is computed once for each text."""

    def __init__(self, config: RunConfig, prepared: Prepared, prompts: Prompts) -> None:
        self._settings, self._prompts = score_settings(config, prepared.verifiers), prompts
        self._verifier = prepared.verifier
        self.known: dict[Text, float] = {}

    def score(self, responses: Iterable[Text]) -> None:
        new = list(dict.fromkeys(one for one in responses if one not in self.known))
        items = []
        for place, one in enumerate(new):
            row, text = self._prompts.prompt(ref(one.prompt)), self._prompts.decode(one.ids)
            verifier = row.verifier or self._verifier
            items.append(ScoreItem(str(place), text, row.answer, verifier, item_metadata(row), row.prompt))

        async def outcomes() -> None:
            async with RewardScheduler(
                math=self._settings.math, code=self._settings.code, judge=self._settings.judge
            ) as scheduler:
                async for outcome in scheduler.score(items):
                    if isinstance(outcome, ScoringFailure):
                        raise RuntimeError(f"a response could not be scored: {outcome.reason}")
                    self.known[new[int(outcome.trajectory)]] = outcome.reward

        asyncio.run(outcomes())
