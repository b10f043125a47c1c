"""The file that `tailrace profile --parallelism` writes: what replicas of each size do here (RollPacker, section 4.1).

tailrace profile CONFIG --parallelism ──► FILE ──rollout.parallelism──► provisioning: adaptive-tp, balanced
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from tailrace.pipeline.config.fields import Positive
from tailrace.pipeline.config.loading import explain
from tailrace.pipeline.errors import ConfigError

FORMAT = 1

_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _as_tuples(value: object) -> object:
    return tuple(_as_tuples(part) for part in value) if isinstance(value, list) else value


Timing = tuple[Positive, Positive, _Seconds, _Seconds]
"""Sequences at once, tokens of each, seconds of their prefill, and of a decoding step of all of them."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class MeasuredSize(_Strict):
    """A replica of one size.

    Args:
        tp: its devices (tensor parallelism).
        kv_tokens: tokens that its KV cache holds.
        k1, k2, k3, k4: seconds of a decoding step: k1 x tokens in the KV cache + max(k2, k3 x sequences) + k4.
        error: median relative error of that fit.
        prefill_token_s, prefill_sequence_s: seconds of prefill for each token and each sequence.
        start_s: seconds from the start of its process until its engine was ready.
        end_s: seconds until that process was gone.
        timings: what was timed.
    """

    tp: Positive
    kv_tokens: Annotated[int, Field(ge=0)]
    k1: _Seconds
    k2: _Seconds
    k3: _Seconds
    k4: _Seconds
    error: _Seconds = 0.0
    prefill_token_s: _Seconds = 0.0
    prefill_sequence_s: _Seconds = 0.0
    start_s: _Seconds
    end_s: _Seconds
    timings: Annotated[tuple[Timing, ...], BeforeValidator(_as_tuples)] = ()


class ParallelismProfile(_Strict):
    """Replicas of several sizes, and which of them a run begins with.

    Args:
        measured: when, where and with which configuration, in words.
        engine: the engine.
        short, long: devices of a replica with which a round of each kind is generated soonest.
        smallest: fewest devices that hold the weights and a whole response.
        resize_s: seconds that a change of a replica's devices takes: the mean of `end_s` + `start_s`.
        longest: most tokens of a sequence that was timed, prompt and response.
        lengths: response tokens for which `short` and `long` were chosen, ascending.
        sizes: the replicas that were measured.
    """

    format: int = FORMAT
    measured: str = ""
    engine: str
    short: Positive
    long: Positive
    smallest: Positive
    resize_s: _Seconds
    longest: Positive
    lengths: Annotated[tuple[Positive, ...], BeforeValidator(_as_tuples), Field(min_length=1)]
    sizes: Annotated[tuple[MeasuredSize, ...], BeforeValidator(_as_tuples), Field(min_length=1)]

    @model_validator(mode="after")
    def _chosen_of_sizes(self) -> Self:
        known = [size.tp for size in self.sizes]
        if len(set(known)) < len(known) or not {self.short, self.long, self.smallest} <= set(known):
            raise ValueError(f"short, long and smallest of the sizes {known}, each of which stands there once")
        return self

    @property
    def replica_costs(self) -> tuple[tuple[int, int, float, float, float, float], ...]:
        """A row for each size, as provisioning takes them: its devices, tokens of its KV cache, k1 to k4."""
        return tuple((one.tp, one.kv_tokens, one.k1, one.k2, one.k3, one.k4) for one in self.sizes)


def read_parallelism(path: Path) -> ParallelismProfile:
    """The profile in a file.

    Raises:
        ConfigError: there is no such file, or it is no such profile.
    """
    where = f"key 'rollout.parallelism': {path}"
    writes = "`tailrace profile CONFIG --parallelism` writes one"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no TOML"
        raise ConfigError(f"{where}: found no readable profile ({reason}), expected one: {writes}") from error
    if content.get("format") != FORMAT:
        raise ConfigError(f"{where}: found format {content.get('format')!r}, expected {FORMAT}: {writes}")
    try:
        return ParallelismProfile.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"{where}: {explain(ParallelismProfile, [str(part) for part in first['loc']], first)}"
        ) from error
