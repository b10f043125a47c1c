"""The modelled reward stage: pools, queues, timeouts that adapt, and a whole run that has one."""

import math
from random import Random

import pytest

from tailrace.contracts import Finished, Scored
from tailrace.fleetsim import simulate
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.fleet.fleet import ScoringWorkers
from tailrace.fleetsim.host.clock import VirtualTime
from tailrace.fleetsim.host.tokens import SimulatedTrajectory
from tailrace.fleetsim.members.scorer import RewardStage
from tailrace.fleetsim.workload.rewards import ScoringKind, ScoringKinds
from tailrace.fleetsim.workload.workload import ModelledSample
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.errors import ConfigError
from tailrace.reward.timeouts import AdaptiveTimeout

RULE = AdaptiveTimeout()


class Bench:
    """A stage on a clock of its own; notes what ended when."""

    def __init__(self, groups=1, needed=1000, **pools):
        self.time, self.ended, self.slowed = VirtualTime(math.inf), [], []
        self.stage = RewardStage(
            self.time,
            pools,
            groups,
            needed,
            lambda score: self.ended.append((self.time.now(), score)),
            lambda slows: self.slowed.append((self.time.now(), slows)),
        )

    def add(self, name, seconds, *, kind="code", reward=1.0, prompt=0, group=None, reference=None):
        sample = ModelledSample(10, ((10, 0.0),), reward, seconds, kind, reference)
        self.stage.add(
            name, SimulatedTrajectory(sample, 0, 0.0, "replica-0", prompt, prompt if group is None else group), 7
        )

    def run(self, until=1e6):
        self.time.wait(until)
        return {score.trajectory: at for at, score in self.ended}


def test_workers_are_shared_in_order_and_another_kind_does_not_wait():
    bench = Bench(code=ScoringWorkers(2, RULE), math=ScoringWorkers(1, RULE))
    for name, seconds in (("a", 4.0), ("b", 1.0), ("c", 2.0), ("d", 2.0)):
        bench.add(name, seconds)
    bench.add("m", 0.5, kind="math")
    assert bench.run() == {"a": 4.0, "b": 1.0, "c": 3.0, "d": 5.0, "m": 0.5}
    assert all(score.answers == 7 and score.reward == 1.0 and score.timeout_s is None for _, score in bench.ended)


def test_a_program_that_never_ends_is_cut_and_earns_nothing():
    bench = Bench(code=ScoringWorkers(4, RULE))
    bench.add("endless", math.inf, reward=0.0)
    bench.add("too slow", 31.0)
    bench.add("slow", 30.0)
    assert bench.run() == {"endless": 30.0, "too slow": 30.0, "slow": 30.0}
    scores = {score.trajectory: score for _, score in bench.ended}
    assert (scores["too slow"].reward, scores["too slow"].timeout_s, scores["too slow"].seconds) == (0.0, 30.0, 30.0)
    assert (scores["slow"].reward, scores["slow"].timeout_s) == (1.0, None)


def test_the_timeout_adapts_to_the_slowest_right_response_of_its_prompt_or_its_reference():
    bench = Bench(code=ScoringWorkers(1, RULE))
    bench.add("wrong", 8.0, reward=0.0)  # is no anchor
    bench.add("right", 6.0)
    bench.add("cut", math.inf, reward=0.0)  # at 1.5 x 6 s
    bench.add("other prompt", math.inf, reward=0.0, prompt=1)
    bench.add("known", math.inf, reward=0.0, prompt=2, reference=0.1)  # at the least timeout
    assert bench.run() == {"wrong": 8.0, "right": 14.0, "cut": 23.0, "other prompt": 53.0, "known": 55.0}


def test_an_aborted_score_frees_its_worker_or_leaves_the_queue():
    bench = Bench(code=ScoringWorkers(1, RULE))
    for name in "abc":
        bench.add(name, 10.0)
    bench.run(until=4.0)
    bench.stage.abort(("a", "b", "unknown"))
    assert bench.run() == {"c": 14.0}


def test_at_the_steps_end_nothing_starts_before_all_have_come():
    bench = Bench(needed=3, code=ScoringWorkers(3, RULE, at_step_end=True))
    bench.add("a", 1.0)
    bench.add("b", 2.0)
    assert bench.run(until=5.0) == {}
    bench.add("c", 3.0)
    assert bench.run() == {"a": 6.0, "b": 7.0, "c": 8.0}


