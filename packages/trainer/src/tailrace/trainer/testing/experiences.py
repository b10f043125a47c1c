"""Random trajectories of several turns and versions, whole or packed as the data role gives them to ranks."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterable, Sequence

from tailrace.contracts import Experience, ExperienceOutline, PackedTokens, Segment


def make_experiences(
    groups: int,
    samples: int,
    *,
    vocab_size: int,
    seed: int,
    max_prompt: int = 9,
    max_response: int = 14,
    turns: int = 1,
    forks: float = 0.0,
) -> list[Experience]:
    """Random groups with random rewards of 0 or 1, with plausible log-probabilities.

    Each turn has one or two segments of at most `max_response` tokens. There are up to `turns` of them, each followed by up to
    five tokens of an environment; the last one only sometimes. `forks` is how often a turn begins a context of its own instead:
    tokens that have nothing to do with those before, or some of these and what follows.
    """
    draw = random.Random(seed)
    made = []
    for group in range(groups):
        prompt = tuple(draw.randrange(vocab_size) for _ in range(draw.randint(1, max_prompt)))
        for sample in range(samples):
            segments: list[Segment] = []
            for turn in range(draw.randint(1, turns) if turns > 1 else 1):
                if turn and forks and draw.random() < forks:
                    segments.append(_fork(draw, prompt, segments, vocab_size))
                elif turn:
                    segments.append(_observation(draw, segments[-1].version, vocab_size))
                for version in range(draw.randint(1, 2)):
                    length = draw.randint(1, max_response)
                    tokens = tuple(draw.randrange(vocab_size) for _ in range(length))
                    logprobs = tuple(-math.log(vocab_size) + draw.uniform(-0.5, 0.5) for _ in range(length))
                    segments.append(Segment(version + turn, tokens, logprobs))
            if turns > 1 and draw.random() < 0.3:
                segments.append(_observation(draw, segments[-1].version, vocab_size))
            reward = float(draw.random() < 0.5)
            made.append(Experience(f"{group}.{sample}", group, prompt, tuple(segments), reward=reward))
    return made


class PackedData:
    """Answers as a data role does what `PackedBatch` asks of it.

    Args:
        experiences: what there is.

    Attributes:
        fetched: the ids of each call of `packed`.
    """

    def __init__(self, experiences: Iterable[Experience]) -> None:
        self.made = {experience.trajectory: experience for experience in experiences}
        self.fetched: list[list[str]] = []

    def outlines(self, names: Sequence[str]) -> list[ExperienceOutline]:
        """Outlines in order."""
        return [self._outline(self.made[name]) for name in names]

    def packed(self, wanted: Sequence[tuple[str, bool]]) -> list[PackedTokens]:
        """Tokens in order."""
        self.fetched.append([name for name, _ in wanted])
        found = []
        for name, with_prompt in wanted:
            one = self.made[name]
            prompt = struct.pack(f"<{len(one.prompt)}I", *one.prompt) if with_prompt else None
            tokens = struct.pack(f"<{len(one.tokens)}I", *one.tokens)
            found.append(PackedTokens(prompt, tokens, struct.pack(f"<{len(one.tokens)}d", *one.logprobs)))
        return found

    @staticmethod
    def _outline(one: Experience) -> ExperienceOutline:
        return ExperienceOutline(
            one.trajectory,
            one.group,
            repr(one.prompt).encode(),
            len(one.prompt),
            one.spans,
            max((*one.prompt, *one.tokens), default=-1),
            all(map(math.isfinite, one.logprobs)),
            one.finish,
            one.reward,
            one.completed_version,
            one.metadata,
        )


def _fork(draw: random.Random, prompt: tuple[int, ...], segments: Sequence[Segment], vocab_size: int) -> Segment:
    before = [*prompt, *(token for segment in segments for token in segment.tokens)]
    kept = before[: draw.randrange(len(before))] if draw.random() < 0.7 else []
    new = [draw.randrange(vocab_size) for _ in range(draw.randint(4, 7))]  # hardly two contexts begin alike
    tokens = (*kept, *new)
    return Segment(segments[-1].version, tokens, (0.0,) * len(tokens), observation=True, fresh=True)


def _observation(draw: random.Random, version: int, vocab_size: int) -> Segment:
    tokens = tuple(draw.randrange(vocab_size) for _ in range(draw.randint(1, 5)))
    return Segment(version, tokens, (0.0,) * len(tokens), observation=True)
