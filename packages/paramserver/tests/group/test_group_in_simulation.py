"""A group's driver and coordinator in virtual time: relays, publishers and readers under kills, cuts and damage.

What was wrong can be seen again with its seed; the failure message has the schedule and the trace.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.run import run_schedule
from simulation.schedule import Fault, Publication, ReaderPlan, draw

SEEDS = int(os.environ.get("TAILRACE_GROUP_SEEDS", "12"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_faults(seed):
    outcome = run_schedule(replace(draw(seed), grouped=True))
    assert not outcome.wrong, outcome.report()


def test_the_same_seed_gives_the_same_run():
    """However many ran before in the process: a number that grew with them is longer on the wire, and so later there."""
    schedule = replace(draw(5), grouped=True)
    assert len({run_schedule(schedule).digest for _ in range(24)}) == 1


@pytest.mark.parametrize("how", ["end", "silent"])
def test_relays_behind_a_cut_edge_fetch_round_it(how):
    """The first two relays do not reach each other for a minute, both live: the version takes another way."""
    hosts = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
    rounds = ((0.0, 0.0, 30.0, 0.5, True, False),)
    near = [ReaderPlan(hosts[index], relay=index, others=(), at_s=40.0, pulls=False, rounds=rounds) for index in (1, 2)]
    schedule = replace(
        draw(5),
        grouped=True,
        hosts=hosts,
        publisher_hosts=(hosts[0],),
        skews_s=(0.0,) * 4,
        publications=((Publication(at_s=1.0, version=0, sizes=(700, 100), wait_s=5.0, sealed_s=None),),),
        readers=tuple(near),
        faults=(Fault("cut", 0.5, (0, 1), 60.0, how),),
    )
    outcome = run_schedule(schedule)
    assert not outcome.wrong, outcome.report()
    read = {who for at, who, what in outcome.log if what == "read version 0" and at < 60}
    assert {"reader0", "reader1"} <= read, outcome.report()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_deltas_to_another_site_under_random_faults(seed):
    """The first relay is beside the trainer, all others beyond a slow link. What is read anywhere is exact.

    Clocks agree: a trainer that restarts with one that is behind, beside a relay that restarted too, cannot know of later
    stamps beyond the link before its next publication.
    """
    drawn = draw(1000 + seed)
    beyond = tuple(f"10.0.{1 if index else 0}.{index + 1}" for index in range(len(drawn.hosts)))
    clocks = (0.0,) * len(drawn.skews_s)
    outcome = run_schedule(
        replace(drawn, grouped=True, hosts=beyond, codecs=("delta",), alike=True, slots=3, skews_s=clocks)
    )
    assert not outcome.wrong, outcome.report()
