"""A run that gave up, or whose driver died again and again, goes on: nothing is lost, and every invariant holds."""

from functools import partial

import pytest
from worlds import expected, patient, play, policy, seeds, world

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.fuzz.faults import BreakKind, CaseFault

MOST = 30  # resumes of one run


def may_give_up(played):
    """For reasons that fuzzing does not know."""
    played.checker.progress.gave_up = lambda reason: None
    return played


def faults_end(case):
    """Calls that are drawn unanswered never end: a run that gives up at each may never reach its next full checkpoint."""
    return patient(case) and case.faults and not case.environments.unanswered


def test_a_run_that_gave_up_at_every_fault_goes_on_each_time():
    resumed = 0
    for seed in seeds(25, fits=faults_end):
        played = may_give_up(world(seed, spec={"recovery": policy("recovery", "restart-task", max_task_restarts=0)}))
        controller, times = play(seed, played, gives_up=True), 0
        while not controller.finished:
            assert "is not restarted" in controller.failure, f"seed {seed}: {controller.failure}"
            assert times < MOST, f"seed {seed}: it does not get further: {controller.failure}"
            controller, times = play(seed, played, first=played.crash(), gives_up=True), times + 1
        resumed += times
    assert resumed > expected(20)


def broken_policy(right, method, version):
    """A policy of the same axis whose method raises while the trainer is at a version, until its `mended` is true."""

    class Broken(type(right)):
        __setattr__ = object.__setattr__  # policies are frozen

        def __init__(self):
            self.mended = False

        def __getattribute__(self, name):
            if name in ("mended", "__class__", "__dict__"):
                return object.__getattribute__(self, name)
            return partial(ask, self) if name == method else getattr(right, name)

    def ask(self, cycle):  # whoever raises is known by its `self`
        if cycle.progress.version == version and not self.mended:
            raise ArithmeticError("a mistake in a plugin")
        return getattr(right, method)(cycle)

    return Broken()


def breaks(seed):
    """A world in which a plugin raises at the trainer's first version, and that plugin."""
    axis, method = [("routing", "route"), ("sync", "pulls"), ("relocation", "plan")][seed % 3]
    broken = []

    def spec(own):
        broken[:] = broken or [broken_policy(getattr(own, axis), method, 1)]
        return {axis: broken[0]}

    return may_give_up(world(seed, spec=spec)), broken[0]


def test_a_run_that_a_plugin_broke_goes_on_once_that_is_mended():
    """Replayed with the mended plugin, the log gives other commands at its end than it says."""
    broke = 0
    for seed in seeds(40, fits=lambda case: patient(case) and case.pipeline.steps >= 2):
        played, broken = breaks(seed)
        if (failure := play(seed, played, gives_up=True).failure) is None:
            continue
        broke += 1
        assert "raised ArithmeticError: a mistake in a plugin" in failure, f"seed {seed}"
        broken.mended = True
        rebuild = played.checker.rebuild
        played.checker._shadow, played.checker.rebuild = None, partial(replayed, played)
        first = played.crash()
        played.checker.rebuild = rebuild
        play(seed, played, first=first)
    assert broke > expected(4)


def replayed(played, *, compared=True):
    """What the log gives now; the one that died decided otherwise, so that the two are not compared."""
    simulation = played.simulation
    rebuilt = Controller(simulation.fleet.spec, relays=simulation.fleet.relays)
    for now, events, _ in simulation.log.instants:
        rebuilt.handle_all(events, now)
    return rebuilt


def test_a_driver_may_die_again_while_it_comes_back():
    for seed in seeds(25, fits=patient):
        drawn = world(seed).case.faults
        step, after_s = seed % 3, 0.1 * (seed % 7)
        deaths = [CaseFault(kind=BreakKind.CRASH, at_step=step, after_s=after_s + 0.2 * again) for again in range(4)]
        data = CaseFault(kind=BreakKind.KILL, role="data", member="0", at_step=step, after_s=after_s + 0.1)
        play(seed, world(seed, faults=(*drawn, *deaths, data)))


@pytest.mark.deep
def test_with_no_checkpoint_that_fits_it_says_which_would_and_goes_on_with_one():
    none = 0
    for seed in seeds(20, fits=lambda case: patient(case) and case.pipeline.steps >= 4):
        played = may_give_up(world(seed, faults=(CaseFault(kind=BreakKind.CRASH, at_step=3),)))
        crash = played.crash
        played.crash = lambda crash=crash: crash() and c.Resumed(())
        failure = play(seed, played, gives_up=True).failure
        if failure is not None:  # the model that the run began with is no way back any more
            none += 1
            assert "the run has no checkpoint to continue from" in failure, f"seed {seed}"
            play(seed, played, first=crash())
    assert none > expected(2)
