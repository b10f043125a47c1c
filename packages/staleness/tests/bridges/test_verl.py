"""The gate of verl's rollouter: its bound in whatever order samples complete, and verl's own rollouter with it and without."""

import json
import re
import shlex
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.staleness import DuplicateError, LimitError, StalenessBoundExceeded, UnknownEntryError, VersionError
from tailrace.staleness.bridges.verl_gate import SampleGate, whole_bound

RELEASE = "0.9.1"
PAGE = Path(__file__).parents[4] / "docs" / "verl.md"


@given(
    bound=st.integers(0, 3),
    batch=st.integers(1, 4),
    first=st.integers(0, 3),
    choices=st.lists(st.tuples(st.integers(0, 4), st.randoms(use_true_random=False)), max_size=120),
)
def test_no_sample_of_the_queue_is_trained_on_too_late(bound, batch, first, choices):
    gate = SampleGate(bound, batch, first)
    weights, begun, running, queue, lost = first, {}, [], [], 0

    def end(finish, draw):
        queue.extend(finish(running.pop(draw.randrange(len(running)))))

    for choice, draw in choices:
        if choice <= 1 and gate.may_start():
            begun[len(begun)] = weights
            running.append(len(begun) - 1)
            gate.start(running[-1])
        elif choice == 2 and running:
            end(gate.complete, draw)
        elif choice == 3 and running:
            end(gate.lose, draw)
            lost += 1
        elif (
            choice == 4 and len(queue) >= (weights - first + 1) * batch
        ):  # the trainer trained on a batch, and sends its weights
            gate.updated()
            weights += 1
        assert gate.weights == weights
    for draw in [draw for _, draw in choices[:1]] * len(running):
        end(gate.complete, draw)
    # All that is complete was handed over, and once. The trainer takes the queue as it comes, a batch for each version.
    assert len(queue) == len(set(queue)) == len(begun) - lost
    for place, sample in enumerate(queue):
        assert first + place // batch - begun[sample] <= bound


def test_samples_may_start_until_those_of_the_bound_are_there_and_again_after_an_update():
    gate = SampleGate(bound=1, batch_size=2)
    for name in "abcd":
        gate.start(name)
    assert not gate.may_start()
    with pytest.raises(StalenessBoundExceeded):
        gate.start("e")
    assert gate.complete("d") == ["d"]
    assert gate.complete("b") == ["b"]  # the first batch is whole
    assert not gate.may_start()
    gate.updated()
    assert gate.may_start()
    gate.updated()  # of the same weights: no batch came before
    assert gate.weights == 1
    for name in "ef":
        gate.start(name)
    assert not gate.may_start()
    assert gate.complete("e") == []  # "a" and "c" have no other batch than the second
    assert gate.complete("c") == ["c"]
    assert gate.lose("a") == ["e"]
    assert "weights at version 1; trainer at version 2" in gate.describe()


def test_what_an_engine_says_is_compared_with_what_was_counted():
    gate = SampleGate(bound=1, batch_size=1, version=3)
    gate.start("a")
    with pytest.raises(VersionError, match="found tokens of version 2 in sample 'a', expected 3"):
        gate.complete("a", oldest=2)
    assert gate.complete("a", oldest=3) == ["a"]
    with pytest.raises(UnknownEntryError):
        gate.complete("a")
    with pytest.raises(UnknownEntryError):
        gate.lose("b")
    gate.updated()
    gate.start("b")
    with pytest.raises(DuplicateError):
        gate.start("b")


@pytest.mark.parametrize("threshold", [0.1, 0.5, -1, 1.5])
def test_a_threshold_that_counts_no_versions_is_refused(threshold):
    with pytest.raises(LimitError, match=f"staleness_threshold = {threshold}, expected a whole number"):
        whole_bound(threshold)
    assert [whole_bound(1), whole_bound(2.0), whole_bound(0)] == [1, 2, 0]


@pytest.fixture(scope="session")
def verl(environment_with):
    """An interpreter with the release and this package. The last three are of verl's extra verl-core."""
    needed = ("torch==2.13.0", "uvicorn", "fastapi", "cachetools")
    return environment_with(f"verl=={RELEASE}", *needed, ours=("contracts", "staleness"))


def run(*words, folder):
    return subprocess.run(list(map(str, words)), cwd=folder, capture_output=True, text=True, timeout=900)


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_verls_own_rollouter_keeps_the_bound_with_the_gate_and_not_without(verl, tmp_path):
    done = run(verl, Path(__file__).with_name("verl_rollouts.py"), 12, folder=tmp_path)
    assert done.returncode == 0, done.stderr[-6000:]
    runs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"seed"')]
    worst = Counter()
    for each in runs:
        print(each)
        assert each["trained"] == each["distinct"] == each["expected"]
        assert each["dropped"] == 0
        if each["gate"] == "tailrace":
            assert each["worst"] <= each["bound"]
        worst[each["gate"]] = max(worst[each["gate"]], each["worst"] - each["bound"])
    assert len(runs) == 24
    assert worst["verl"] > 0, "no schedule was hard enough to tell the two apart"
    assert worst["tailrace"] <= 0


@pytest.mark.deep
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not PAGE.exists(), reason="it runs what the page in the repository says")
def test_verl_takes_the_settings_of_the_page_and_a_threshold_that_is_no_bound_is_refused(verl, tmp_path):
    commands = re.findall(r"^\$ (python -m .*? --cfg job.*?)(?=\n\$|\n```)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    for command in commands:
        program, *settings = shlex.split(command.replace("\\\n", " "))[1:]
        done = run(verl, program, *settings, folder=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        told = [word.split("=")[1] for word in settings if "=" in word]
        assert told
        assert all(value in done.stdout for value in told)
        assert "trigger_parameter_sync_step: 4" in done.stdout  # verl's own configuration
    assert len(commands) == 2
    program = (verl, "-m", "tailrace.staleness.bridges.verl")
    done = run(*program, "async_training.staleness_threshold=0.1", folder=tmp_path)
    assert done.returncode != 0
    assert "found async_training.staleness_threshold = 0.1, expected a whole number of versions" in done.stderr
