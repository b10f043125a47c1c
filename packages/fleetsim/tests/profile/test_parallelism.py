"""Replicas of several sizes: what is timed of an engine, what follows from it, and that real engines are measured."""

import dataclasses
import os
import signal
from contextlib import ExitStack

import pytest

from tailrace.contracts import Sampling
from tailrace.fleetsim.errors import FleetError, ProfileError
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.fleetsim.profile.parallelism import (
    Subject,
    _process,
    chosen,
    fitted,
    measure_size,
    parallelism_toml,
    possible_sizes,
    profile_parallelism,
)
from tailrace.fleetsim.profile.sized_engine import WARM_STEPS, SizedEngine
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.config.parallelism import read_parallelism
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.build import build_spec
from tailrace.processes import ChildEndedError
from tailrace.repack import AdaptiveTP, ThroughputModel
from tailrace.rollout.testing import FakeEngine

GRID = [(batch, length) for batch in (1, 4, 16) for length in (50, 100, 200)]


def size(tp, *, step=(1e-5, 4e-3, 1e-3, 2e-3), kv_tokens=4_000, start_s=5.0, end_s=1.0, grid=GRID):
    model = ThroughputModel(*step)
    timings = [(b, n, 1e-4 * b * n + 2e-3 * b, model.step_latency_s(b * n, b)) for b, n in grid]
    return fitted(tp, kv_tokens, timings, start_s, end_s)


def subject(engine="transformers", **changes):
    known = {
        "model": "/nowhere", "options": {}, "prompts": [(3, 4)], "sampling": Sampling(), "longest": 200, "batch": 16,
        "start_s": 60.0, "generate_s": 60.0,
    }  # fmt: skip
    return Subject(engine, **{**known, **changes})


@pytest.fixture
def quick_start():
    return configuration("rollpacker")


# ---- what is timed ------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch):
    """A process's side of an engine without a model, with the steps that were asked of it."""
    steps = []

    class Counted(FakeEngine):
        def step(self):
            steps.append(len(self._requests))
            return super().step()

    def build(engine, model, options):
        built = Counted(max_num_seqs=options.get("max_num_seqs", 8), max_model_len=256)
        built.load_weights([("w", 7)])
        return built

    monkeypatch.setattr("tailrace.rollout.build_engine", build)
    answers = SizedEngine()
    assert answers({"do": "open", "engine": "fake", "model": "", "options": {}}) == {"kv_tokens": 0, "max_running": 8}
    return answers, steps


def test_a_batch_is_prefilled_and_then_decodes_alone(opened):
    answers, steps = opened
    found = answers({"do": "time", "batch": 4, "length": 20, "steps": 5, "tokens": [1, 2, 3], "seed": 9})
    assert found.keys() == {"prefill_s", "step_s"}
    assert all(seconds > 0 for seconds in found.values())
    assert steps == [4] * (1 + WARM_STEPS + 5)
    assert answers({"do": "time", "batch": 2, "length": 20, "steps": 5, "tokens": [1], "seed": 1}), "it was left idle"


def test_sequences_that_never_all_run_at_once_give_no_figures(opened):
    answers, _ = opened
    assert answers({"do": "time", "batch": 9, "length": 20, "steps": 5, "tokens": [1, 2], "seed": 9}) == {}


def test_responses_are_generated_for_their_lengths(opened):
    answers, _ = opened
    sampling = dataclasses.asdict(Sampling(max_tokens=6))
    found = answers({"do": "generate", "prompts": [[1, 2], [3]] * 6, "sampling": sampling})
    assert found == {"lengths": [6] * 12, "preemptions": 0}


# ---- processes ----------------------------------------------------------------------------------------------------


def test_an_engine_that_refuses_is_left_out_with_its_line():
    found = measure_size(subject(engine="none"), 1, generates=False)
    assert found.size is None
    assert "found engine 'none'" in found.why
    assert "\n" not in found.why


def test_a_process_that_dies_is_told_and_leaves_nothing():
    with ExitStack() as stack:
        engine = stack.enter_context(_process())
        os.kill(engine._child.pid, signal.SIGKILL)
        with pytest.raises(ChildEndedError):
            engine.ask("open", 60.0, engine="none", model="", options={})
    assert engine._child.poll() == -signal.SIGKILL