def test_at_the_steps_end_groups_that_are_too_late_wait_for_their_own_and_are_dropped_with_it():
    bench = Bench(groups=2, needed=2, code=ScoringWorkers(9, RULE, at_step_end=True))
    for name, group in (("a0", 0), ("b0", 1), ("c0", 2), ("c1", 2), ("b1", 1), ("a1", 0)):
        bench.add(name, 1.0, prompt=group)
    assert bench.run(until=5.0) == {"b0": 1.0, "b1": 1.0, "c0": 1.0, "c1": 1.0}
    bench.stage.abort(("a0", "a1"))
    for name in ("d0", "d1", "e0"):
        bench.add(name, 1.0, prompt=int(name[0] == "e") + 3)
    assert set(bench.run(until=9.0)) == {"b0", "b1", "c0", "c1"}
    bench.add("e1", 1.0, prompt=4)
    assert set(bench.run()) == {"b0", "b1", "c0", "c1", "d0", "d1", "e0", "e1"}


def test_scores_on_the_replicas_devices_slow_them_while_they_run():
    bench = Bench(judge=ScoringWorkers(1, RULE, slows=1.25), math=ScoringWorkers(1, RULE))
    bench.add("m", 9.0, kind="math")
    bench.add("a", 2.0, kind="judge")
    bench.add("b", 3.0, kind="judge")
    bench.run()
    assert bench.slowed == [(0.0, 1.25), (5.0, 1.0)]


def test_another_attempt_at_a_prompt_has_its_anchor():
    bench = Bench(code=ScoringWorkers(1, RULE))
    bench.add("right", 6.0, prompt=3, group=3)
    bench.add("again", math.inf, reward=0.0, prompt=3, group=9)
    assert bench.run() == {"right": 6.0, "again": 15.0}


def test_a_restarted_stage_scores_the_step_again_without_waiting_for_it_and_has_learned_nothing():
    bench = Bench(needed=2, code=ScoringWorkers(2, RULE, at_step_end=True))
    bench.add("a", 2.0)
    bench.add("b", 9.0)
    bench.run(until=4.0)
    bench.stage.clear()
    bench.add("b", math.inf, reward=0.0)
    assert bench.run() == {"a": 2.0, "b": 4.0 + RULE.t_max_s}  # without the anchor 1.5 x 2 s


def test_shares_and_seconds_are_as_configured_and_a_seed_decides_them():
    seed, count = 3, 4000
    scoring = ScoringKinds(
        (ScoringKind("math", 0.02, weight=3.0), ScoringKind("code", 2.0, 0.5, 0.6, 0.05, references=True))
    )

    def drawn():
        generator = Random(seed)
        groups = [[ModelledSample(1, ((1, 0.0),), 1.0) for _ in range(4)] for _ in range(count)]
        for group in groups:
            scoring.assign(generator, group)
        return groups

    groups = drawn()
    assert groups == drawn()
    code = [group for group in groups if group[0].kind == "code"]
    assert all(len({sample.kind for sample in group}) == 1 for group in groups), seed
    assert len(code) / count == pytest.approx(0.25, abs=0.03), seed
    samples = [sample for group in code for sample in group]
    endless = [sample for sample in samples if sample.reward_s == math.inf]
    assert len(endless) / len(samples) == pytest.approx(0.05, abs=0.015), seed
    assert {sample.reward for sample in endless} == {0.0}
    times = sorted(sample.reward_s for sample in samples)
    assert times[int(0.475 * len(times))] == pytest.approx(2.0, rel=0.1), seed
    assert {sample.reward_s for group in groups for sample in group if sample.kind == "math"} == {0.02}
    assert all(sample.reference_s is not None for sample in samples)


