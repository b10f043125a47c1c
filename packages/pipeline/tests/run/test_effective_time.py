"""Effective training time: worked by hand, and against a slow reference that looks at every second of a random run."""

import dataclasses
import random

import pytest

from tailrace import contracts as c
from tailrace.controller.view import MemberRow
from tailrace.pipeline.run.eventlog import Instant
from tailrace.pipeline.run.figures.effective_time import EffectiveTime


class Fleet:
    """What a controller would say of its members: each of a few lines about what the log does to them."""

    def __init__(self, per):
        self.per, self.colocated, self.rows, self.running = per, False, {}, {}

    @property
    def generates(self):
        return bool(self.running)

    def member(self, role, id_):
        return self.rows.get((role, id_))

    def set(self, role, id_, **what):
        old = self.rows.get((role, id_), MemberRow(role, id_, c.Health.STARTING, devices=self.per))
        self.rows[role, id_] = dataclasses.replace(old, **what)

    def ends(self, id_):
        self.running = {name: replica for name, replica in self.running.items() if replica != id_}

    def take(self, one):
        match one:
            case c.Start(role=role, id=id_) | c.Restart(role=role, id=id_):
                self.set(role, id_, health=c.Health.STARTING, version=None, cells=())
                self.ends(id_)
            case c.Up(role=role, id=id_):
                self.set(role, id_, health=c.Health.UP)
            case c.Down(role=role, id=id_):
                self.rows.pop((role, id_), None)  # for good, unless a command starts it
                self.ends(id_)
            case c.Pulled(replica=id_, version=version):
                self.set("replica", id_, version=version)
            case c.PullFailed(replica=id_):
                self.set("replica", id_, version=None)
            case c.Lend(replica=id_, cells=cells):
                self.set("replica", id_, cells=cells)
            case c.Return(replica=id_):
                self.set("replica", id_, cells=())
            case c.Route(replica=id_, trajectories=refs):
                self.running.update({ref.trajectory: id_ for ref in refs})
            case c.Finished(trajectory=name):
                self.running.pop(name, None)
            case c.Abort(trajectories=names):
                for name in names:
                    self.running.pop(name, None)


class Run:
    """Writes a log, a line for each call."""

    def __init__(self):
        self.log, self.seq = [], 0

    def at(self, now, *ones):
        commands = [one for one in ones if isinstance(one, c.Command)]
        self.log.append(Instant(now, [one for one in ones if not isinstance(one, c.Command)], commands))

    def begins(self):
        """Two replicas generate, and the trainer trains, from second 0 on."""
        self.at(0, *(c.Start(1, "replica", name) for name in ("r0", "r1")), c.Start(1, "trainer", "0"))
        self.at(0, c.Up("trainer", "0"), *(c.Up("replica", name) for name in ("r0", "r1")))
        self.at(0, *(c.Pulled(name, 0) for name in ("r0", "r1")))
        self.at(0, route("r0", "a"), route("r1", "b"), c.Step(9, 1, (("x",),)))
        return self

    def figures(self, trainer=2, per=1):
        """The fold of a trainer of so many devices, and replicas of so many each."""
        fleet = Fleet(per)
        fold = EffectiveTime(fleet, trainer)
        for instant in self.log:
            for one in (*instant.events, *instant.commands):
                fleet.take(one)
            fold.observe(instant.now, instant.events, instant.commands)
        return fold.figures()


def route(replica, *names):
    return c.Route(5, replica, tuple(c.TrajectoryRef(name, 0, 0, c.Purpose.TRAIN, "", 0, 0) for name in names))


def down(role, id_, cause=c.Cause.DIED):
    return c.Down(role, id_, "killed", cause)


def restart(role, id_, version=None, why=c.Why.FAILED):
    return c.Restart(7, role, id_, version, reason=c.Reason(why))


def test_nothing_is_lost_while_nothing_fails():
    run = Run().begins()
    run.at(100, c.Tick())
    assert run.figures().plain() == {"ettr": 1.0, "ettr_strict": 1.0}


def test_while_the_trainer_alone_recovers_it_is_the_share_of_rollouts():
    """R / (R + T) of equal numbers of devices: one half (RobustRL, section 7.2)."""
    run = Run().begins()
    run.at(40, c.Stepped(1, answers=9))
    run.at(40, down("trainer", "0"), restart("trainer", "0", 1))
    run.at(60, c.Up("trainer", "0", version=1))
    run.at(100, c.Tick())
    found = run.figures()
    assert found.ettr == pytest.approx((40 + 20 * 0.5 + 40) / 100)
    assert found.ettr_strict == found.ettr  # its step was durable


def test_a_step_that_is_done_again_counts_for_the_paper_and_not_strictly():
    """The trainer dies 10 s into a step of which nothing is left; replicas generate on."""
    run = Run().begins()
    run.at(10, down("trainer", "0"), restart("trainer", "0"))
    run.at(30, c.Up("trainer", "0"), c.Step(11, 2, (("x",),)))
    run.at(50, c.Stepped(2, answers=11), c.Tick())
    found = run.figures()
    assert found.ettr == pytest.approx((10 + 20 * 0.5 + 20) / 50)
    assert found.ettr_strict == pytest.approx((10 * 0.5 + 20 * 0.5 + 20) / 50)


