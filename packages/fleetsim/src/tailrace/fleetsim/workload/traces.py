"""Recorded trajectories as JSON lines, one object each:

    {"group": 3, "prompt_tokens": 120, "response_tokens": 900, "turns": [[400, 1.5], [500, 0]], "reward": 1.0, "reward_s": 0.2}

``turns`` (tokens, and the seconds in the environment after them, 0 after the last), ``reward`` and ``reward_s`` are optional.
A group may have any number of samples, anywhere in the file, all with the same prompt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from tailrace.fleetsim.errors import WorkloadError
from tailrace.fleetsim.workload.sample import Turns
from tailrace.pipeline.config.loading import explain

Tokens = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Recorded(BaseModel):
    """A trajectory of a trace.

    Args:
        group: number of its group.
        prompt_tokens: number of prompt tokens.
        response_tokens: number of response tokens.
        turns: response tokens of each turn, and the seconds in the environment after it (0 after the last).
        reward: the reward; None if it was not recorded.
        reward_s: seconds of scoring; None if they were not recorded.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    group: Annotated[int, Field(ge=0)]
    prompt_tokens: Tokens
    response_tokens: Tokens
    turns: Annotated[tuple[tuple[Tokens, Seconds], ...], Field(validate_default=True)] = ()
    reward: Annotated[float, Field(allow_inf_nan=False)] | None = None
    reward_s: Seconds | None = None

    @field_validator("turns")
    @classmethod
    def _of_the_response(cls, turns: Turns, others: ValidationInfo) -> Turns:
        tokens = others.data.get("response_tokens")
        if tokens is None:
            return turns
        if not turns:
            return ((tokens, 0.0),)
        if turns[-1][1]:
            raise ValueError("0 seconds after the last turn: nothing follows")
        if sum(each for each, _ in turns) != tokens:
            raise ValueError(f"{tokens:,} tokens in all, which is response_tokens")
        return turns


def read_trace(path: Path, max_tokens: int | None = None) -> list[Recorded]:
    """The trajectories of a file, in its order.

    Args:
        path: the file.
        max_tokens: most tokens of a response; None for no limit.

    Raises:
        WorkloadError: the file is missing or malformed, or a response is too long. The message names file and line.
    """
    trajectories: list[Recorded] = []
    prompts: dict[int, tuple[int, int]] = {}
    longest, at = 0, 0
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                where = f"{path}:{number}"
                trajectory = _parse(line, where)
                _same_prompt(trajectory, number, prompts, where)
                if trajectory.response_tokens > longest:
                    longest, at = trajectory.response_tokens, number
                trajectories.append(trajectory)
    except OSError as error:
        raise WorkloadError(
            f"{path}: found no readable file ({error.strerror}), expected a trace (JSON lines)"
        ) from error
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path}: found bytes that are not UTF-8, expected a trace (JSON lines)") from error
    if not trajectories:
        raise WorkloadError(f"{path}: found no trajectory, expected at least one")
    if max_tokens is not None and longest > max_tokens:
        raise WorkloadError(
            f"{path}:{at}: found a response of {longest:,} tokens, expected at most max_tokens = {max_tokens:,};"
            f" max_tokens = {longest} would fit the whole trace"
        )
    return trajectories


def _parse(line: str, where: str) -> Recorded:
    try:
        return Recorded.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        path = [str(part) for part in first["loc"]]
        if first["type"] in ("json_invalid", "model_type"):
            raise WorkloadError(f"{where}: found {line.strip():.60}, expected a JSON object") from None
        raise WorkloadError(f"{where}: {explain(Recorded, path, first)}") from None


def _same_prompt(trajectory: Recorded, number: int, prompts: dict[int, tuple[int, int]], where: str) -> None:
    tokens, first = prompts.setdefault(trajectory.group, (trajectory.prompt_tokens, number))
    if trajectory.prompt_tokens != tokens:
        raise WorkloadError(
            f"{where}: found prompt_tokens {trajectory.prompt_tokens}, expected {tokens} as in line {first}:"
            f" the samples of group {trajectory.group} share their prompt"
        )
