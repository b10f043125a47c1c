"""A machine measured by `tailrace profile`: a TOML file with one table for each part, read strictly.

Seconds of computing are those that a member needs with its own cores; members that share cores slow each other down
(`sharing`). Seconds of waiting (commands, reports, weights) are as measured in a run.
"""

from __future__ import annotations

import json
import tomllib
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.tables import Count, Positive, Seconds, Share, Strict, as_tuples, interpolated
from tailrace.pipeline.config.loading import explain

SHIPPED = ("two-cores",)
FORMAT = 1

Group = tuple[int, Count, tuple[Count, ...], tuple[float, ...]]
Groups = Annotated[tuple[Group, ...], BeforeValidator(as_tuples), Field(min_length=1)]
GroupTurns = tuple[Annotated[tuple[tuple[Count, Seconds], ...], Field(min_length=1)], ...]
"""For each sample of a group its turns: tokens, and the seconds until its environment had answered."""
Quantiles = Annotated[tuple[tuple[float, float], ...], BeforeValidator(as_tuples)]


class DecodePart(Strict):
    """A decoding step: k1 x tokens in the KV cache + max(k2, k3 x trajectories) + k4 (StaleFlow, equation 11).

    Args:
        kv_capacity_tokens: tokens that fit into one replica's KV cache.
        block_tokens: tokens in a block of the KV cache.
        max_running: most trajectories in a batch.
        error: median relative error of the fit.
    """

    k1: Seconds
    k2: Seconds
    k3: Seconds
    k4: Seconds
    kv_capacity_tokens: Count
    block_tokens: Count = 1
    max_running: Count = 256
    error: Seconds = 0.0


class PrefillPart(Strict):
    """Prefill: seconds for each token and for each trajectory that starts or resumes."""

    per_token_s: Seconds
    per_trajectory_s: Seconds
    error: Seconds = 0.0


class TrainingPart(Strict):
    """An update on a mini-batch: fixed_s + per_token_s x tokens + per_square_token_s x squares of lengths.

    Args:
        batch_s: seconds to fetch a batch and mark it as consumed.
    """

    fixed_s: Seconds
    per_token_s: Seconds
    per_square_token_s: Seconds = 0.0
    batch_s: Seconds = 0.0
    error: Seconds = 0.0

    def filling_tokens(self, share: float, length: float) -> float:
        """Tokens in one go with which the trainer reaches a share of its full speed, that of a batch without end.

        Args:
            share: above 0 and below 1.
            length: tokens of a trajectory.

        Raises:
            ZeroDivisionError: tokens take no time, so that no number of them fills the trainer.
        """
        each_s = self.per_token_s + self.per_square_token_s * length
        return share / (1 - share) * (self.fixed_s + self.batch_s) / each_s


class WeightsPart(Strict):
    """Delays of publishing and pulling weights.

    Args:
        publish_s: seconds for which the trainer stalls to publish.
        visible_s: seconds from then until replicas may pull the version.
        pull_s: seconds from a replica's `Pull` until it serves the version.
    """

    publish_s: Seconds
    visible_s: Seconds
    pull_s: Seconds


class DelaysPart(Strict):
    """Delays that are not computing.

    Args:
        route_s: seconds from a command to a replica until its engine has it.
        report_s: twice the mean time, in seconds, from the last token of a replica's last trajectory to its report.
        snapshot_s: seconds between two reports of a replica's load.
        score_s: seconds from the report of a trajectory to its reward, without those of its score. Includes the later reports
            of busy replicas.
        checkpoint_s: seconds for which the trainer stalls for a checkpoint.
        durable_s: seconds until a checkpoint is durable.
        start_replica_s, start_trainer_s: seconds until a replica or the trainer is up.
    """

    route_s: Seconds
    report_s: Positive
    snapshot_s: Positive
    score_s: Seconds
    checkpoint_s: Seconds
    durable_s: Seconds
    start_replica_s: Seconds
    start_trainer_s: Seconds


class SharingPart(Strict):
    """Cores that all members share; absent if members compute on their own devices.

    Args:
        cores: number of the machine's cores.
        others: share of all processor time that neither replicas nor the trainer use (data, scoring, relays, the driver).
        replica_cores, trainer_cores: number of cores that a replica or the trainer keeps busy.
        alone_s, beside_s: processor seconds of the trainer for 1,000 tokens, alone and beside the replicas.
    """

    cores: Count
    others: Share
    replica_cores: Annotated[float, Field(ge=1)] = 1.0
    trainer_cores: Annotated[float, Field(ge=1)] = 1.0
    alone_s: Seconds = 0.0
    beside_s: Seconds = 0.0