def test_a_step_behind_the_checkpoint_that_is_fallen_back_to_is_done_again_too():
    run = Run().begins()
    run.at(10, c.Stepped(1, answers=9), c.Step(11, 2, (("x",),)))
    run.at(20, c.Stepped(2, answers=11))
    run.at(20, down("trainer", "0"), restart("trainer", "0", 1))
    run.at(30, c.Up("trainer", "0", version=1))
    run.at(40, c.Tick())
    assert run.figures().ettr == pytest.approx((20 + 10 * 0.5 + 10) / 40)
    assert run.figures().ettr_strict == pytest.approx((10 + 10 * 0.5 + 10 * 0.5 + 10) / 40)


def test_a_replica_recovers_until_it_has_weights():
    run = Run().begins()
    run.at(10, down("replica", "r0"), restart("replica", "r0"))
    run.at(20, c.Up("replica", "r0"))
    run.at(30, c.Pulled("r0", 0))
    run.at(40, c.Tick())
    assert run.figures().ettr == pytest.approx((10 + 20 * 0.75 + 10) / 40)


def test_a_replica_whose_pull_failed_recovers_until_one_ends():
    run = Run().begins()
    run.at(10, c.PullFailed("r0", 1, "its relay died"))
    run.at(30, c.Pulled("r0", 1))
    run.at(40, c.Tick())
    assert run.figures().ettr == pytest.approx((10 + 20 * 0.75 + 10) / 40)


def test_nothing_is_effective_while_all_wait():
    """Everything restarts: the baseline. What was generated since the last batch that survived is generated again."""
    run = Run().begins()
    run.at(20, c.Stepped(1, answers=9))
    run.at(30, down("replica", "r0"), restart("trainer", "0", 1, c.Why.TASK_RESTART),
           *(restart("replica", name, why=c.Why.TASK_RESTART) for name in ("r0", "r1")),
           c.Abort(8, ("a", "b"), reason=c.Reason(c.Why.TASK_RESTART, "replica r0", {"task_restarts": 1.0})))  # fmt: skip
    run.at(50, c.Up("trainer", "0", version=1), c.Up("replica", "r0"), c.Up("replica", "r1"))
    run.at(50, c.Pulled("r0", 1), c.Pulled("r1", 1))
    run.at(55, route("r0", "a"), route("r1", "b"))
    run.at(75, c.Tick())
    found = run.figures()
    assert found.ettr == pytest.approx((30 + 0 + 20) / 75)
    # Strictly: version 1 was kept, whose step began at 0; all generated since is lost, and the trainer's 20 s are not.
    assert found.ettr_strict == pytest.approx((20 * 0.5 + 0 + 20) / 75)


def test_the_copy_for_a_checkpoint_is_no_work_where_nobody_else_works():
    run = Run().begins()
    run.at(0, c.Finished("r0", "a", 3), c.Finished("r1", "b", 3))
    run.at(20, c.Stepped(1, {"wall_s": 15.0}, 9), c.Tick())
    assert run.figures().ettr == pytest.approx(15 / 20)
    run.at(30, c.Step(11, 2, (("x",),)))
    run.at(40, c.Stepped(2, {"wall_s": 4.0}, 11), c.Tick())
    assert run.figures().ettr == pytest.approx((15 + 4) / 40)


def test_who_is_gone_for_good_counts_no_more():
    run = Run().begins()
    run.at(10, down("replica", "r1"))  # others do its work
    run.at(40, c.Tick())
    assert run.figures().ettr == pytest.approx(1.0)


def test_a_trainer_on_the_devices_of_replicas_has_none_of_its_own():
    run = Run().begins()
    run.at(10, down("trainer", "0"), restart("trainer", "0"))
    run.at(20, c.Up("trainer", "0"))
    run.at(20, c.Tick())
    assert run.figures(0).ettr == 1.0


def lend(replica):
    return c.Lend(3, replica, cells=(0,), reason=c.Reason(c.Why.POLICY))


def test_semi_sync_a_hybrids_devices_recover_with_the_trainer_while_it_has_them():
    """r0 stands on the trainer's devices and r1 on its own, of two each: half of all while the trainer recovers alone."""
    run = Run().begins()
    run.at(10, c.Finished("r0", "a", 3), lend("r0"))
    run.at(20, down("trainer", "0"), restart("trainer", "0", 1))
    run.at(50, c.Up("trainer", "0", version=1))
    run.at(60, c.Return(4, "r0", reason=c.Reason(c.Why.POLICY)))
    run.at(100, c.Tick())
    assert run.figures(0, 2).ettr == pytest.approx((20 + 30 * 0.5 + 50) / 100)


