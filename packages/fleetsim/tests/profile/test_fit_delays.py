"""Waits out of a run's commands, events and clocks, each told apart from the next."""

import pytest
from profile_machine import clock

from tailrace import contracts as c
from tailrace.fleetsim.profile.fit_delays import fit_delays, fit_weights, route_s
from tailrace.fleetsim.profile.run import MeasuredRun, MeasuredTrajectory
from tailrace.fleetsim.profile.samples import EngineRound, ReplicaSamples, TrainerSamples, WorkSpan
from tailrace.pipeline.config.models import RunConfig

ZERO = 500.0  # the machine's clock when the run's began


def at(now):
    return clock(ZERO + now)


def span(began, ended):
    return WorkSpan(at(began), at(ended))


@pytest.fixture
def measured():
    """One replica that pulls, generates two trajectories and an evaluation, and a trainer that steps once."""
    ref = [c.TrajectoryRef(f"0.{i}", 0, i) for i in range(2)]
    sent = [
        (0.0, c.Start(seq=1, role="trainer", id="0")),
        (0.0, c.Start(seq=2, role="replica", id="r0")),
        (1.0, c.Publish(seq=3, version=0)),
        (1.0, c.Checkpoint(seq=4, version=0)),
        (10.0, c.Pull(seq=5, replica="r0", version=0)),
        (10.2, c.Route(seq=6, replica="r0", trajectories=tuple(ref))),
        (15.0, c.Route(seq=7, replica="r0", trajectories=(c.TrajectoryRef("e0.sampled.0", 0, 0, c.Purpose.EVAL),))),
    ]
    log = [
        (1.0, c.Up("trainer", "0", 0, answers=1)),
        (1.5, c.Published(0, answers=3)),
        (3.0, c.Durable(0, answers=4)),
        (9.0, c.Up("replica", "r0", None, answers=2)),
        (10.1, c.Pulled("r0", 0, answers=5)),
        (12.3, c.Finished("r0", "0.0", 7)),
        (13.1, c.Finished("r0", "0.1", 9)),
        (13.2, c.Scored("0.0", 1.0)),
        (13.6, c.Scored("0.1", 0.0)),
        (16.1, c.Finished("r0", "e0.sampled.0", 5)),
        (19.9, c.Scored("e0.sampled.0", 1.0)),
    ]
    rounds = [
        EngineRound(at(10.25), at(10.3), at(12.0), 2, 30, 2, 20, 0),
        EngineRound(at(12.0), at(12.0), at(13.0), 1, 20, 0, 0, 0),
        EngineRound(at(15.07), at(15.1), at(16.0), 1, 20, 1, 10, 0),
    ]
    finished = [("0.0", ZERO + 12.0, False), ("0.1", ZERO + 13.0, True), ("e0.sampled.0", ZERO + 16.0, True)]
    run = MeasuredRun(RunConfig(), cores=2, zero_s=ZERO, log=log, sent=sent)
    run.replicas["r0"] = ReplicaSamples(rounds=rounds, finished=finished)
    run.trainer = TrainerSamples(publishes=[span(1.1, 1.3)], checkpoints=[span(1.3, 1.4)])
    run.trajectories = {name: MeasuredTrajectory(0, c.Purpose.TRAIN, 0) for name in ("0.0", "0.1")}
    run.trajectories["e0.sampled.0"] = MeasuredTrajectory(0, c.Purpose.EVAL, 0)
    return run


def test_a_command_reaches_an_engine_that_is_idle(measured):
    assert route_s(measured) == pytest.approx((0.05 + 0.07) / 2)


def test_weights(measured):
    found = fit_weights(measured, routes_s=0.06, computing=0.5)
    assert found.publish_s == pytest.approx(0.1)  # a core of its own would have taken half as long
    assert found.visible_s == pytest.approx(0.2)
    assert found.pull_s == pytest.approx(0.1 - 0.06)


def test_a_sealed_version_is_visible_from_the_moment_it_may_be(measured):
    measured.sent.insert(4, (1.45, c.Reveal(seq=8, version=0)))
    assert fit_weights(measured, routes_s=0.06, computing=0.5).visible_s == pytest.approx(0.05)


def test_delays(measured):
    found = fit_delays(measured, routes_s=0.06, computing=0.5, snapshot_s=0.25)
    assert found.report_s == pytest.approx(2 * 0.1)  # of those that left the replica idle
    assert found.score_s == pytest.approx((1.2 + 0.6) / 2 - 0.1)  # from the last token, evaluations left out
    assert found.checkpoint_s == pytest.approx(0.05)
    assert found.durable_s == pytest.approx(2.0)
    assert (found.start_trainer_s, found.start_replica_s) == (1.0, 9.0)
    assert (found.route_s, found.snapshot_s) == (0.06, 0.25)


def test_the_seconds_of_a_score_are_not_counted_as_a_delay_too(measured):
    measured.trajectories["0.0"].score_s, measured.trajectories["0.1"].score_s = 1.0, 0.2
    found = fit_delays(measured, routes_s=0.06, computing=0.5, snapshot_s=0.25)
    assert found.score_s == pytest.approx((0.2 + 0.4) / 2 - 0.1)


def test_turns_are_reported_one_by_one_and_scored_once_their_environment_has_ended_them(measured):
    log = [one for one in measured.log if not isinstance(one[1], c.Finished) or one[1].trajectory != "0.1"]
    turns = [(13.1, c.TurnEnded("r0", "0.1", 9)), (13.4, c.Turned("0.1", 1, 9, done=True))]
    measured.log = sorted([*log, *turns], key=lambda one: one[0])
    found = fit_delays(measured, routes_s=0.06, computing=0.5, snapshot_s=0.25)
    assert found.report_s == pytest.approx(2 * 0.1)
    assert found.score_s == pytest.approx((1.2 + 0.2 + 0.1) / 2 - 0.1)


def test_what_did_not_happen_takes_no_time():
    found = fit_delays(MeasuredRun(RunConfig(), cores=2, zero_s=0.0), 0.0, 1.0, 0.25)
    assert found.score_s == found.durable_s == found.start_replica_s == 0.0
    assert found.report_s == 0.001  # reports need a grid