def config(scoring=None, kinds=None, sigma=0.9, **pipeline):
    workload = {"response": [{"median": 900, "sigma": sigma}]} | ({"scoring": kinds} if kinds else {})
    content = {
        "app": "laminar",
        "pipeline": {
            "admission": "on-policy",
            "sync": "barrier",
            "routing": "least-loaded",
            "relocation": "none",
            "steps": 3,
            "prompts_per_step": 16,
            "samples_per_prompt": 8,
            "prompts_per_replica": 8,
            **pipeline,
        },
        "rollout": {"max_tokens": 8192},
        "fleet": {
            "model": "Qwen2.5-7B",
            "placement": "colocated",
            "weights": "global",
            "warm_up": 1,
            "trainer": {"gpus": 4},
            "rollout": {"gpus": 4},
            "workload": workload,
            **({"scoring": scoring} if scoring else {}),
        },
    }
    return validate([("test", content)])


CODE = [{"kind": "code", "median": 1.0, "sigma": 0.8, "endless": 0.05}]
FIXED = {"min_timeout_s": 30.0}


def test_a_run_scores_everything_and_its_lengths_are_those_of_a_run_without_the_stage():
    plain = simulate(config())
    staged = simulate(config({"code": {"workers": 16}}, CODE))
    assert staged.failure is None
    assert (staged.lost_trajectories, staged.trajectories) == (0, plain.trajectories)
    assert [batch.tokens for batch in staged.batches] == [batch.tokens for batch in plain.batches]
    scored = [event for _, *events in staged.events for event in events if isinstance(event, Scored)]
    over = [event for event in scored if event.over_budget]
    assert 0.02 < len(over) / len(scored) < 0.15
    assert all(event.reward == 0.0 and event.seconds >= 2.0 for event in over)
    assert staged.step_s > plain.step_s


def test_streaming_hides_scoring_and_adapting_hides_more():
    forms = ({"at_step_end": True, **FIXED}, FIXED, {})
    known = [CODE[0] | {"references": True}]
    steps = [simulate(config({"code": {"workers": 16, **form}}, known, sigma=0.1)).step_s for form in forms]
    assert steps[0] > steps[1] > steps[2]


def test_at_the_steps_end_every_score_comes_after_the_steps_last_response():
    result = simulate(config({"code": {"workers": 16, "at_step_end": True}}, CODE))
    generated = 0
    for _, *events in result.events:
        generated += sum(isinstance(event, Finished) for event in events)
        assert generated % 128 == 0 or not any(isinstance(event, Scored) for event in events)
    assert generated >= 3 * 128


def test_a_redundant_batch_aborts_scores_and_goes_on():
    redundant = {"name": "redundant", "surplus_groups": 4}
    bounded = {"name": "bounded", "bound": 1}
    result = simulate(config({"code": {"workers": 2}}, CODE, admission=bounded, batching=redundant))
    assert result.failure is None
    assert result.lost_trajectories == 0


def test_a_kind_has_the_runs_own_pool_and_timeouts_unless_the_fleet_says_otherwise():
    kinds = [*CODE, {"kind": "math", "median": 0.02}]
    own = build_fleet(config({"code": {"max_timeout_s": 10.0}}, kinds)).scoring
    assert own == {"code": ScoringWorkers(2, AdaptiveTimeout(2.0, 10.0, 1.5)), "math": ScoringWorkers(1, RULE)}


@pytest.mark.parametrize(
    ("scoring", "kinds", "says"),
    [
        (
            {},
            [CODE[0] | {"kind": "vote"}],
            "found the kind 'vote' in workload.scoring, expected its workers: scoring.vote.workers",
        ),
        (
            {"code": {"workers": 1}},
            None,
            "found scoring.code, expected a pool of workload.scoring: none",
        ),
        ({"code": {"workers": 1, "min_timeout_s": 40.0}}, CODE, "scoring.code: found t_min_s = 40 above t_max_s = 30"),
        ({"code": {"workers": 1}}, [*CODE, *CODE], "scoring with each kind once"),
    ],
)
def test_a_stage_that_cannot_be_is_refused(scoring, kinds, says):
    with pytest.raises((FleetError, ConfigError), match=says):
        simulate(config(scoring, kinds))


def test_a_judge_on_the_replicas_devices_makes_a_run_longer_and_loses_nothing():
    kinds = [{"kind": "judge", "median": 4.0}]
    alone, beside = (
        simulate(config({"judge": {"workers": 64, "slows": slows}}, kinds, steps=2), seed=1) for slows in (1.0, 1.5)
    )
    assert alone.failure is beside.failure is None
    assert alone.duration_s < beside.duration_s < 1.5 * alone.duration_s
    assert beside.trajectories == alone.trajectories