# ---- what follows -------------------------------------------------------------------------------------------------


def test_costs_are_those_that_the_timings_came_from():
    found = size(2)
    assert (found.k1, found.k2, found.k3, found.k4) == pytest.approx((1e-5, 4e-3, 1e-3, 2e-3), rel=1e-6, abs=3e-3)
    for batch, length, _, step_s in found.timings:
        model = ThroughputModel(found.k1, found.k2, found.k3, found.k4)
        assert model.step_latency_s(batch * length, batch) == pytest.approx(step_s, rel=1e-6)
    assert (found.prefill_token_s, found.prefill_sequence_s) == pytest.approx((1e-4, 2e-3), rel=1e-6)


def test_timings_that_contradict_the_model_still_give_costs_of_at_least_0():
    falls = [(b, n, 1e-3, 0.5 / b - 1e-4 * n / 200) for b, n in GRID]  # larger batches are faster, longer ones too
    found = fitted(1, 4_000, falls, 1.0, 1.0)
    assert min(found.k1, found.k2, found.k3, found.k4) >= 0
    assert found.k2 + found.k3 + found.k4 > 0
    assert found.error > 0.1, "and it says how badly they fit"


def test_the_file_reads_back_and_says_what_a_change_costs(quick_start, tmp_path):
    wide = size(2, step=(5e-6, 2e-3, 4e-4, 2e-3), kv_tokens=90_000, start_s=8.0, end_s=2.0)
    rows = [size(1, kv_tokens=700, start_s=5.0, end_s=1.0), wide]
    lengths = tuple(range(5, 190))
    profile = chosen(quick_start, subject(longest=250), rows, lengths)
    assert profile.resize_s == pytest.approx((5 + 1 + 8 + 2) / 2)
    assert (profile.smallest, profile.longest) == (1, 250)
    assert profile.short == 2, "so many race that one device's cache holds a few at once only"
    assert {profile.short, profile.long} <= {1, 2}
    assert profile.lengths[0] < 12
    assert profile.lengths[-1] > 180
    path = tmp_path / "sizes.toml"
    path.write_text(parallelism_toml(profile))
    again = read_parallelism(path)
    assert again.sizes[1].timings[0][:2] == (1, 50)
    assert (again.short, again.long, again.lengths) == (profile.short, profile.long, profile.lengths)
    assert (again.engine, again.resize_s) == ("transformers", pytest.approx(8.0))
    assert again.replica_costs[0] == pytest.approx(profile.replica_costs[0], rel=1e-4)
    with pytest.raises(ProfileError, match="found no size of a replica that works"):
        chosen(quick_start, subject(), [], (), ["1 device: no"])


def with_file(tmp_path, *settings, rows=None, app="rollpacker"):
    rows = rows or [size(1), size(2, step=(1e-5, 2e-3, 5e-4, 2e-3), kv_tokens=9_000)]
    path = tmp_path / "sizes.toml"
    path.write_text(parallelism_toml(chosen(configuration("rollpacker"), subject(), rows, range(5, 190))))
    return configuration(app, settings=(f"rollout.parallelism={path}", *settings))


def test_the_planner_takes_it(tmp_path):
    policy = build_spec(with_file(tmp_path)).provisioning
    assert isinstance(policy, AdaptiveTP)
    assert policy.resize_s == pytest.approx(6.0)
    assert [row[0] for row in policy.replica_costs] == [1, 2]
    own = build_spec(
        with_file(tmp_path, "pipeline.provisioning={name='adaptive-tp', resize_s=0.0, short=1}")
    ).provisioning
    assert isinstance(own, AdaptiveTP)
    assert (own.resize_s, own.short) == (0.0, 1), "what the configuration says wins"


def test_balanced_takes_the_costs_of_every_size(tmp_path):
    provisioning = (
        "pipeline.provisioning={name='balanced', all_devices=8, training_times=[[1, 40.0], [2, 21.0], [4, 12.0]]}"
    )
    config = with_file(tmp_path, provisioning, app="streamrl")
    assert build_spec(config).provisioning.trains_on() == config.trainer.processes
    with pytest.raises(ConfigError, match=r"gives the trainer \d devices"):
        build_spec(config.model_copy(update={"trainer": config.trainer.model_copy(update={"processes": 7})}))


