"""What the figures of `tools/bench/ranker.py`, `tools/bench/ranker_drift.py` and `tools/bench/dispatch.py` rest on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.fleetsim.cost import DecodeCost, PrefillCost
from tailrace.ranker import recall
from tailrace.repack import lpt
from tailrace.repack.lpt import longest_first

BENCH = Path(__file__).parents[1] / "tools/bench"
pytest.importorskip("numpy")


@pytest.fixture(scope="module", autouse=True)
def bench_on_path():
    sys.path.insert(0, str(BENCH))
    yield
    sys.path.remove(str(BENCH))


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 12), st.integers(1, 5), st.sampled_from([0.05, 0.1, 0.2, 0.5, 1.0]))
def test_the_fast_recall_is_the_packages(data, prompts, samples, share):
    import numpy as np
    from length_ranking.figures import fast_recall

    scores = data.draw(st.lists(st.integers(0, 4), min_size=prompts, max_size=prompts))
    lengths = [data.draw(st.lists(st.integers(1, 6), min_size=samples, max_size=samples)) for _ in scores]
    each = [score for score, row in zip(scores, lengths, strict=True) for _ in row]
    found = fast_recall(np.array(scores, float), np.array(lengths), share)
    assert found == pytest.approx(recall(each, [length for row in lengths for length in row], share))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 4), st.integers(1, 5))
def test_longest_first_takes_what_lpt_says_where_a_step_takes_as_long_for_any_batch(lengths, replicas, places):
    from dispatching.feeding import Shared
    from dispatching.modelled import Costs, makespan_s

    costs = Costs("constant", DecodeCost.fitted(0.0, 0.0, 0.0, 1.0, 10**6), PrefillCost(0.0), 1)
    found = makespan_s(Shared(longest_first(lengths)), costs, replicas, places, [1] * len(lengths), lengths)
    assert found == pytest.approx(lpt(lengths, replicas * places).makespan)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 40), st.integers(1, 4), st.integers(1, 5))
def test_every_arm_gives_out_each_trajectory_once(data, count, replicas, places):
    from dispatching.arms import ORACLE, Replicas, arms, feed
    from dispatching.feeding import next_placements

    predicted = {ORACLE: data.draw(st.lists(st.integers(1, 99), min_size=count, max_size=count))}
    plan = Replicas(replicas, places, 1000, lambda batch: 1.0 + batch, 10.0, 60.0)
    for arm in arms([ORACLE]):
        waiting, held, running, seen = feed(arm, plan, count, predicted), [0] * replicas, [], []
        while len(seen) < count or running:
            placed = next_placements(waiting, held, places)
            for replica, position in placed:
                held[replica] += 1
                running.append(replica)
                seen.append(position)
            assert running, f"{arm}: nothing runs and {count - len(seen)} wait"
            assert max(held) <= places
            held[running.pop(data.draw(st.integers(0, len(running) - 1)))] -= 1
        assert sorted(seen) == list(range(count))


def test_a_replica_without_work_takes_the_longest_that_waits_elsewhere():
    from dispatching.feeding import Own

    waiting = Own([[], [0, 1], [2, 3]], [5, 4, 9, 1])
    assert waiting.take(0, 1) is None
    assert waiting.take(0, 0) == 2
    assert [waiting.take(1, 3), waiting.take(1, 3), waiting.take(1, 3)] == [0, 1, None]


@pytest.mark.deep
def test_the_sums_of_a_drift_have_twice_as_many_terms_from_the_middle_on():
    pytest.importorskip("reasoning_gym")
    from ranker_drift import AHEAD, PROMPTS, TERMS, rows

    terms = [row["metadata"]["entry"]["num_terms"] for row in rows(8, 1)]
    half = 4 * PROMPTS
    assert len(terms) == 2 * half + AHEAD
    assert set(terms[:half]) == set(TERMS)
    assert set(terms[half:]) == {2 * count for count in TERMS}
    assert rows(8, 1) == rows(8, 1) != rows(8, 2)


def test_a_group_of_a_drift_counts_with_the_prediction_with_which_it_started(tmp_path):
    from ranker_drift import SAMPLES, launched

    from tailrace import contracts as c
    from tailrace.pipeline.run.directory import RunDirectory
    from tailrace.pipeline.run.eventlog import EventLog
    from tailrace.ranker import Prediction

    def route(group, prompt):
        refs = [
            c.TrajectoryRef(f"{group}.{sample}", group, sample, c.Purpose.TRAIN, prompt=prompt)
            for sample in range(SAMPLES)
        ]
        return c.Route(1, "r0", tuple(refs))

    def finished(group, samples=SAMPLES):
        return [c.Finished("r0", f"{group}.{sample}", 10 * group + sample) for sample in range(samples)]

    tick, learned = c.Tick(), c.Activity("ranker", "0", "updated", 2)
    with EventLog(RunDirectory(tmp_path).events) as log:
        log.append(1.0, [tick], [route(1, 5)])
        log.append(2.0, [c.Predicted(6, 7.0, 1, 9.0, 8.0), c.Predicted(5, 7.0, 1, 9.0, 8.0)], [])
        log.append(3.0, [tick], [route(2, 6)])
        log.append(4.0, [learned], [])
        log.append(5.0, [tick], [route(3, 7)])
        log.append(6.0, [c.Predicted(6, 70.0, 2, 90.0, 80.0), c.Predicted(8, 70.0, 2, 90.0, 80.0)], [])
        log.append(7.0, [tick], [route(4, 8), route(5, 9)])
        log.append(8.0, [*finished(1), *finished(2), *finished(3), *finished(4), *finished(5, 3)], [])
    groups, updates = launched(tmp_path)
    assert updates == 1
    assert [(one.prompt, one.updates, one.predicted) for one in groups] == [
        (5, 0, None),
        (6, 0, Prediction(7.0, 9.0, 8.0)),
        (7, 1, None),
        (8, 1, Prediction(70.0, 90.0, 80.0)),
    ]
    assert groups[0].lengths == list(range(10, 10 + SAMPLES))


def test_rankers_before_and_after_an_update_are_not_ranked_in_one_scale():
    from ranker_drift import SAMPLES, Launched, over_updates

    from tailrace.ranker import Example, LengthRanker, Prediction

    texts = ["word " * (at + 1) for at in range(40)]
    groups = []
    for at in range(40):
        scale, lengths = (1, 1_000)[at % 2], [at + 1] * SAMPLES
        groups.append(Launched(at, at % 2, Prediction(1.0, 99.0, (10.0 + at) * scale), lengths))
    frozen = LengthRanker.train([Example(text, (len(text),) * 2) for text in texts], method="prompt-length", seed=0)
    found = over_updates(groups, texts, frozen)
    assert found["prompts"] == 40
    assert found["recall20"] == found["frozen_recall20"] == found["prompt_length_recall20"] == pytest.approx(1.0)
    assert over_updates(groups[::2], texts, frozen)["prompts"] == 20


@pytest.mark.deep
def test_the_mix_is_the_same_in_each_process_and_its_work_leads_to_the_answer():
    pytest.importorskip("reasoning_gym")
    program = """
import hashlib
from length_ranking import mix
found = mix.problems(0, 5)
work = {family.name: family.work for family in mix.FAMILIES}
last = {"chain_sum", "leg_counting", "lcm", "letter_counting"}
for problem in found:
    words = work[problem.family](problem.entry)
    if problem.family in last:
        assert words[-1] == problem.answer, (problem, words)
    if problem.family == "gcd":
        assert words[-1] == "0" and words[-2] == problem.answer, (problem, words)
    if problem.family == "count_bits":
        assert sum(int(word) % 2 for word in words) == int(problem.answer), (problem, words)
    if problem.family == "count_primes":
        assert len(words) == int(problem.answer), (problem, words)
print(hashlib.sha256(repr(found).encode()).hexdigest())
"""
    digests = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            env={**os.environ, "PYTHONPATH": str(BENCH), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=200,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