class Curve(Strict):
    """A quantity that changes while the model learns.

    Args:
        points: (version, value) with versions increasing; linear between them, constant outside.
    """

    points: Annotated[tuple[tuple[float, float], ...], BeforeValidator(as_tuples), Field(min_length=1)]

    @model_validator(mode="after")
    def _increasing(self) -> Self:
        if any(after[0] <= before[0] for before, after in pairwise(self.points)):
            raise ValueError("[version, value] points with versions increasing")
        return self

    def at(self, version: float) -> float:
        """The value at a version."""
        return interpolated(self.points, version)


class WorkloadPart(Strict):
    """The workload that the model generates.

    Args:
        groups: [version, prompt tokens, response tokens of each sample, rewards of each sample] of each generated group.
        sources: number of each group's source, where prompts are mixed; empty for one source.
        score_s: seconds that the score of each sample took, without its time in a queue; empty if all were at once.
        turns: for each sample its turns: [tokens, seconds until its environment had answered], 0 seconds after the last;
            empty if each response was one turn.
        signal: log-odds that a group's rewards differ.
        length: logarithm of the factor on response lengths.
        right: share of samples with a reward above 0.
        within: intraclass correlation of the logarithm of response lengths in a group.
        prompt, response: [share, tokens] quantiles, for people to read.
    """

    groups: Groups
    sources: Annotated[tuple[int, ...], BeforeValidator(as_tuples)] = ()
    score_s: Annotated[tuple[tuple[Seconds, ...], ...], BeforeValidator(as_tuples)] = ()
    turns: Annotated[tuple[GroupTurns, ...], BeforeValidator(as_tuples)] = ()
    signal: Curve
    length: Curve
    right: Share = 0.0
    within: float = 0.0
    prompt: Quantiles = ()
    response: Quantiles = ()


class MachineProfile(Strict):
    """Everything that a simulation needs of a machine.

    Args:
        name: the machine's name, which is the file's.
        measured: when, on which hardware and with which configuration it was measured, in words.
        replicas: number of replicas in the measured run.
    """

    format: int
    name: str
    measured: str = ""
    engine: str = ""
    replicas: Count = 1
    decode: DecodePart
    prefill: PrefillPart
    training: TrainingPart
    weights: WeightsPart
    delays: DelaysPart
    sharing: SharingPart | None = None
    workload: WorkloadPart


def load_machine(name: str | Path) -> MachineProfile:
    """A machine that comes with the package, by name, or one from a file that ends in ``.toml``.

    Raises:
        ProfileError: the name or file does not exist, or the file is not a machine's profile.
    """
    if str(name) in SHIPPED:
        text, where = resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8"), f"{name}.toml"
    else:
        if Path(name).suffix != ".toml":
            raise ProfileError(
                f"fleet.profile: found {str(name)!r}, expected {' or '.join(map(repr, SHIPPED))}, or a TOML file that "
                "`tailrace profile` wrote"
            )
        where = str(name)
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise ProfileError(f"found no readable profile {where} ({reason}); `tailrace profile` writes one") from None
    return parse_machine(text, where)


@lru_cache(maxsize=4)  # a check of a configuration asks several times, and a file takes a quarter of a second
def parse_machine(text: str, where: str) -> MachineProfile:
    """The machine in a file's text.

    Raises:
        ProfileError: the text is not a machine's profile.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{where}: found a file that is not TOML ({error}), expected a machine's profile") from None
    if content.get("format") != FORMAT:
        raise ProfileError(
            f"{where}: found format {content.get('format')!r}, expected {FORMAT}: measure the machine anew"
        )
    try:
        return MachineProfile.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        path = [str(part) for part in first["loc"]]
        raise ProfileError(f"{where}: {explain(MachineProfile, path, first)}") from None


def machine_toml(machine: MachineProfile) -> str:
    """The machine as a file that `load_machine` reads."""
    lines: list[str] = []
    parts: list[str] = []
    for key, value in machine.model_dump(exclude_none=True).items():
        if isinstance(value, dict):
            parts += ["", f"[{key}]", *(f"{name} = {toml_value(one)}" for name, one in value.items())]
        elif key == "measured":
            lines = [*(f"# {line}" for line in str(value).splitlines()), *lines, f"measured = {toml_value(value)}"]
        else:
            lines.append(f"{key} = {toml_value(value)}")
    return "\n".join([*lines, *parts]) + "\n"


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], list | tuple) and len(value) > 8:
            return "[\n" + "".join(f"  {toml_value(one)},\n" for one in value) + "]"
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float):
        return _number(value)
    return str(value)


def _number(value: float) -> str:
    return f"{value:.6g}"  # whole numbers have no point, since a float may be read from an integer
