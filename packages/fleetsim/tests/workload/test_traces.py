"""Recorded trajectories: read, refused and replayed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.fleetsim.errors import WorkloadError
from tailrace.fleetsim.workload import Recorded, WorkloadConfig, read_trace

GOOD = {"group": 0, "prompt_tokens": 10, "response_tokens": 30}

turns = st.lists(st.tuples(st.integers(1, 500), st.floats(0, 100)), min_size=1, max_size=4).map(
    lambda parts: (*parts[:-1], (parts[-1][0], 0.0))
)
trajectories = st.lists(
    st.builds(
        lambda group, turns, reward, reward_s: Recorded(
            group=group,
            prompt_tokens=10 + group,
            response_tokens=sum(tokens for tokens, _ in turns),
            turns=turns,
            reward=reward,
            reward_s=reward_s,
        ),
        st.integers(0, 5),
        turns,
        st.none() | st.floats(-1, 1),
        st.none() | st.floats(0, 10),
    ),
    min_size=1,
    max_size=20,
)


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


@settings(deadline=None)  # writes files
@given(trajectories)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, recorded: list[Recorded]) -> None:
    path = tmp_path_factory.mktemp("traces") / "trace.jsonl"
    assert read_trace(write(path, *(one.model_dump_json(exclude_none=True) for one in recorded))) == recorded


@settings(deadline=None)  # writes files
@given(trajectories, st.integers(-30, 30), st.integers(0, 9))
def test_groups_are_replayed_in_order_and_again(
    tmp_path_factory: pytest.TempPathFactory, recorded: list[Recorded], index: int, samples: int
) -> None:
    path = tmp_path_factory.mktemp("traces") / "trace.jsonl"
    write(path, *(one.model_dump_json() for one in recorded))
    workload = WorkloadConfig(trace=path).build(1, 10_000)
    numbers = sorted({one.group for one in recorded})
    expected = [one for one in recorded if one.group == numbers[index % len(numbers)]]
    replayed = workload.group(index, samples)
    assert len(replayed) == samples
    for position, sample in enumerate(replayed):
        source = expected[position % len(expected)]
        assert (sample.prompt_tokens, sample.turns) == (source.prompt_tokens, source.turns)
        assert sample.response_tokens == source.response_tokens
        assert sample.reward == source.reward if source.reward is not None else sample.reward in (0.0, 1.0)
        assert sample.reward_s == (source.reward_s or 0.0)
    assert workload.group(index, samples + 3)[:samples] == replayed
    assert workload.sample(index, samples) == workload.group(index, samples + 1)[-1]


def test_a_trace_is_described(tmp_path: Path) -> None:
    rows = [{"group": 7 - i // 2, "prompt_tokens": 50, "response_tokens": 100 * (i + 1)} for i in range(8)]
    rows[0]["turns"] = [[40, 1.5], [60, 0]]  # type: ignore[assignment]
    workload = WorkloadConfig(trace=write(tmp_path / "trace.jsonl", *rows)).build(1, 800)
    description = workload.describe()
    assert (description.response.mean, description.response.longest) == (450.0, 800.0)
    assert description.response.at_cap == 1 / 8
    assert (description.calls, description.environment_s) == (1 / 8, 1.5 / 8)
    assert "4 groups and 8 trajectories; group 4 is the first one again" in str(description)
    assert [one.response_tokens for one in workload.group(0, 2)] == [700, 800]


def test_rewards_that_were_not_recorded_are_drawn(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", GOOD, {**GOOD, "reward": -0.25})
    table = {"trace": path, "solve_rate": {"mean": 0.8, "spread": 0.0}}
    workload = WorkloadConfig.model_validate(table).build(1, 100)
    groups = [workload.group(index, 2) for index in range(1000)]
    assert {second.reward for _, second in groups} == {-0.25}
    assert sum(first.reward for first, _ in groups) / 1000 == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "2: found {, expected a JSON object"),
        ("[1]", "2: found [1], expected a JSON object"),
        ("[" * 100_000, "2: found [[["),
        ({"group": 0, "prompt_tokens": 10}, "2: key 'response_tokens': found"),
        ({**GOOD, "tokens": 3}, "2: found the unknown key 'tokens', expected one of group, prompt_tokens"),
        ({**GOOD, "group": -1}, "2: key 'group': found -1, expected: greater than or equal to 0"),
        ({**GOOD, "group": True}, "2: key 'group': found True, expected: a valid integer"),
        ({**GOOD, "prompt_tokens": 0}, "2: key 'prompt_tokens': found 0, expected: greater than or equal to 1"),
        ({**GOOD, "response_tokens": 30.0}, "2: key 'response_tokens': found 30.0, expected: a valid integer"),
        ({**GOOD, "response_tokens": "30"}, "2: key 'response_tokens': found '30', expected: a valid integer"),
        ({**GOOD, "prompt_tokens": 11}, "2: found prompt_tokens 11, expected 10 as in line 1"),
        ({**GOOD, "turns": [[30]]}, "2: key 'turns.0.1': found"),
        (
            {**GOOD, "turns": [[0, 1], [30, 0]]},
            "2: key 'turns.0.0': found 0, expected: greater than or equal to 1",
        ),
        ({**GOOD, "turns": [[10, -1], [20, 0]]}, "2: key 'turns.0.1': found -1, expected: greater than or equal to 0"),
        (
            {**GOOD, "turns": [[10, 1], [20, 2]]},
            "2: key 'turns': found [[10, 1], [20, 2]], expected: 0 seconds after",
        ),
        (
            {**GOOD, "turns": [[10, 1], [21, 0]]},
            "2: key 'turns': found [[10, 1], [21, 0]], expected: 30 tokens in all",
        ),
        ({**GOOD, "reward": "good"}, "2: key 'reward': found 'good', expected: a valid number"),
        (
            '{"group":0,"prompt_tokens":10,"response_tokens":30,"reward":NaN}',
            "2: key 'reward': found nan, expected: a finite number",
        ),
        ({**GOOD, "reward": 10**400}, "2: key 'reward': found 1000"),
        ({**GOOD, "reward_s": -1}, "2: key 'reward_s': found -1, expected: greater than or equal to 0"),
        ({**GOOD, "response_tokens": 101}, "2: found a response of 101 tokens, expected at most max_tokens = 100"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: object, message: str) -> None:
    path = write(tmp_path / "trace.jsonl", GOOD, row)
    with pytest.raises(WorkloadError) as caught:
        WorkloadConfig(trace=path).build(1, 100)
    assert str(caught.value).startswith(f"{path}:{message}")
    assert "\n" not in str(caught.value)


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, message in {
        "missing": "No such file",
        ".": "Is a directory",
        "empty": "found no trajectory",
        "binary": "not UTF-8",
    }.items():
        with pytest.raises(WorkloadError, match=message):
            read_trace(tmp_path / name)
