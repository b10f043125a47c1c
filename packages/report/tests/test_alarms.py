"""Alarms compare a run with its own past, and say nothing of one that goes as it did."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace import contracts as c
from tailrace.report.figures.verdict import Signal
from tailrace.report.fold.timeline import Doing, Span
from tailrace.report.watch.alarms import FEWEST, Alarms, Level
from tailrace.report.watch.following import FollowedRun

from .conftest import a_run, configured


class Scene:
    """A timeline and a view whose values a test sets."""

    def __init__(self):
        self.spans, self.opened, self.outages, self.batches, self.signals = [], [], [], [], {}
        self.run = SimpleNamespace(
            now=0.0, finished=False, failure=None, contradictions=0, notes=list, members_down=list,
            counts=SimpleNamespace(completed=0, filtered_because={}),
        )  # fmt: skip
        scene = self

        class Timeline:
            @property
            def count(self):
                return len(scene.spans)

            def ended(self, first=0):
                return scene.spans[first:]

            def open(self, now):
                return scene.opened

        folds = SimpleNamespace(
            timeline=Timeline(),
            outages=SimpleNamespace(all=self.outages),
            batches=SimpleNamespace(trained=self.batches, signals=self.signals),
        )
        self.alarms = Alarms(cast(Any, self.run), cast(Any, folds))

    def hear(self, *what, now=0.0):
        for one in what:
            self.alarms.hears[type(one)](now, one)
        self.alarms.settle(now)

    def said(self, level=Level.ALARM):
        return {alarm.kind: alarm.said for alarm in self.alarms.now() if alarm.level is level}


def pulled(took_s, start_s=0.0):
    return Span("replica", "r0", Doing.PULLING, start_s, start_s + took_s, "")


def test_a_quiet_run_has_none():
    assert Scene().alarms.now() == []


def test_what_a_member_serves_otherwise_than_told_is_advice():
    scene = Scene()
    scene.run.notes = lambda: ["trainer 0: its layers are not compiled"]
    assert scene.said(Level.ADVICE) == {"noted": "Trainer 0: its layers are not compiled."}


@pytest.mark.parametrize(
    ("before", "took_s", "alarm"), [(FEWEST, 9.0, True), (FEWEST, 7.9, False), (FEWEST - 1, 99.0, False)]
)
def test_a_phase_is_compared_with_its_own_history(before, took_s, alarm):
    scene = Scene()
    scene.spans += [pulled(4.0) for _ in range(before)]
    scene.opened.append(pulled(took_s, 100.0))
    scene.hear()
    assert ("long-phase" in scene.said()) is alarm


def test_phases_of_other_roles_and_other_work_do_not_count():
    scene = Scene()
    scene.spans += [Span("relay", "0", Doing.PUBLISHING, 0, 0.1, "") for _ in range(20)]
    scene.spans += [Span("replica", "r0", Doing.GENERATING, 0, 0.1, "") for _ in range(20)]
    scene.opened.append(pulled(60.0))
    scene.hear()
    assert scene.said() == {}


def test_a_fleet_that_pulls_for_long_is_one_line():
    scene = Scene()
    scene.spans += [pulled(1.0) for _ in range(FEWEST)]
    scene.opened += [Span("replica", f"r{n}", Doing.PULLING, 0, 10 + n, "") for n in range(40)]
    scene.hear()
    assert scene.said()["long-phase"].startswith(
        "replica r0, replica r1, replica r2 and 37 more are pulling for 49 s; the longest"
    )


def dropped(count, why):
    return c.Abort(1, tuple(f"{n}.0" for n in range(count)), (), c.Reason(why))


def test_a_storm_of_aborts():
    scene = Scene()
    scene.hear(*[c.Finished("r0", f"{n}.0", 5) for n in range(20)])
    scene.hear(dropped(19, c.Why.EXPIRED))
    assert "aborts" not in scene.said()
    scene.hear(dropped(3, c.Why.NOT_SCORED))
    assert scene.said()["aborts"] == "22 of the last 42 trajectories were dropped: 19 too old, 3 not scored."


@pytest.mark.parametrize("why", [c.Why.SURPLUS_SAMPLE, c.Why.DEFERRED, c.Why.OVER, c.Why.NO_SIGNAL])
def test_what_is_dropped_as_planned_is_no_storm(why):
    scene = Scene()
    scene.hear(dropped(60, why))
    assert scene.said() == {}


def test_digests_that_differ_stay():
    scene = Scene()
    scene.hear(c.Down("replica", "r3", "differs", c.Cause.WEIGHTS), now=7.0)
    scene.hear(c.Restart(1, "replica", "r3", reason=c.Reason(c.Why.DIFFERS)), now=7.0)
    scene.run.finished = True
    assert scene.said()["digests"].endswith("published, 1 time; last in replica r3.")
    scene.hear(c.Restart(2, "replica", "r4", reason=c.Reason(c.Why.DIFFERS)), now=9.0)
    assert "2 times; last in replica r4" in scene.said()["digests"]


def test_groups_without_signal():
    scene = Scene()
    scene.signals[1] = Signal.of([SimpleNamespace(prompt=n // 2, reward=0.0, truncated=True) for n in range(40)])
    assert "raise rollout.max_tokens" in scene.said()["no-signal"]


def waited(took_s, start_s=0.0):
    return Span("trainer", "0", Doing.WAITING, start_s, start_s + took_s, "no complete batch")


def test_a_trainer_that_waits_longer_than_ever_is_an_alarm():
    scene = Scene()
    scene.spans += [waited(3.0) for _ in range(FEWEST)]
    scene.opened.append(waited(6.5, 50.0))
    scene.hear()
    assert scene.said()["starved"].startswith("The trainer has waited for 6.5 s (no complete batch)")
    scene.run.finished = True
    assert scene.said() == {}


def test_a_trainer_that_waits_for_most_of_the_time_is_advised():
    scene = Scene()
    for step in range(6):
        scene.spans.append(waited(7.0, 10.0 * step))
        scene.batches.append(SimpleNamespace(ended_s=10.0 * step + 10))
    scene.run.now = 60.0
    scene.hear()
    assert scene.said() == {}
    assert scene.said(Level.ADVICE)["starved"] == (
        "The trainer waited for 70% of the time of the last 4 steps: no complete batch."
    )


def test_alarms_come_before_advice_and_what_is_down_is_one():
    scene = Scene()
    test = scene.outages
    test += [SimpleNamespace(role="relay", member="0", reason="gone", at_s=3.0, up_s=None)]
    scene.run.contradictions = 2
    assert list(scene.said()) == ["down", "contradictions"]
    assert scene.said()["down"] == "Down: relay 0. Last: gone."
    test.append(SimpleNamespace(role="replica", member="r1", reason="lost", at_s=4.0, up_s=None))
    scene.run.members_down = lambda: [
        {"role": "relay", "id": "0", "health": "down"}, {"role": "replica", "id": "r1", "health": "starting"}
    ]  # fmt: skip
    assert scene.said()["down"] == "Down: relay 0. Restarting: replica r1. Last: lost."
    test[0].up_s = test[1].up_s = 5.0
    assert list(scene.said()) == ["contradictions"]


def test_members_that_die_in_a_run_are_alarms_until_they_are_back(tmp_path):
    directory, _ = a_run(tmp_path / "run", configured(faults=["replica:r1@step2", "trainer@step3"]))
    followed, seen = FollowedRun(directory), []
    while followed.reading:
        followed.advance(0.0)
        down = [alarm.said for alarm in followed.story.alarms.now() if alarm.kind == "down"]
        if down and down[0] not in seen:
            seen += down
    assert any("Restarting: replica r1" in said for said in seen)
    assert any("trainer 0" in said for said in seen)
    assert followed.story.alarms.now() == []
    assert len(followed.story.folds.batches.signals) >= 6
