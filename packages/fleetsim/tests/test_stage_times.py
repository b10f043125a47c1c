"""Times of stages: those of a simulated run, and the shares of devices that follow from them."""

import pytest

from tailrace.fleetsim import simulate
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.fleet.stage_times import NEVER, StageTimes
from tailrace.pipeline.config.loading import merge, validate

CONTENT = {
    "app": "laminar",
    "rollout": {"max_tokens": 4096},
    "pipeline": {
        "steps": 6,
        "prompts_per_step": 64,
        "samples_per_prompt": 2,
        "prompts_per_replica": 64,
        "admission": "on-policy",
        "sync": "barrier",
        "relocation": "none",
        "routing": "round-robin",
        "training": "full-batch",
    },
    "fleet": {
        "model": "Qwen2.5-7B",
        "trainer": {"gpus": 8, "data_s": 0.0},
        "rollout": {"gpus": 8},
        "workload": {"response": {"median": 1200, "sigma": 0.7}, "correlation": 1.0},
        "delays": {"report_s": 0.01},
        "warm_up": 1,
    },
}


def config(**keys):
    return validate([("test", merge(CONTENT, keys))])


def test_they_are_the_seconds_of_a_simulated_run():
    content = config(pipeline={"prompts_per_replica": 8})
    times = StageTimes(content)
    generation = times.generation(8)
    size = {"fleet": {"rollout": {"tensor_parallel": generation.tensor_parallel}}}
    even = {"pipeline": {"prompts_per_replica": 64 * generation.tensor_parallel // 8}}
    found = simulate(validate([("test", merge(merge(CONTENT, size), even))]))
    predicted = generation.seconds + times.train_s(8)
    assert found.step_s == pytest.approx(predicted, rel=0.15)  # of another batch, with weights that move
    assert found.step_s > 0.9 * predicted


def test_more_devices_are_never_slower_in_training_and_the_ends_are_those_of_all_trajectories():
    times = StageTimes(config())
    assert times.train_s(1) == NEVER
    trained = [times.train_s(count) for count in (2, 4, 8, 16)]
    assert trained == sorted(trained, reverse=True)
    for count in (1, 2, 4, 6):
        found = times.generation(count)
        assert len(found.ends) == 128
        assert found.seconds == found.ends[-1][0] == max(at for at, _ in found.ends)
        assert count % found.tensor_parallel == 0


def test_the_longest_apart_end_no_later_than_dealt_out_where_the_tail_is_long():
    long_tail = {"workload": {"response": {"median": 300, "sigma": 1.4}}}
    blind = StageTimes(config(fleet=long_tail)).generation(8)
    skewed = StageTimes(config(fleet=long_tail, pipeline={"routing": "skew-aware"})).generation(8)
    assert skewed.seconds < 1.02 * blind.seconds
    assert sum(tokens for _, tokens in skewed.ends) == sum(tokens for _, tokens in blind.ends)


def test_an_iteration_is_the_slower_stage_or_what_streaming_hides_less_of():
    times = StageTimes(config())
    overlapped, streamed = times.share(16), times.share(16, streamed=True)
    for found in (overlapped, streamed):
        assert found.generate + found.train <= 16
        assert found.tensor_parallel == times.generation(found.generate).tensor_parallel
    slower = max(times.generation(overlapped.generate).seconds, times.train_s(overlapped.train))
    assert overlapped.iteration_s == slower
    assert streamed.iteration_s >= overlapped.iteration_s
    generation, train_s = times.generation(streamed.generate), times.train_s(streamed.train)
    assert max(generation.seconds, train_s) < streamed.iteration_s < generation.seconds + train_s
    pairs = [(x, y) for x in range(1, 16) for y in range(1, 17 - x)]
    assert overlapped.iteration_s == min(max(times.generation(x).seconds, times.train_s(y)) for x, y in pairs)
    assert streamed.iteration_s == min(times.streamed_s(times.generation(x), y) for x, y in pairs)


def test_devices_are_given_in_units_and_across_datacenters_the_slower_stage_keeps_all():
    times = StageTimes(config())
    found = times.share(16, unit=4)
    assert found.generate % 4 == found.train % 4 == 0
    across = times.share_across(4, 64, unit=4)
    assert across.generate == 4
    assert across.train <= 64
    assert times.train_s(across.train) <= 1.02 * times.generation(4).seconds


def test_what_fits_nowhere_is_refused():
    with pytest.raises(FleetError, match="no 'model'"):
        StageTimes(validate([("test", {"app": "laminar"})]))
    with pytest.raises(FleetError, match="fits on no number of H800"):
        StageTimes(config(rollout={"max_tokens": 30_000_000}, fleet={"workload": {"response": {"median": 29_000_000}}}))


def test_each_mini_batch_has_an_optimizer_step():
    whole, parts = (
        StageTimes(config(pipeline={"training": training}, fleet={"trainer": {"optimizer_s": 0.75}})).train_s(8)
        for training in ("full-batch", {"name": "mini-batch", "parts": 16})
    )
    assert parts == pytest.approx(whole + 15 * 0.75)
