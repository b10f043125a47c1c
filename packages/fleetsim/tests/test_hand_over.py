"""Devices that change hands take the seconds that their bytes take over PCIe, in the log, in the step and for the policy."""

import pytest

from tailrace import contracts as c
from tailrace.fleetsim import simulate
from tailrace.fleetsim.cost import HandOverCost
from tailrace.fleetsim.hardware import find_device, model
from tailrace.pipeline.config.loading import validate
from tailrace.trainer.memory import DTYPE_BYTES

H800 = find_device("H800")
QWEN = model("Qwen2.5-7B")
BANDWIDTH = H800.pcie_bandwidth
STEPS = 4


def run(mode="sync", *, faults=(), gpus=4, trainer_cells=1, **fleet):
    pipeline = {"steps": STEPS, "prompts_per_step": 8, "samples_per_prompt": 4, "prompts_per_replica": 8}
    pipeline |= {"relocation": "none", "batching": "plain"}
    if mode == "sync":
        pipeline |= {"mode": mode, "sync": "when-drained"}
    else:  # all devices in turn, and nobody lends: the papers' synchronous baselines
        pipeline |= {"admission": "on-policy", "sync": "barrier"}
    rollout = {"max_tokens": 4096, **fleet.pop("of_rollout", {})}
    table = {
        "model": "Qwen2.5-7B",
        "placement": "colocated",
        "rollout": {"gpus": gpus, "tensor_parallel": 1, "restart_s": 20.0},
        "delays": {"hang_s": 30.0, "trainer_restart_s": 15.0},
        "workload": {"response": {"median": 800.0, "sigma": 0.8}},
        "steady": False,
        **fleet,
    }
    content = {"app": "laminar", "pipeline": pipeline, "rollout": rollout, "fleet": table, "faults": list(faults)}
    content["trainer"] = {"cells": trainer_cells, "processes": trainer_cells}
    result = simulate(validate([("test", content)]))
    assert result.failure is None
    assert result.lost_trajectories == 0
    return result


def told(result, kind):
    return [(now, event) for now, event in result.events if isinstance(event, kind)]


def test_each_part_takes_its_bytes_over_the_link():
    """By hand: 7.6 billion parameters, bf16 in engine and gradients, float32 for the optimizer, four devices of 45 GB/s."""
    cost = HandOverCost.of(QWEN, H800, 4, level=1)
    assert cost.parameters == cost.gradients == QWEN.params * DTYPE_BYTES["bfloat16"] / 4
    assert cost.optimizer == QWEN.params * 3 * DTYPE_BYTES["float32"] / 4
    assert cost.engine_bytes(2) == QWEN.weight_bytes / 2
    result = run()
    lent, returned, left = told(result, c.Lent), told(result, c.Returned), told(result, c.Offloaded)
    assert len(lent) >= STEPS
    assert {event.level for _, event in lent} == {1}
    for _, event in (*lent, *returned):
        assert event.seconds == pytest.approx(QWEN.weight_bytes / BANDWIDTH)
    for _, event in left:
        assert event.seconds == pytest.approx((cost.parameters + cost.optimizer) / BANDWIDTH)
        assert event.nbytes == int((cost.parameters + cost.optimizer) * 4)
    for _, stepped in told(result, c.Stepped):
        assert stepped.metrics["onload_s"] == pytest.approx((cost.parameters + cost.optimizer) / BANDWIDTH)


def test_a_cell_says_its_own_bytes_where_there_are_several():
    """A real one does: what is brought back to train is what was moved away before, and no more."""
    result = run(trainer_cells=2)
    left, back = (
        max(sizes)
        for sizes in (
            [event.nbytes for _, event in told(result, c.Offloaded)],
            [event.metrics["onload_bytes"] for _, event in told(result, c.Stepped)],
        )
    )
    assert back == pytest.approx(left)


def test_a_step_of_all_devices_is_longer_by_a_turn_there_and_back_whether_or_not_engines_are_lent():
    """Sleep, onload, offload and wake, one after the other: engines that stay awake in a step are charged as if they slept."""
    cost = HandOverCost.of(QWEN, H800, 4, level=1)
    turn_s = 2 * cost.seconds(cost.parameters + cost.optimizer + cost.engine)
    for mode in ("sync", "barrier"):
        charged_s, free_s = (told(run(mode, hand_over=charged), c.Stepped)[-1][0] for charged in (True, False))
        each_s = (charged_s - free_s) / STEPS
        assert 0.8 * turn_s <= each_s <= 1.2 * turn_s + 1.0, mode  # reports at whole seconds move a step by up to one


def test_nothing_is_charged_where_it_is_switched_off_or_devices_are_not_shared():
    for result in (run(hand_over=False), run("barrier", hand_over=False)):
        assert {event.seconds for _, event in told(result, c.Lent | c.Returned | c.Offloaded)} <= {0.0}
        assert {event.metrics.get("onload_s", 0.0) for _, event in told(result, c.Stepped)} == {0.0}
    apart = run("barrier", placement="split", trainer={"gpus": 4})
    assert not told(apart, c.Offloaded)


def test_an_engine_that_drops_its_weights_sleeps_in_no_time_and_one_that_does_not_sleep_takes_none():
    for level in (0, 2):
        result = run(of_rollout={"sleep_level": level})
        assert {event.level for _, event in told(result, c.Lent)} == {level}
        assert {event.seconds for _, event in told(result, c.Lent)} == {0.0}


@pytest.mark.parametrize("kind", ["", "hang:"])
@pytest.mark.parametrize("phase", ["sleep", "wake"])
def test_a_replica_that_is_struck_while_its_devices_change_hands_loses_nothing(kind, phase):
    result = run(faults=[f"{kind}replica@step1:{phase}"])
    assert len(told(result, c.Stepped)) >= STEPS
    assert told(result, c.Struck)
