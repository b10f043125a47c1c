"""What a ranker learns from: a prompt and the lengths of its responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tailrace.ranker.errors import ExampleError

_FIELDS = ("prompt", "lengths", "truncated", "family", "version")


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt with all its samples under one version of the policy.

    Args:
        prompt: its text.
        lengths: tokens of each response, at least 1; of a truncated one, those up to where it was cut.
        truncated: whether each response was cut by the limit on its tokens, so that it would have been longer; empty if
            none was.
        family: the kind of problem, where that is known.
        version: the version of the policy's weights that generated them.

    Raises:
        ExampleError: a value is of the wrong type or outside its range.
    """

    prompt: str
    lengths: tuple[int, ...]
    truncated: tuple[bool, ...] = ()
    family: str = ""
    version: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str):
            raise ExampleError(f"found a prompt of type {type(self.prompt).__name__}, expected text")
        object.__setattr__(self, "lengths", _items("lengths", self.lengths))
        object.__setattr__(self, "truncated", _items("truncated", self.truncated))
        if not self.lengths:
            raise ExampleError(f"found no lengths for {self._shown}, expected at least one")
        for length in self.lengths:
            if not _is_whole(length) or length < 1:
                raise ExampleError(f"found a length of {length!r} for {self._shown}, expected whole numbers from 1 on")
        if len(self.truncated) not in (0, len(self.lengths)):
            raise ExampleError(
                f"found {len(self.truncated)} values of truncated and {len(self.lengths)} lengths for {self._shown}, "
                "expected as many, or none if no response was truncated"
            )
        for flag in self.truncated:
            if not isinstance(flag, bool):
                raise ExampleError(f"found {flag!r} in truncated for {self._shown}, expected true or false")
        if not isinstance(self.family, str):
            raise ExampleError(f"found a family of type {type(self.family).__name__} for {self._shown}, expected text")
        if not _is_whole(self.version):
            raise ExampleError(f"found the version {self.version!r} for {self._shown}, expected a whole number")

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Example:
        """An example from a row of a file: its fields, of which ``prompt`` and ``lengths`` must be there.

        Raises:
            ExampleError: a field is missing, unknown or malformed.
        """
        for name in _FIELDS[:2]:
            if name not in row:
                raise ExampleError(f"found no key {name!r}, expected prompt and lengths")
        unknown = sorted(set(row) - set(_FIELDS))
        if unknown:
            raise ExampleError(f"found the key {unknown[0]!r}, expected {', '.join(_FIELDS)}")
        return cls(**row)

    @property
    def samples(self) -> tuple[tuple[int, bool], ...]:
        """Each response's length, and whether it was truncated."""
        return tuple(zip(self.lengths, self.truncated or (False,) * len(self.lengths), strict=True))

    @property
    def _shown(self) -> str:
        return f"the prompt {self.prompt if len(self.prompt) <= 40 else self.prompt[:39] + '…'!r}"


def check_examples(examples: Sequence[Example]) -> tuple[Example, ...]:
    """The examples, of which there must be one.

    Raises:
        ExampleError: there are none, or something else is among them.
    """
    found = tuple(examples)
    if not found:
        raise ExampleError("found no examples, expected at least one")
    for one in found:
        if not isinstance(one, Example):
            raise ExampleError(f"found {type(one).__name__} among the examples, expected Example")
    return found


def check_lengths(examples: Sequence[Example]) -> None:
    """Check that lengths differ, and that not all are those at which responses were cut.

    Raises:
        ExampleError: there is nothing to rank by.
    """
    samples = [sample for example in examples for sample in example.samples]
    if all(truncated for _, truncated in samples):
        raise ExampleError(
            f"found {len(samples)} responses, all truncated, expected some that ended: no length is known"
        )
    if len({length for length, _ in samples}) == 1:
        raise ExampleError(
            f"found {len(samples)} responses, all of {samples[0][0]} tokens, expected lengths that differ"
        )


def _items(name: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ExampleError(f"found {name} of type {type(values).__name__}, expected a list")
    return tuple(values)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