def test_sync_nothing_is_effective_while_the_trainer_recovers_with_all_devices():
    run = Run().begins()
    run.at(10, c.Finished("r0", "a", 3), c.Finished("r1", "b", 3), lend("r0"), lend("r1"))
    run.at(40, down("trainer", "0"), restart("trainer", "0", None))
    run.at(70, c.Up("trainer", "0"), c.Step(11, 2, (("x",),)))
    run.at(100, c.Stepped(2, answers=11), c.Tick())
    found = run.figures(0)
    assert found.ettr == pytest.approx((40 + 0 + 30) / 100)


def test_sync_hybrids_that_generate_on_while_the_trainer_recovers_count():
    run = Run().begins()
    run.at(10, c.Stepped(1, answers=9), down("trainer", "0"), restart("trainer", "0", 1))
    run.at(40, c.Up("trainer", "0", version=1))
    run.at(50, c.Tick())
    assert run.figures(0).ettr == 1.0


def test_a_hybrid_that_dies_while_it_is_lent_recovers_once():
    run = Run().begins()
    run.at(10, c.Finished("r0", "a", 3), lend("r0"))
    run.at(20, down("replica", "r0"), down("trainer", "0"), restart("replica", "r0"), restart("trainer", "0", 1))
    run.at(40, c.Up("trainer", "0", version=1), c.Up("replica", "r0"), c.Pulled("r0", 1))
    run.at(60, c.Tick())
    assert run.figures(0).ettr == pytest.approx((20 + 20 * 0.5 + 20) / 60)


def test_windows_of_five_minutes():
    run = Run().begins()
    run.at(300, c.Stepped(1, answers=9))
    run.at(300, down("trainer", "0"), restart("trainer", "0", 1))
    run.at(450, c.Up("trainer", "0", version=1))
    run.at(700, c.Tick())
    assert run.figures().sliding == ((300, 1.0, 1.0), (600, 0.75, 0.75), (700, 1.0, 1.0))


@pytest.mark.parametrize("seed", range(40))
def test_it_equals_a_reference_that_looks_at_every_second(seed):
    """Replicas and trainer fail, recover and work at random, at whole seconds."""
    draw, run = random.Random(seed), Run()
    replicas = [f"r{index}" for index in range(draw.randint(1, 4))]
    own, per = draw.choice([1, 3]), draw.choice([1, 2])
    run.at(0, *(c.Start(1, "replica", name) for name in replicas), c.Start(1, "trainer", "0"))
    run.at(0, c.Up("trainer", "0"), *(c.Up("replica", name) for name in replicas))
    run.at(0, *(c.Pulled(name, 0) for name in replicas))
    up, held, trainer, step, version, kept, number = set(replicas), {}, True, None, 0, 0, 100
    seconds, of_version = (
        [],
        [],
    )  # of each second: devices at work, whether the trainer's were, whether anybody generates
    length = draw.randint(20, 120)
    for now in range(length):
        for name in replicas:
            if name in up and draw.random() < 0.05:
                up.discard(name)
                held.pop(name, None)
                run.at(now, down("replica", name), restart("replica", name))
            elif name not in up and draw.random() < 0.3:
                up.add(name)
                run.at(now, c.Up("replica", name))
                run.at(now, c.Pulled(name, 0))
            elif name in held and draw.random() < 0.2:
                run.at(now, c.Finished(name, held.pop(name), 4))
            elif name in up and name not in held and draw.random() < 0.3:
                held[name] = f"{name}.{now}"
                run.at(now, route(name, held[name]))
        if trainer and draw.random() < 0.05:
            kept = draw.choice([kept, version])
            run.at(now, down("trainer", "0"), restart("trainer", "0", kept or None))
            trainer, lost = False, step
            step = None
            if lost is not None:  # its seconds since it began are done again
                of_version = [-1 if at >= lost[0] and made == lost[1] else made for at, made in enumerate(of_version)]
        elif not trainer and draw.random() < 0.3:
            run.at(now, c.Up("trainer", "0", version=kept or None))
            of_version = [-1 if made is not None and made > kept else made for made in of_version]
            trainer, version = True, max(version, kept)
        elif trainer and step is not None and draw.random() < 0.3:
            run.at(now, c.Stepped(step[1], answers=number))
            version, step = step[1], None
        elif trainer and step is None and draw.random() < 0.4:
            number += 1
            step = (now, max(version, *(made or 0 for made in of_version), 0) + 1 if of_version else version + 1)
            run.at(now, c.Step(number, step[1], (("x",),)))
        seconds.append((len(up) * per, trainer, bool(held)))
        of_version.append(step[1] if step is not None else None)
    run.at(length, c.Tick())
    total = own + len(replicas) * per
    first = next((at for at, (_, _, any_) in enumerate(seconds) if any_ or of_version[at] is not None), length)
    paper = strict = 0.0
    for at in range(first, length):
        rollouts, here, generates = seconds[at]
        made = of_version[at]
        if generates or made is not None:
            paper += (rollouts + own * here) / total
        if generates or (made is not None and made != -1):
            strict += (rollouts + own * (here and made != -1)) / total
    found = run.figures(own, per)
    expected = (paper / (length - first), strict / (length - first)) if first < length else (0.0, 0.0)
    assert (found.ettr, found.ettr_strict) == pytest.approx(expected), seed
