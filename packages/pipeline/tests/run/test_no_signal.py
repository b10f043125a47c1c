"""A run whose groups are nearly all filtered for equal rewards says so, and what to do."""

import random

import pytest

from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.run.figures.incidents import NoSignal, starved
from tailrace.pipeline.run.figures.status import StatusObserver


class Groups:
    """Complete groups, told one by one."""

    def __init__(self):
        self.watch, self.completed, self.filtered = NoSignal(), 0, 0

    def tell(self, *filtered, reward=0.0):
        lines = []
        for gone in filtered:
            self.completed += 1
            self.filtered += gone
            lines += self.watch.lines(self.completed, self.filtered, [reward] * 4)
        return lines


def test_it_is_said_once_there_are_enough_groups_that_say_anything():
    groups = Groups()
    assert groups.tell(*[True] * 15) == []
    (line,) = groups.tell(True)
    assert line == (
        "16 of the last 16 groups were filtered, since all rewards of each are equal, 0 on average: training waits for groups "
        "that differ. A task that the model solves sometimes, a longer warm start or more samples to a prompt give more of "
        "them; pipeline.batching.filter_equal_rewards = false trains on all"
    )
    assert groups.watch.warning == line


def test_it_is_said_again_when_twice_as_many_are_filtered_and_shown_meanwhile():
    groups = Groups()
    lines = groups.tell(*[True] * 140)
    assert [int(line.split()[0]) for line in lines] == [16, 32, 64, 64]
    assert groups.filtered == 140
    assert groups.watch.warning.startswith("64 of the last 64")


def test_it_is_over_when_half_are_kept():
    groups = Groups()
    groups.tell(*[True] * 64)
    assert groups.tell(*[False] * 32) == []
    assert groups.watch.warning  # half are filtered still
    assert groups.tell(False) == ["groups have a signal again: 33 of the last 64 were kept"]
    assert groups.watch.warning == ""
    assert groups.tell(*[False] * 40) == []
    assert len(groups.tell(*[True] * 64)) == 1


@pytest.mark.parametrize("seed", range(20))
def test_it_says_what_a_slow_count_of_the_last_groups_says(seed):
    draw, groups, told = random.Random(seed), Groups(), []
    share = draw.choice([0.0, 0.5, 0.85, 0.95, 1.0])
    for _ in range(300):
        told.append(draw.random() < share)
        groups.tell(told[-1])
        last = told[-64:]
        if len(last) >= 16 and sum(last) > 0.9 * len(last):
            assert groups.watch.warning.startswith(f"{sum(last)} of the last {len(last)} groups"), f"seed {seed}"
        elif sum(last) < 0.5 * len(last):
            assert groups.watch.warning == "", f"seed {seed}"


def test_easy_tasks_are_told_from_hard_ones_by_the_mean():
    groups = Groups()
    (line,) = groups.tell(*[True] * 16, reward=1.0)
    assert "all rewards of each are equal, 1 on average" in line


def test_several_in_one_instant_and_a_whole_run():
    watch = NoSignal()
    assert watch.lines(0, 0, []) == []
    assert len(watch.lines(40, 40, [0.0])) == 1
    assert starved(15, 15) == []
    assert starved(100, 90) == []
    assert starved(100, 91)[0].startswith("91 of 100 groups were filtered")
    assert "training had to wait" in starved(1000, 999)[0]


def configured(mean):
    shape = {"steps": 1, "prompts_per_step": 4, "samples_per_prompt": 4, "prompts_per_replica": 4, "buffer_prompts": 16}
    workload = {"response": [{"median": 400, "sigma": 0.9}], "solve_rate": {"mean": mean, "spread": 0.0}}
    return validate(
        [
            (
                "test",
                {
                    "app": "laminar",
                    "task": {"name": "long-chain-sum", "held_out_size": 12},
                    "pipeline": {**shape, "batching": {"name": "redundant", "filter_equal_rewards": True}},
                    "rollout": {"max_tokens": 8192},
                    "fleet": {
                        "model": "Qwen2.5-7B",
                        "trainer": {"gpus": 4},
                        "rollout": {"gpus": 2, "max_running": 12, "start_s": 5.0},
                        "workload": workload,
                        "warm_up": 0,
                        "steady": False,
                    },
                },
            )
        ]
    )


@pytest.mark.parametrize(("mean", "said"), [(0.02, True), (0.5, False)])
def test_a_persons_status_has_it_while_the_run_waits(tmp_path, mean, said):
    told = []
    status = StatusObserver(
        tmp_path / "status.json",
        app="x",
        run_dir=tmp_path,
        simulated=True,
        listener=lambda found: told.append((found.warning, [each["text"] for each in found.incidents])),
    )
    Simulation(build_fleet(configured(mean)), observers=(status,)).run()
    status.phase("done")
    shown = [warning for warning, _ in told if warning]
    assert bool(shown) == said
    assert any("groups were filtered" in text for text in told[-1][1]) == said
    assert told[-1][0] == ""  # nothing waits any more
