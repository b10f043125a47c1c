"""A batch whose tokens come later: every rank plans by all of it, and takes the tokens of its own rows alone.

    outlines ──► PackedBatch.experiences ──► samples ──► plan ──► this rank's rows ──load──► fetch, slice by slice

A `PackedExperience` is an `Experience`: whoever asks one for its tokens gets them, those of the whole batch at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from tailrace.contracts import Experience, ExperienceOutline, PackedTokens, Segment, SpanKind
from tailrace.trainer.layout import TrainingSample

Fetch = Callable[[Sequence[tuple[str, bool]]], Sequence[PackedTokens]]
"""The tokens of trajectories, in order, each with its prompt if that is asked for."""

SLICE_BYTES = 8 * 2**20
"""What one call of `Fetch` takes at most, about, whatever the batch."""

_Array: TypeAlias = npt.NDArray[Any]


class LaterValues(Sequence[Any]):
    """Values of an experience that may not be there yet: their number is known.

    Args:
        experience: whose.
        count: number of values.
        get: makes the array once the experience's tokens are there.
        key: equal for equal values; None: these equal themselves alone.
    """

    __slots__ = ("_count", "_get", "_key", "experience")

    def __init__(
        self, experience: PackedExperience, count: int, get: Callable[[], _Array], key: bytes | None = None
    ) -> None:
        self.experience, self._count, self._get, self._key = experience, count, get, key

    def __len__(self) -> int:
        return self._count

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> _Array:
        del copy  # it is one where the type differs
        return np.asarray(self._get(), dtype)

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, place: int | slice) -> Any:
        found = self._get()[place].tolist()
        return tuple(found) if isinstance(place, slice) else found

    def __iter__(self) -> Iterator[Any]:
        return iter(self._get().tolist())

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, LaterValues) and self._key is not None and self._key == other._key)

    def __hash__(self) -> int:
        return id(self) if self._key is None else hash(self._key)


class PackedExperience(Experience):
    """An experience of a `PackedBatch`. What needs no tokens is known at once."""

    def __init__(self, outline: ExperienceOutline, batch: PackedBatch) -> None:
        self.__dict__.update(outline=outline, batch=batch, arrays=None)
        for name in ("trajectory", "group", "finish", "reward", "completed_version", "metadata"):
            object.__setattr__(self, name, getattr(outline, name))  # as a frozen dataclass does

    outline: ExperienceOutline
    batch: PackedBatch
    arrays: tuple[_Array, _Array] | None

    @property
    def prompt(self) -> tuple[int, ...]:
        """Prompt token ids."""
        return tuple(self.prompt_array().tolist())

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Response tokens with their versions."""
        (tokens, logprobs), start, found = self.here(), 0, []
        for version, count, kind in self.spans:
            part = slice(start, start + count)
            own, values = tuple(tokens[part].tolist()), tuple(logprobs[part].tolist())
            found.append(Segment(version, own, values, bool(kind), kind == SpanKind.FRESH))
            start += count
        return tuple(found)

    @property
    def spans(self) -> tuple[tuple[int, int, SpanKind], ...]:
        """The version of each segment, its number of tokens, and what they are."""
        return self.outline.spans

    def here(self) -> tuple[_Array, _Array]:
        """Tokens and log-probabilities. If they are not there, the whole batch's are fetched."""
        if self.arrays is None:
            self.batch.load(self.batch.experiences)
        assert self.arrays is not None
        return self.arrays

    def prompt_array(self) -> _Array:
        """Prompt token ids, which may have come with another experience's."""
        if self.outline.prompt not in self.batch.prompts:
            self.here()
        return self.batch.prompts[self.outline.prompt]

    def take(self, packed: PackedTokens) -> None:
        """Keep tokens that came.

        Raises:
            ValueError: they are more or fewer than the outline says.
        """
        tokens, count = np.frombuffer(packed.tokens, "<u4"), self.outline.tokens
        values = np.frombuffer(packed.logprobs, "<f4" if len(packed.logprobs) == 4 * count else "<f8")
        if (len(tokens), len(values)) != (count, count):
            raise ValueError(
                f"trajectory {self.trajectory}: found {len(tokens)} tokens and {len(values)} values, not {count}"
            )
        self.__dict__["arrays"] = tokens, values

    def samples(self, weight: float, advantage: float) -> list[TrainingSample]:
        """The samples that `grpo_samples` makes of it, with their tokens to come."""
        return [self._sample(weight, advantage, *context) for context in self.contexts]

    def _sample(self, weight: float, advantage: float, start: int, begun: int, end: int) -> TrainingSample:
        spans, count, part = self.spans, end - begun, slice(begun, end)
        prompt = LaterValues(self, self.outline.prompt_tokens, self.prompt_array, self.outline.prompt)
        if begun:
            prompt = LaterValues(self, begun - start, lambda: self.here()[0][start:begun])
        flags: Sequence[bool] = ()
        if any(kind for _, _, kind in spans):
            generated = self._each([not kind for _, _, kind in spans])[part]
            flags = () if generated.all() else LaterValues(self, count, lambda: generated)
        return TrainingSample(
            prompt,
            LaterValues(self, count, lambda: self.here()[0][part]),
            weight,
            LaterValues(self, count, lambda: self.here()[1][part]),
            advantage,
            flags,
            LaterValues(self, count, lambda: self._each([version for version, _, _ in spans])[part]),
        )

    def _each(self, values: Sequence[Any]) -> _Array:
        """For each token the value of its segment."""
        return np.repeat(np.asarray(values), [count for _, count, _ in self.spans])


