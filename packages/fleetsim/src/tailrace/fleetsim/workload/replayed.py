"""A workload replayed from a recorded trace.

A trace is JSON lines, one object for each trajectory:

    {"group": 3, "prompt_tokens": 120, "response_tokens": 900, "turns": [[400, 1.5], [500, 0]], "reward": 1.0, "reward_s": 0.2}

``turns`` (tokens, and the seconds in the environment after them, 0 after the last), ``reward`` and ``reward_s`` are optional.
A group may have any number of samples, anywhere in the file, all with the same prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from tailrace.fleetsim.errors import WorkloadError
from tailrace.fleetsim.tables import Seconds, Strict
from tailrace.fleetsim.workload.environment import Latency
from tailrace.fleetsim.workload.lengths import Spread
from tailrace.fleetsim.workload.random_numbers import RandomStream, draws, stream
from tailrace.fleetsim.workload.rewards import SolveRate
from tailrace.fleetsim.workload.workload import Description, ModelledSample, Turns, Workload
from tailrace.pipeline.config.loading import explain

Tokens = Annotated[int, Field(ge=1)]


class ReplayedWorkload(Workload):
    """The trace's groups in order of their numbers; after the last the first follows again.

    If more samples of a group are asked for than it has, they repeat in order. Rewards and scoring times that were not
    recorded are drawn as in a drawn workload, anew for each pass over the trace.

    Args:
        trajectories: the trace's trajectories, at least one.
        seed: any whole number.
        max_tokens: most tokens of a response.
        solve_rate: used for rewards that were not recorded.
        reward_latency: used for scoring times that were not recorded; None for 0.
    """

    def __init__(
        self,
        trajectories: Sequence[Recorded],
        *,
        seed: int,
        max_tokens: int,
        solve_rate: SolveRate,
        reward_latency: Latency | None = None,
    ) -> None:
        self.seed, self.max_tokens = seed, max_tokens
        self._solve_rate, self._latency = solve_rate, reward_latency
        groups: dict[int, list[Recorded]] = {}
        for trajectory in trajectories:
            groups.setdefault(trajectory.group, []).append(trajectory)
        self._groups = [groups[number] for number in sorted(groups)]
        self._turns = any(len(one.turns) > 1 for one in trajectories)

    @classmethod
    def read(
        cls, path: Path, *, seed: int, max_tokens: int, solve_rate: SolveRate, reward_latency: Latency | None
    ) -> ReplayedWorkload:
        """Read the workload from a file.

        Raises:
            WorkloadError: see `read_trace`.
        """
        trajectories = read_trace(path, max_tokens)
        return cls(trajectories, seed=seed, max_tokens=max_tokens, solve_rate=solve_rate, reward_latency=reward_latency)

    def group(
        self,
        index: int,
        samples: int,
        version: int = 0,  # noqa: ARG002  nothing drifts
        draw: int | None = None,  # noqa: ARG002  only one was recorded
    ) -> list[ModelledSample]:
        """The recorded samples of a group, for any version and draw."""
        recorded = self._groups[index % len(self._groups)]
        normals, uniforms = draws(self.seed, index, samples + 4)
        solve_rate = self._solve_rate.of(normals[2])
        if self._latency is None:
            seconds = [0.0] * samples
        else:
            seconds = self._latency.draw(stream(self.seed, index, RandomStream.SCORING), samples)
        group = []
        for position in range(samples):
            one = recorded[position % len(recorded)]
            drawn = 1.0 if uniforms[position + 4] < solve_rate else 0.0
            group.append(
                ModelledSample(
                    one.prompt_tokens,
                    one.turns,
                    drawn if one.reward is None else one.reward,
                    seconds[position] if one.reward_s is None else one.reward_s,
                )
            )
        return group

    @property
    def turns(self) -> bool:
        return self._turns

    def describe(self, version: int = 0) -> Description:  # noqa: ARG002  nothing drifts
        """Figures of the trace, in which every trajectory counts once."""
        everything = [one for group in self._groups for one in group]
        count, groups = len(everything), len(self._groups)
        return Description(
            _spread([one.prompt_tokens for one in everything], None),
            _spread([one.response_tokens for one in everything], self.max_tokens),
            sum(len(one.turns) - 1 for one in everything) / count,
            sum(seconds for one in everything for _, seconds in one.turns) / count,
            (_note(groups, count),),
        )


def _note(groups: int, count: int) -> str:
    return (
        f"replayed from a trace of {groups:,} groups and {count:,} trajectories; group {groups:,} is the first one again,"
        " and a group repeats its samples when more are asked for"
    )


def _spread(lengths: list[int], cap: int | None) -> Spread:
    ordered, count = sorted(lengths), len(lengths)

    def at(share: float) -> float:
        return float(ordered[min(count - 1, int(share * count))])

    cut = sum(length == cap for length in lengths) / count
    return Spread(sum(lengths) / count, at(0.5), at(0.99), float(ordered[-1]), cut)


class Recorded(Strict):
    """A trajectory of a trace.

    Args:
        group: number of its group.
        prompt_tokens: number of prompt tokens.
        response_tokens: number of response tokens.
        turns: response tokens of each turn, and the seconds in the environment after it (0 after the last).
        reward: the reward; None if it was not recorded.
        reward_s: seconds of scoring; None if they were not recorded.
    """

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
