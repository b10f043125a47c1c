"""How members share cores: known demands on known cores come out."""

import pytest

from tailrace.fleetsim.profile.fit_delays import fit_sharing, sharing_table
from tailrace.fleetsim.profile.run import MeasuredRun
from tailrace.fleetsim.profile.samples import (
    ClockKind,
    ClockReading,
    EngineRound,
    ReplicaSamples,
    Timing,
    TrainerSamples,
    TrainingUpdate,
)
from tailrace.pipeline.config.models import RunConfig

TIMING = Timing(ClockKind.PROCESS)
STEP = 0.1


def busy(began, ended, share, cls):
    """Pieces of a tenth of a second, in which a share of a core was had."""
    pieces, spent, at = [], 0.0, began
    while at < ended - 1e-9:
        first, last = (
            ClockReading(at, spent, spent),
            ClockReading(at + STEP, spent + share * STEP, spent + share * STEP),
        )
        if cls is EngineRound:
            pieces.append(EngineRound(first, first, last, 8, 80, 0, 0, 0))
        else:
            pieces.append(TrainingUpdate(first, last, 100, 1_000, 8, 1))
        at, spent = last.wall_s, last.process_s
    return pieces


def shared_machine():
    """Two replicas and a trainer on 2 cores of which 0.5 go to others: 0.5 each; then one replica alone."""
    run = MeasuredRun(RunConfig(), cores=2, zero_s=0.0)
    run.replicas = {
        "r0": ReplicaSamples(rounds=busy(0.0, 10.0, 0.5, EngineRound) + busy(10.0, 15.0, 1.0, EngineRound)),
        "r1": ReplicaSamples(rounds=busy(0.0, 10.0, 0.5, EngineRound)),
    }
    run.trainer = TrainerSamples(updates=busy(0.0, 10.0, 0.5, TrainingUpdate))
    run.usages = [(0.0, {1: 7.0, 2: 3.0}), (10.0, {1: 24.0, 3: 6.0})]  # one process ended and one began
    return run


def test_what_others_take():
    found = fit_sharing(shared_machine(), TIMING, TIMING)
    assert found.cores == 2
    assert found.others == pytest.approx(1 - 15.0 / 23.0)
    assert found.beside_s == pytest.approx(1000 * 0.05 / 100)


def test_without_figures_of_processes_nobody_else_counts():
    run = shared_machine()
    run.usages = [(0.0, {}), (10.0, {})]
    assert fit_sharing(run, TIMING, TIMING).others == 0.0


def test_the_table_is_processor_sharing():
    run = shared_machine()
    sharing = fit_sharing(run, TIMING, TIMING).model_copy(update={"others": 0.25})
    alone, three = sharing_table(run, TIMING, TIMING, sharing)
    assert (alone.members, three.members) == (1, 3)
    assert alone.measured == pytest.approx(1.0)
    assert (three.measured, three.modelled) == (pytest.approx(0.5), pytest.approx(0.5))
    assert (alone.seconds, three.seconds) == (pytest.approx(5.0), pytest.approx(30.0))
