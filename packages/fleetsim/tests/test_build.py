"""Fleets that cannot exist are refused with the numbers that clash and what would fit, in one line."""

import math

import pytest

from tailrace.contracts import TailraceError
from tailrace.fleetsim import simulate
from tailrace.pipeline.config.loading import validate

GOOD = {"model": "Qwen2.5-7B", "trainer": {"gpus": 4}, "rollout": {"gpus": 4}}


def complaint(fleet, **keys):
    content = {"app": "laminar", "fleet": fleet, "pipeline": {"steps": 3}, "rollout": {"max_tokens": 1024}, **keys}
    with pytest.raises(TailraceError) as error:
        simulate(validate([("test", content)]))
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_model_that_does_not_fit_says_what_would():
    text = complaint({**GOOD, "model": "Qwen2.5-72B"})
    assert "145.4 GB" in text
    assert "tensor_parallel = 4 would" in text


def test_training_that_does_not_fit_says_how_many_devices_would():
    text = complaint({**GOOD, "model": "Qwen2.5-72B", "rollout": {"gpus": 8, "tensor_parallel": 8}})
    assert "training Qwen2.5-72B on 4 x H800" in text
    assert "GPUs would" in text


@pytest.mark.parametrize(
    ("fleet", "said"),
    [
        ({}, "neither 'model' nor 'profile'"),
        ({"model": "Qwen2.5-7B", "rollout": {"gpus": 4}}, "no 'trainer.gpus'"),
        ({"model": "Qwen2.5-7B", "trainer": {"gpus": 4}}, "no 'rollout.gpus'"),
        ({**GOOD, "trainer": {"gpus": 0}}, "fleet.trainer.gpus"),
        ({**GOOD, "rollout": {"gpus": 6, "tensor_parallel": 4}}, "expected a multiple: 4 or 8"),
        ({**GOOD, "rollout": {"gpus": 2, "tensor_parallel": 4}}, "expected a multiple: 4"),
        ({**GOOD, "rollout": {"gpus": 16, "tensor_parallel": 16}}, "tensor_parallel = 16"),
        ({**GOOD, "rollout": {"gpus": 4, "device": "H900"}}, "H800"),
        ({**GOOD, "model": "Qwen2.5-8B"}, "Qwen2.5-7B"),
        ({**GOOD, "placement": "colocated", "rollout": {"gpus": 8}}, "expected the same devices"),
        ({**GOOD, "weights": "global", "cross_datacenter": True}, "cannot cross"),
        ({**GOOD, "rollout": []}, "'fleet.rollout'"),
        ({**GOOD, "rollout": {"gpus": 4, "start_s": math.inf}}, "key 'fleet.rollout.start_s': found inf"),
        ({**GOOD, "delays": {"report_s": math.inf}}, "key 'fleet.delays.report_s': found inf"),
        ({**GOOD, "failures": {"per_1000_gpu_days": math.inf}}, "per_1000_gpu_days': found inf"),
        ({**GOOD, "rollout": 4}, "'fleet.rollout'"),
        ({**GOOD, "rollout": [{"gpus": 4}, {}]}, "no 'rollout.1.gpus'"),
        ({**GOOD, "rollout": {"gpu": 4}}, "'fleet.rollout.gpu', expected"),
        ({**GOOD, "rollout": [{"gpus": 4}, {"gpu": 4}]}, "'fleet.rollout.1.gpu', expected"),
        ({**GOOD, "rollout": [{"gpus": 4}, {"gpus": 6, "tensor_parallel": 4}]}, "rollout.1.gpus = 6"),
        ({**GOOD, "rollout": [{"gpus": 4}, {"gpus": 4}], "placement": "colocated"}, "2 tables rollout"),
        ({**GOOD, "rollout": [{"gpus": 4, "hybrid": True}, {"gpus": 4}]}, "'split', expected 'colocated'"),
        (
            {**GOOD, "rollout": [{"gpus": 4, "hybrid": True}] * 2, "placement": "colocated"},
            "2 of them with hybrid = true, expected one table",
        ),
        (
            {**GOOD, "rollout": [{"gpus": 8, "hybrid": True}, {"gpus": 4}], "placement": "colocated"},
            "trainer.gpus = 4 and rollout.gpus = 8 colocated",
        ),
        (
            {**GOOD, "rollout": [{"gpus": 4, "name": "a"}, {"gpus": 4, "name": "a"}]},
            "a second pool 'a' in rollout.1.name",
        ),
        ({**GOOD, "rollout": {"gpus": 4, "site": "far"}}, "rollout.site = 'far', expected its link"),
        ({**GOOD, "rollout": [{"gpus": 4}, {"gpus": 4, "site": "fa"}], "sites": {"far": {}}}, "did you mean 'far'"),
        ({**GOOD, "rollout": {"gpus": 4, "site": "far"}, "sites": {"far": {}}, "weights": "global"}, "'global'"),
        ({**GOOD, "rollout": {"gpus": 4, "site": "far"}, "sites": {"far": {"share": 0}}}, "fleet.sites.far.share"),
        ({**GOOD, "trainer": {"gpus": 4, "site": "far"}, "sites": {"far": {}}}, "sites.far, where the trainer is"),
        ({**GOOD, "warm_up": 3}, "at most 2"),
        ({**GOOD, "colour": "red"}, "'fleet.colour'"),
        ({**GOOD, "workload": {"response": [{"median": 5000, "sigma": 0.5}]}}, "1,024"),
    ],
)
def test_one_line_says_which_numbers_clash(fleet, said):
    assert said in complaint(fleet)


@pytest.mark.parametrize(
    ("mode", "fleet", "said"),
    [
        ("sync", GOOD, "with placement = 'split' and 0 hybrid tables, expected placement = 'colocated'"),
        ("semi-sync", {**GOOD, "placement": "colocated"}, "hybrid = true for each of ['hybrid']"),
        (
            "semi-sync",
            {**GOOD, "placement": "colocated", "rollout": [{"gpus": 4, "name": "hybrid"}] * 2},
            "2 tables rollout, 0 of them",
        ),
    ],
)
def test_a_mode_needs_its_fleet(mode, fleet, said):
    pipeline = {"mode": mode, "steps": 3, "sync": "when-drained", "relocation": "none"}
    assert said in complaint(fleet, pipeline=pipeline)


def test_a_response_longer_than_the_cache_says_what_it_holds():
    text = complaint({**GOOD, "model": "Qwen2.5-14B"}, rollout={"max_tokens": 500_000})
    assert "rollout.max_tokens = 500000" in text
    assert "holds" in text
