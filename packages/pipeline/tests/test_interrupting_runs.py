"""What the report says of pipelines that interrupt: prompts, fates, interruptions and causes, against the controller's own."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace import contracts as c
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.controller.controller import Controller
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import EventLog
from tailrace.pipeline.run.report import write_report
from tailrace.pipeline.run.reporting import causes, fates, lengths, staleness
from tailrace.pipeline.run.reporting.interruptions import Why
from tailrace.pipeline.run.reporting.observed import Observed
from tailrace.pipeline.run.reporting.record import read_record
from tailrace.pipeline.run.summary import summarise
from tailrace.pipeline.run.timeline import Doing, MarkKind, Timeline
from tailrace.pipeline.testing import World

IDLE = {value for name, value in vars(causes).items() if name.isupper()}


def config(*, bound=1, samples=0, groups=0):
    pipeline = {
        "admission": {"name": "bounded", "bound": bound},
        "batching": {
            "name": "redundant",
            "surplus_samples": samples,
            "surplus_groups": groups,
            "filter_equal_rewards": True,
        },
        "routing": {"name": "marginal-throughput", "mu": 0.3},
        "sync": {"name": "when-useful"},
        "relocation": {"name": "migration"},
        "steps": 6,
        "prompts_per_step": 4,
        "samples_per_prompt": 4,
        "prompts_per_replica": 4,
        "buffer_prompts": None,
    }
    cost = {"k1": 1e-6, "k2": 1e-3, "k3": 1e-4, "k4": 5e-3}
    return RunConfig.model_validate(
        {
            "task": {"name": "long-chain-sum", "held_out_size": 12},
            "pipeline": pipeline,
            "rollout": {"replicas": 3, "cost_model": cost},
            "evaluation": {"every": 3},
        }
    )


def patient(made):
    return replace(made, failed_groups_limit=10_000)


def replayed(seed, made, **world):
    """A random run, beside what its replay shows and the reasons that the controller notes."""
    played = World(Controller(patient(build_spec(made))), seed, **world)
    played.run()
    timeline, observed, fresh = Timeline(), Observed(), Controller(patient(build_spec(made)))
    fresh.outbox.notes = []
    said = {}
    for now, event in played.log:
        commands = fresh.handle(event, now)
        timeline.observe(now, event, commands, fresh)
        observed.observe(now, event, commands, fresh)
        for note in fresh.outbox.notes:
            if note.text.startswith("dropped: "):
                reason = note.text.rpartition(": ")[2] if "its group has all" not in note.text else fates.SURPLUS
                reason = fates.FAILED if "was failed" in note.text else reason
                said |= dict.fromkeys(note.trajectories, reason)
        fresh.outbox.notes.clear()
    timeline.close(played.now)
    assert fresh.state() == played.controller.state()
    return timeline, observed, fresh, said


WORLDS = st.fixed_dictionaries(
    {
        "bound": st.integers(0, 3),
        "samples": st.integers(0, 2),
        "groups": st.integers(0, 2),
        "kill_rate": st.sampled_from([0.0, 0.03]),
        "trainer_kill_rate": st.sampled_from([0.0, 0.02]),
        "scoring_failure_rate": st.sampled_from([0.0, 0.3]),
    }
)


@given(seed=st.integers(0, 2**32), options=WORLDS)
@settings(max_examples=12, deadline=None)
def test_every_trajectory_has_the_fate_that_the_controller_gave_it(seed, options):
    shape = {key: options.pop(key) for key in ("bound", "samples", "groups")}
    _, observed, controller, said = replayed(seed, config(**shape), **options)
    found = observed.fates
    assert found.dropped == said
    ledger = controller.ledger.counts
    became = fates.prompts(controller)
    assert (became.lost, became.open) == (0, 0)
    assert became.admitted == ledger.admitted == ledger.trained + ledger.filtered + ledger.failed
    # offered = trained on + dropped though finished; what is dropped and did not finish is unfinished
    trained = sum(len(batch.lengths) for batch in observed.trained(controller))
    dropped = {why: found.lengths(why) for why in lengths.DROPPED}
    assert len(found.finished) == trained + sum(len(each) for each in dropped.values())
    assert len(found.unfinished) == len(said) - sum(len(each) for each in dropped.values())


@given(seed=st.integers(0, 2**32), kill=st.sampled_from([0.0, 0.03]))
@settings(max_examples=12, deadline=None)
def test_interruptions_are_told_apart(seed, kill):
    timeline, observed, controller, _ = replayed(seed, config(), kill_rate=kill)
    coordinator = controller.coordinator
    assert len(observed.interrupted(Why.PULL)) == coordinator.interrupting_pulls
    assert sum(each.trajectories for each in observed.interrupted(Why.EVICTION)) == coordinator.evictions
    assert observed.interrupted(Why.REPACK) == []
    assert all(each.pulled > each.version for each in observed.interrupted(Why.PULL))
    marks = Counter(mark.kind for mark in timeline.marks)
    assert marks[MarkKind.PULL] == coordinator.interrupting_pulls
    assert marks[MarkKind.EVICTION] == len(observed.interrupted(Why.EVICTION))
    assert marks[MarkKind.REPACK] == 0
    assert {span.label for span in timeline.spans if span.doing is Doing.IDLE} <= IDLE


def test_the_worlds_above_see_what_they_are_about():
    pulls = evictions = 0
    reasons = set()
    for seed in range(6):
        _, observed, _, said = replayed(seed, config(samples=1, groups=1), trainer_kill_rate=0.02)
        pulls += len(observed.interrupted(Why.PULL))
        evictions += len(observed.interrupted(Why.EVICTION))
        reasons |= set(said.values())
    assert pulls > 0
    assert evictions > 0
    assert reasons >= {fates.NO_SIGNAL, fates.SURPLUS}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = RunDirectory.create(tmp_path_factory.mktemp("runs") / "interrupting", config().model_dump(mode="json"))
    world = World(Controller(build_spec(config())), 4)
    world.run()
    with EventLog(directory.events) as log:
        for now, event in world.log:
            log.append(now, event)
    directory.unlock()
    return read_record(directory), write_report(directory).read_text()


def test_the_report_shows_each_batch_against_the_bound(written):
    record, html = written
    assert "Staleness of each batch (bound 1: none above it)" in html
    chart = next(chart for chart in staleness.staleness_charts(record) if chart.id == "staleness-batches")
    shares = [trace["y"] for trace in chart.data]
    assert [sum(batch) for batch in zip(*shares, strict=True)] == pytest.approx([1.0] * 6)
    assert len(chart.data) == 1 + max(max(batch.at_consumption) for batch in record.batches)


def test_the_report_says_what_interruptions_were_for(written):
    record, html = written
    coordinator = record.controller.coordinator
    assert coordinator.interrupting_pulls > 0
    assert "Interruptions, faults, versions" in html
    assert "interrupted for a pull" in html
    assert "Nothing was repacked" not in html
    assert f"{fates.prompts(record.controller)}" in html


def test_lengths_of_what_was_offered_stand_beside_those_trained_on(written):
    record, _ = written
    rows = {row[0]: row[1:] for row in lengths.selection_table(record).rows}
    found = record.observed.fates
    finished = sorted(found.finished.values())
    assert rows["offered: all that finished"][0] == f"{len(finished):,}"
    assert rows["offered: all that finished"][-1] == str(finished[-1])
    assert rows["trained on"][0] == f"{6 * 16}"
    assert rows["filtered for no signal"][0] == f"{len(found.lengths(fates.NO_SIGNAL))}"
    chart = lengths.selection_chart(record)
    for trace in chart.data:
        assert trace["y"][-1] == 1.0
        assert trace["y"] == sorted(trace["y"])
        assert trace["x"] == sorted(trace["x"])


def test_the_summary_says_what_became_of_every_prompt_and_how_often_work_was_interrupted(written):
    record, _ = written
    controller = record.controller
    audit = {"consumed": 6 * 16, "consumed_twice": []}
    found = summarise(
        record.config, controller, [], audit=audit, lengths=[1, 2], wall_s=9.0, training_s=8.0, extra={"more": 1}
    )
    became = found["prompts"]
    assert became["admitted"] == became["trained"] + sum(became["filtered"].values()) + became["failed"]
    assert (became["lost"], found["lost_trajectories"], found["contradictions"]) == (0, 0, 0)
    assert (found["staleness_bound"], found["partial_rollout"], found["repacks"]) == (1, True, 0)
    assert found["staleness_max"] <= 1
    assert found["interrupting_pulls"] == len(record.observed.interrupted(Why.PULL)) > 0
    assert found["resumed_on_newer"] == controller.ledger.counts.resumed_on_newer > 0


def test_a_line_of_prompts_that_does_not_add_up_says_so():
    assert fates.Prompts(10, 4, {"no signal": 3}, 1).lost == 2
    assert str(fates.Prompts(10, 4, {"surplus": 1, "expired": 2}, 0, open=3)) == (
        "10 admitted = 4 trained on + 3 filtered (2 expired, 1 surplus) + 0 failed + 3 still open; 0 lost"
    )


def test_an_evaluation_is_no_training_trajectory():
    observed, controller = fates.Fates(), Controller(build_spec(config()))
    observed.observe(c.Finished("r0", "e1.sampled.3", 7), [c.Abort(1, ("e1.sampled.4",))], controller)
    assert not observed.finished
    assert not observed.dropped
