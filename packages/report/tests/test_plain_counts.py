"""Figures that are shown, against plain counts over the log's lines: JSON and nothing of the folds."""

import dataclasses
import json
from collections import Counter

import pytest

from tailrace import contracts as c
from tailrace.fuzz.draw import draw_case
from tailrace.fuzz.trial import FuzzSimulation
from tailrace.pipeline.config.loading import validate
from tailrace.report import run_tables
from tailrace.report.final_status import standing
from tailrace.report.fold.interruptions import MarkKind
from tailrace.report.record import read_record
from tailrace.report.run_page import render

from .conftest import a_run, configured, folded
from .test_standing import Status, written


def lines(directory):
    return [json.loads(line) for line in directory.events.read_text().splitlines()[1:]]


def happened(directory):
    for line in lines(directory):
        for one in (*line["events"], *line["commands"]):
            yield line["t"], one


def _fuzzed(seed):
    fuzz = FuzzSimulation(draw_case(seed))
    fuzz.run()
    return fuzz.simulation


@pytest.mark.parametrize(
    "seed", [6, *(pytest.param(seed, marks=pytest.mark.deep) for seed in (14, 22, 33))], ids="fuzz case {}".format
)
def test_interruptions_count_what_they_stopped(seed):
    """In each of these some trajectories finish after their replica was told to stop them, and before it does."""
    simulation = _fuzzed(seed)
    told, stopped, folds = {}, Counter(), folded(simulation)
    for instant in simulation.log.instants:
        told |= {one.seq: one for one in instant[2] if isinstance(one, c.Interrupt)}
        stopped.update(one.answers for one in instant[1] if isinstance(one, c.Interrupted))
    of = {seq: one.reason.why for seq, one in told.items()}
    repacks = sum(of[seq] is c.Why.MOVED for seq in stopped)
    pulls = sum(of[seq] is c.Why.PULLING for seq in stopped)
    migrates = (c.Why.LOW_THROUGHPUT, c.Why.WAITING_TOO_LONG)
    migrated = sum(count for seq, count in stopped.items() if of[seq] in migrates)
    run, found = simulation.controller.view, folds.interruptions
    assert (len(found.of(MarkKind.REPACK)), run.moves) == (repacks, repacks)
    assert (len(found.of(MarkKind.PULL)), run.interrupting_pulls) == (pulls, pulls)
    assert (sum(each.stopped for each in found.of(MarkKind.EVICTION)), run.evictions) == (migrated, migrated)
    assert sum(each.stopped for each in found.all) == stopped.total()
    assert Counter(mark.kind for mark in folds.timeline.marks)[MarkKind.REPACK] == repacks
    assert set(told) - set(stopped), "nothing here finished before it was stopped"


def test_a_resume_restarts_nobody(tmp_path):
    """Every process is new after the driver's death, and none of them had failed; one is killed before that."""
    seen = []

    def observe(directory):
        seen.append(Status(directory))
        return seen[0]

    config = configured(faults=["replica:r1@15s"])
    directory, simulation = a_run(tmp_path / "run", config, crash_at_step=3, observe=observe)
    counted = Counter(
        one["role"]
        for _, one in happened(directory)
        if one["is"] == "Restart" and one["reason"]["why"] != "lost-in-crash"
    )
    record, run = read_record(directory), simulation.controller.view
    assert set(counted) == {"replica"}
    assert {role: record.folds.run.restarts(role) for role in counted} == counted
    assert {role: run.restarts(role) for role in ("trainer", "data", "scorer", "relay", "replica")} == {
        "trainer": 0, "data": 0, "scorer": 0, "relay": 0, "replica": counted["replica"],
    }  # fmt: skip
    assert seen[0].status.restarts == counted
    assert standing(record, written(directory)).restarts == counted
    facts = dict(run_tables.facts(record))
    assert {name: value for name, value in facts.items() if "restarts" in name} == {
        "replica restarts": str(counted["replica"])
    }


def test_whether_lengths_were_predicted_ahead(tmp_path):
    directory, _ = a_run(tmp_path / "run", configured())
    record = read_record(directory)
    told = {"unpredicted_share": 0.25, "predicted_ahead_s": 3.21, "waited_for_predictions_s": 0.0}
    plain = {"consumed_twice": None, "lost_trajectories": 0}

    def said(**summary):
        facts = dict(run_tables.facts(dataclasses.replace(record, summary={**plain, **summary})))
        return {name: value for name, value in facts.items() if "predict" in name or "had one" in name}

    assert said(**told) == {
        "prompts launched without a predicted length": "25.0 %",
        "seconds for which the others had one (median)": "3.2",
        "launches waited for predictions (s)": "0.0",
    }
    assert said(**{**told, "predicted_ahead_s": None}).keys() == {
        "prompts launched without a predicted length", "launches waited for predictions (s)",
    }  # fmt: skip
    assert said(**dict.fromkeys(told)) == said() == {}


def test_one_rate_of_training_live_and_at_the_end(tmp_path):
    """Response tokens of steps that stand, from the first version that could be pulled to the last step."""
    seen = []

    def observe(directory):
        seen.append(Status(directory))
        return seen[0]

    directory, _ = a_run(tmp_path / "run", configured(steps=14), observe=observe)
    finished, steps = {}, {}
    published = ended = None
    for at, one in happened(directory):
        match one["is"]:
            case "Finished":
                finished[one["trajectory"]] = one["tokens"]
            case "Step":
                steps[one["version"]] = [name for names in one["mini_batches"] for name in names]
            case "Published" if published is None:
                published = at
            case "Stepped":
                ended = at
    rate = sum(finished[name] for names in steps.values() for name in names) / (ended - published)
    record = read_record(directory)
    assert record.tokens_per_s == pytest.approx(rate)
    assert seen[0].status.trained_tokens_per_s == pytest.approx(rate)
    assert seen[0].status.recent_tokens_per_s != pytest.approx(rate)


def test_a_model_of_ones_own_is_named(tmp_path):
    """A configuration that a quick start lies below has the shape of the small one too."""
    directory, _ = a_run(tmp_path / "run", configured(), until_step=1)
    record = read_record(directory)
    plain = record.config.model_dump(mode="json")
    plain["model"] = {"path": str(tmp_path / "SmolLM2-135M"), "small": {"layers": 3, "hidden": 64}}
    named = validate([("test", plain)])
    html = render(dataclasses.replace(record, config=named))
    assert "SmolLM2-135M</b>" in html
    assert "small Qwen3, 3 layers" not in html.split("<main")[0]
