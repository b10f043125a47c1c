"""Recorded trajectories as JSON lines, one object each:

    {"group": 3, "prompt_tokens": 120, "response_tokens": 900, "turns": [[400, 1.5], [500, 0]], "reward": 1.0, "reward_s": 0.2}

``turns`` (tokens and the seconds in the environment after them, 0 after the last), ``reward`` and ``reward_s`` may be left
out. A group may have any number of samples, anywhere in the file, all with the same prompt.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.fleetsim.errors import WorkloadError
from tailrace.fleetsim.workload.sample import Sample, Turns

_REQUIRED = ("group", "prompt_tokens", "response_tokens")
_OPTIONAL = ("turns", "reward", "reward_s")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trajectory of a trace.

    Args:
        group: number of its group, at least 0.
        prompt_tokens: at least 1.
        turns: response tokens of each turn, at least 1, and the seconds after it; 0 after the last.
        reward: None where it was not recorded.
        reward_s: seconds of scoring; None where they were not recorded.
    """

    group: int
    prompt_tokens: int
    turns: Turns
    reward: float | None = None
    reward_s: float | None = None

    @classmethod
    def of(cls, group: int, sample: Sample) -> Recorded:
        """A sample of a workload."""
        return cls(group, sample.prompt_tokens, sample.turns, sample.reward, sample.reward_s)

    @property
    def response_tokens(self) -> int:
        """Response tokens of all turns."""
        return sum(tokens for tokens, _ in self.turns)


def write_trace(path: Path, trajectories: Iterable[Recorded]) -> int:
    """Write trajectories, of a real run or of a simulated one. The file is replaced whole or not at all.

    Returns:
        How many were written.

    Raises:
        WorkloadError: a trajectory that `read_trace` would refuse, or none at all. Nothing is written.
    """
    partial = path.with_name(path.name + ".partial")
    prompts: dict[int, tuple[int, int]] = {}
    count = 0
    try:
        with partial.open("w", encoding="utf-8") as file:
            for count, trajectory in enumerate(trajectories, start=1):
                where = f"{path}:{count}"
                row = _row(trajectory)
                _same_prompt(_parse(row, where), count, prompts, where)
                file.write(json.dumps(row) + "\n")
        if not count:
            raise WorkloadError(f"{path}: found no trajectory to write, expected at least one")
        partial.replace(path)
    except OSError as error:
        raise WorkloadError(f"{path}: found no place to write ({error.strerror}), expected one for a trace") from error
    finally:
        partial.unlink(missing_ok=True)
    return count


def read_trace(path: Path, max_tokens: int | None = None) -> list[Recorded]:
    """The trajectories of a file, in its order.

    Args:
        path: the file.
        max_tokens: no response may be longer.

    Raises:
        WorkloadError: one line with the file, the line, what was found and what was expected.
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
                trajectory = _parse(_object(line, where), where)
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


def _row(trajectory: Recorded) -> dict[str, Any]:
    row: dict[str, Any] = {
        "group": trajectory.group,
        "prompt_tokens": trajectory.prompt_tokens,
        "response_tokens": trajectory.response_tokens,
    }
    if len(trajectory.turns) != 1 or trajectory.turns[0][1]:
        row["turns"] = [list(turn) for turn in trajectory.turns]
    if trajectory.reward is not None:
        row["reward"] = trajectory.reward
    if trajectory.reward_s is not None:
        row["reward_s"] = trajectory.reward_s
    return row


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise WorkloadError(f"{where}: found {_short(line.strip())}, expected a JSON object") from None
    if not isinstance(row, dict):
        raise WorkloadError(f"{where}: found {_short(line.strip())}, expected a JSON object")
    return row


def _parse(row: dict[str, Any], where: str) -> Recorded:
    for key in row:
        if key not in _REQUIRED and key not in _OPTIONAL:
            raise WorkloadError(f"{where}: found the unknown key {key!r}, expected {', '.join(_REQUIRED + _OPTIONAL)}")
    group, prompt, response = (_whole(row, key, 0 if key == "group" else 1, where) for key in _REQUIRED)
    turns = _turns(row.get("turns"), response, where)
    reward = row.get("reward")
    if reward is not None and not _is_number(reward):
        raise WorkloadError(f"{where}: found reward {_short(reward)}, expected a finite number")
    reward_s = row.get("reward_s")
    if reward_s is not None and not (_is_number(reward_s) and reward_s >= 0):
        raise WorkloadError(f"{where}: found reward_s {_short(reward_s)}, expected seconds, at least 0")
    return Recorded(
        group, prompt, turns, None if reward is None else float(reward), None if reward_s is None else float(reward_s)
    )


def _whole(row: dict[str, Any], key: str, least: int, where: str) -> int:
    if key not in row:
        raise WorkloadError(f"{where}: found no key {key!r}, expected {', '.join(_REQUIRED)}")
    value = row[key]
    if not _is_whole(value) or value < least:
        raise WorkloadError(f"{where}: found {key} {_short(value)}, expected a whole number, at least {least}")
    assert isinstance(value, int)
    return value


def _turns(value: Any, response: int, where: str) -> Turns:
    if value is None:
        return ((response, 0.0),)
    if not isinstance(value, list) or not value:
        raise WorkloadError(f"{where}: found turns {_short(value)}, expected a list of [tokens, seconds]")
    turns: list[tuple[int, float]] = []
    for turn in value:
        if not (isinstance(turn, list) and len(turn) == 2 and _is_whole(turn[0]) and turn[0] >= 1):
            raise WorkloadError(f"{where}: found the turn {_short(turn)}, expected [tokens, seconds], at least 1 token")
        if not (_is_number(turn[1]) and turn[1] >= 0):
            raise WorkloadError(
                f"{where}: found the turn {_short(turn)}, expected [tokens, seconds], at least 0 seconds"
            )
        turns.append((turn[0], float(turn[1])))
    if turns[-1][1] != 0:
        raise WorkloadError(f"{where}: found {turns[-1][1]} seconds after the last turn, expected 0: nothing follows")
    total = sum(tokens for tokens, _ in turns)
    if total != response:
        raise WorkloadError(f"{where}: found turns of {total:,} tokens in all, expected response_tokens = {response:,}")
    return tuple(turns)


def _same_prompt(trajectory: Recorded, number: int, prompts: dict[int, tuple[int, int]], where: str) -> None:
    tokens, first = prompts.setdefault(trajectory.group, (trajectory.prompt_tokens, number))
    if trajectory.prompt_tokens != tokens:
        raise WorkloadError(
            f"{where}: found prompt_tokens {trajectory.prompt_tokens}, expected {tokens} as in line {first}:"
            f" the samples of group {trajectory.group} share their prompt"
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    # A whole number from JSON may be too large for a float.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