def test_a_run_on_a_measured_machine_resizes_at_the_measured_cost(tmp_path):
    """`tailrace simulate rollpacker` has costs of the other sizes then, and a change takes its seconds."""
    lengths = "fleet.workload={response={median=60, sigma=0.8}}"
    preempts = "pipeline.provisioning={name='adaptive-tp', short=1, long=2}"
    rows = [
        size(1, start_s=20.0, end_s=3.0),
        size(2, step=(1e-5, 2e-3, 5e-4, 2e-3), kv_tokens=9_000, start_s=20.0, end_s=3.0),
    ]
    config = with_file(tmp_path, lengths, preempts, "pipeline.steps=12", "fleet.warm_up=0", rows=rows)
    fleet = build_fleet(config, seed=1)
    assert fleet.pools[0].rollout.resize_s == pytest.approx(23.0)
    assert set(fleet.pools[0].sized) == {2}
    simulation = Simulation(fleet)
    simulation.run()
    assert simulation.controller.failure is None
    without = configuration("rollpacker", settings=(lengths, "pipeline.provisioning=adaptive-tp"))
    with pytest.raises(FleetError, match=r"rollout\.parallelism"):
        build_fleet(without)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "found no readable profile (No such file"),
        ("format = ", "found no readable profile (no TOML)"),
        ("format = 7\n", "found format 7, expected 1"),
        ("format = 1\nengine = 'vllm'\n", "expected"),
        ("short", "found"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_in_a_line(text, says, tmp_path, quick_start):
    path = tmp_path / "sizes.toml"
    if text == "short":
        good = parallelism_toml(chosen(quick_start, subject(), [size(1)], [4, 5]))
        text, says = good.replace("short = 1", "short = 4"), "short, long and smallest of the sizes [1]"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_parallelism(path)
    assert str(refused.value).startswith(f"key 'rollout.parallelism': {path}: ")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


# ---- real engines -------------------------------------------------------------------------------------------------


def small(tmp_path, **rollout):
    from tailrace.pipeline.testing.small_run import make_files

    model = make_files(tmp_path)
    return validate(
        [
            (
                "test",
                {
                    "app": "rollpacker",
                    "task": {"train": str(tmp_path / "train.jsonl"), "held_out": str(tmp_path / "held_out.jsonl"),
                             "verifier": "exact", "held_out_size": 8},
                    "model": {"path": str(model)},
                    "pipeline": {"steps": 4, "prompts_per_step": 4, "samples_per_prompt": 2, "prompts_per_replica": 4},
                    "rollout": {"max_tokens": 24, "replicas": 2, **rollout},
                },
            )
        ]
    )  # fmt: skip


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_an_engine_of_one_device_is_measured(tmp_path):
    pytest.importorskip("transformers")
    config = small(tmp_path, engine="transformers")
    found = profile_parallelism(config, tmp_path / "run", progress=lambda *_: None)
    profile = found.profile
    assert found.left_out == []
    assert [one.tp for one in profile.sizes] == [1]
    assert (profile.short, profile.long, profile.smallest) == (1, 1, 1)
    assert profile.resize_s > 1.0, "a process imports and loads"
    assert max(profile.lengths) <= 24


@pytest.mark.deep
@pytest.mark.timeout(1200)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="it takes two cores")
def test_vllm_is_measured_on_one_core_and_on_two(tmp_path):
    pytest.importorskip("vllm")
    from tailrace.trainer.small_model import build_model

    config = small(tmp_path, engine="vllm")
    shape = {"hidden": 64, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 32, "mlp": 64}  # vLLM has no heads of 8
    build_model(tmp_path / "model", vocab_size=64, seed=0, **shape)
    assert possible_sizes(config, config.model.path)[:2] == [1, 2]
    found = profile_parallelism(config, tmp_path / "run", progress=lambda *_: None)
    profile = found.profile
    assert found.left_out == []
    assert [one.tp for one in profile.sizes] == [1, 2]
    assert all(one.kv_tokens and one.timings for one in profile.sizes)
    assert profile.resize_s > 3.0