class PackedBatch:
    """The experiences of a batch, and what was fetched of them.

    Args:
        outlines: of the whole batch.
        fetch: fetches tokens.
        slice_bytes: about how many bytes one call fetches.
    """

    def __init__(self, outlines: Iterable[ExperienceOutline], fetch: Fetch, *, slice_bytes: int = SLICE_BYTES) -> None:
        self._fetch, self._slice_bytes = fetch, slice_bytes
        self.experiences = [PackedExperience(outline, self) for outline in outlines]
        self.prompts: dict[bytes, _Array] = {}
        self.fetched_bytes, self.fetched_s = 0, 0.0

    def load(self, experiences: Iterable[PackedExperience]) -> None:
        """Fetch the tokens of those that lack them; of equal prompts one."""
        wanted: list[PackedExperience] = []
        size = 0
        for one in experiences:
            if one.arrays is None:
                wanted.append(one)
                size += 8 * one.outline.tokens + 4 * one.outline.prompt_tokens
                if size >= self._slice_bytes:
                    self._load(wanted)
                    wanted, size = [], 0
        if wanted:
            self._load(wanted)

    def release(self) -> None:
        """Drop what was fetched at once, not when Python next looks for cycles."""
        for one in self.experiences:
            one.__dict__["arrays"] = None
        self.experiences, self.prompts = [], {}

    def _load(self, experiences: Sequence[PackedExperience]) -> None:
        began_s = time.monotonic()
        asked: dict[bytes, PackedExperience] = {}  # who is asked for a prompt
        for one in experiences:
            if one.outline.prompt not in self.prompts:
                asked.setdefault(one.outline.prompt, one)
        wanted = [(one.trajectory, asked.get(one.outline.prompt) is one) for one in experiences]
        for one, packed in zip(experiences, self._fetch(wanted), strict=True):
            one.take(packed)
            if packed.prompt is not None:
                self.prompts[one.outline.prompt] = np.frombuffer(packed.prompt, "<u4")
            self.fetched_bytes += packed.nbytes
        self.fetched_s += time.monotonic() - began_s


def load_tokens(samples: Iterable[TrainingSample]) -> None:
    """Fetch the tokens of samples that are yet to come, and of no others."""
    batches: dict[int, list[PackedExperience]] = {}
    for sample in samples:
        if isinstance(sample.response, LaterValues):
            one = sample.response.experience
            batches.setdefault(id(one.batch), []).append(one)
    for experiences in batches.values():
        experiences[0].batch.load(experiences)
