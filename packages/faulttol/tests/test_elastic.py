"""Elastic groups: what is created, replaced, evicted and scaled, and around what hooks; and the example on real Ray."""

import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tailrace.contracts import RecoveryAction, RecoveryPolicy
from tailrace.faulttol import GroupError, Isolate, RoleAware
from tailrace.faulttol.elastic import Change, Does, ElasticGroup, GroupKeeper, Hooks, NamedActors, NamedCaller
from tailrace.faulttol.elastic.group import Liveness

README = Path(__file__).parents[1] / "README.md"


class Actors:
    """Stands for Ray."""

    def __init__(self):
        self.said = []

    def options(self, role, id_, incarnation):
        return {"name": f"{role}-{id_}-{incarnation}"}

    def start(self, worker, options, *arguments):
        self.said.append(f"start {options['name']}")
        return SimpleNamespace(name=options["name"], arguments=arguments)

    def end(self, actor):
        self.said.append(f"end {actor.name}")


class Probed(ElasticGroup):
    """A group whose liveness is scripted: `dead` and `mute` hold ids."""

    dead: tuple[str, ...] = ()
    mute: tuple[str, ...] = ()

    def probe(self, timeout_s=1.0):
        dead = {id_: "it was killed" for id_ in self.dead if id_ in self.members}
        type(self).dead = ()
        return Liveness([id_ for id_ in self.members if id_ not in dead and id_ not in self.mute], dead)


@pytest.fixture
def actors():
    Probed.dead, Probed.mute = (), ()
    return Actors()


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def kept(actors, count, role="replica", **how):
    group, clock = Probed(actors, role, object), Clock()
    keeper = GroupKeeper(group, lambda: count, clock=clock, **how)
    keeper.look()
    keeper.look()  # they have answered
    actors.said.clear()
    return group, keeper, clock


def test_workers_have_ids_incarnations_and_hooks_around_both_ends(actors):
    said = []
    hooks = Hooks(
        before_create=lambda id_, incarnation: said.append(f"before {id_}.{incarnation}"),
        after_create=lambda worker: said.append(f"after {worker.actor.name}"),
        before_destroy=lambda worker: said.append(f"ends {worker.actor.name}"),
        after_destroy=lambda worker: said.append(f"ended {worker.actor.name}"),
    )
    group = ElasticGroup(actors, "replica", object, "model", hooks=hooks)
    assert group.create().actor.arguments == ("0", "model")
    assert group.replace("0").incarnation == 2
    assert said == [
        "before 0.1", "after replica-0-1", "ends replica-0-1", "ended replica-0-1", "before 0.2", "after replica-0-2",
    ]  # fmt: skip
    group.scale(3)
    group.scale(1)
    assert list(group.members) == ["0"]
    assert group.create().id == "3"  # an id is not used for another worker
    for wrong in (lambda: group.create("0"), lambda: group.destroy("9"), lambda: group.scale(-1)):
        with pytest.raises(GroupError, match="expected"):
            wrong()
    group.close()
    assert not group.members


def test_one_that_died_is_replaced_alone_under_its_id(actors):
    _, keeper, _ = kept(actors, 3)
    Probed.dead = ("1",)
    assert keeper.look() == [Change(Does.REPLACED, "1", "it was killed")]
    assert actors.said == ["end replica-1-1", "start replica-1-2"]
    assert keeper.look() == []


def test_one_that_is_silent_is_suspected_by_the_detection_policy(actors):
    _, keeper, clock = kept(actors, 2, detection=RoleAware(silent_s=20.0), patience_s=5.0)
    Probed.mute = ("0",)
    clock.now = 19.0
    assert keeper.look() == []
    clock.now = 21.0
    (change,) = keeper.look()
    assert (change.does, change.id) == (Does.REPLACED, "0")
    assert "silent" in change.reason
    Probed.mute = ()
    assert keeper.look() == []


def test_one_that_loads_for_long_is_no_suspect_until_its_start_is_over(actors):
    Probed.mute = ("0",)
    _, keeper, clock = kept(actors, 1, detection=RoleAware(silent_s=5.0), start_s=300.0)
    clock.now = 299.0
    assert keeper.look() == []
    clock.now = 301.0
    assert keeper.look() == [Change(Does.REPLACED, "0", "it did not come up within 300 s")]
    clock.now = 600.0
    assert keeper.look() == []  # its successor has as long


def test_ranks_end_together_before_the_first_starts_again(actors):
    _, keeper, _ = kept(actors, 2, role="trainer", together=True)
    Probed.dead = ("1",)
    assert [(change.does, change.id) for change in keeper.look()] == [(Does.REPLACED, "0"), (Does.REPLACED, "1")]
    assert actors.said == ["end trainer-0-1", "end trainer-1-1", "start trainer-0-2", "start trainer-1-2"]


def test_one_that_keeps_failing_is_evicted_and_another_one_is_created(actors):
    group, keeper, _ = kept(actors, 2, recovery=Isolate(max_restarts=1))
    found = []
    for _ in range(2):
        Probed.dead = ("0",)
        found += keeper.look()
    assert [(change.does, change.id) for change in found] == [
        (Does.REPLACED, "0"), (Does.EVICTED, "0"), (Does.CREATED, "2"),
    ]  # fmt: skip
    assert list(group.members) == ["1", "2"]


def test_a_policy_of_ones_own_decides_and_may_give_the_group_up(actors):
    class Mine(RecoveryPolicy):
        window_s = 10.0

        def on_down(self, failure):
            return RecoveryAction.FAIL if failure.failures > 1 else RecoveryAction.RESTART_TASK

    _, keeper, clock = kept(actors, 2, recovery=Mine())
    Probed.dead = ("0",)
    assert len(keeper.look()) == 2
    clock.now = 11.0
    Probed.dead = ("0",)
    with pytest.raises(GroupError, match="replica 0 is given up after 2 failures"):
        keeper.look()  # it was not seen to come up: the same failure, however long ago


def test_a_failure_counts_no_more_after_its_window_if_the_worker_came_up_since(actors):
    class Mine(RecoveryPolicy):
        window_s = 10.0

        def on_down(self, failure):
            return RecoveryAction.FAIL if failure.failures > 1 else RecoveryAction.RESTART_TASK

    _, keeper, clock = kept(actors, 2, recovery=Mine())
    Probed.dead = ("0",)
    assert len(keeper.look()) == 2
    assert keeper.look() == []
    clock.now = 11.0
    Probed.dead = ("0",)
    assert len(keeper.look()) == 2
    Probed.dead = ("0",)
    with pytest.raises(GroupError, match="replica 0 is given up after 2 failures: it was killed"):
        keeper.look()


def test_a_group_is_scaled_to_what_is_wanted_now(actors):
    wanted = iter((2, 4, 1))
    group = Probed(actors, "environment", object)
    keeper = GroupKeeper(group, lambda: next(wanted), clock=Clock())
    done = [[(change.does, change.id) for change in keeper.look()] for _ in range(3)]
    assert done == [
        [(Does.CREATED, "0"), (Does.CREATED, "1")],
        [(Does.CREATED, "2"), (Does.CREATED, "3")],
        [(Does.DESTROYED, "1"), (Does.DESTROYED, "2"), (Does.DESTROYED, "3")],
    ]


def test_the_thread_ends_with_the_group_that_is_given_up(actors):
    group = Probed(actors, "nobody knows this role", object)
    keeper = GroupKeeper(group, lambda: 1, every_s=0.01)
    with keeper:
        while not group.members:
            pass
        Probed.dead = ("0",)
        keeper._thread.join(60)
    assert isinstance(keeper.failure, GroupError)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_for_another_reason_says_so_too(actors):
    """Nobody looked after the group any more, and `failure` said that the thread went on."""

    def wanted():
        raise ConnectionError("the scheduler is gone")

    with GroupKeeper(Probed(actors, "replica", object), wanted, every_s=0.01) as keeper:
        keeper._thread.join(60)
    assert str(keeper.failure) == "replica: a round was broken off: ConnectionError: the scheduler is gone"
    assert isinstance(keeper.failure.__cause__, ConnectionError)


class StandIn(ModuleType):
    """Stands for Ray as callers need it: actors by name, and calls of them, which end as their function says."""

    class RayActorError(Exception):
        pass

    class ActorUnavailableError(RayActorError):
        pass

    class GetTimeoutError(Exception):
        pass

    class RayTaskError(Exception):
        pass

    def __init__(self):
        super().__init__("ray")
        self.exceptions = self.util = self
        self.living = {}

    def get_actor(self, name, namespace):
        if name not in self.living:
            raise ValueError(name)
        answers = self.living[name]
        return SimpleNamespace(ask=SimpleNamespace(remote=lambda: answers))

    def list_named_actors(self, all_namespaces):
        return [{"name": name, "namespace": "mine"} for name in self.living] if all_namespaces else list(self.living)

    def get(self, answers, timeout):
        return answers()


@pytest.fixture
def ray(monkeypatch):
    found = StandIn()
    monkeypatch.setitem(sys.modules, "ray", found)
    return found


@pytest.mark.parametrize("detached", [False, True])
def test_a_caller_finds_a_member_that_was_replaced_any_number_of_times(ray, actors, detached):
    """Beyond eight times it found nobody, whoever made it."""
    named = NamedActors("mine", detached=detached)
    unused, group = NamedCaller(named, "data"), Probed(actors, "data", object)
    group._actors, group._incarnations = named, {"0": 30}
    ray.living = {"mine/data-0-30": lambda: "here", "mine/data-0-x-1": None, "mine/data-00-31": None, "other": None}
    assert group.caller("0").call("ask", timeout_s=0.01) == "here"
    assert unused.call("ask", timeout_s=5) == "here"
    assert pickle.loads(pickle.dumps(unused)).call("ask", timeout_s=0.01) == "here"


def test_a_thread_that_finds_nobody_takes_no_successor_from_another(ray):
    """Two threads share a caller. One looked for a successor just before there was one, and then nobody was found any more."""
    looks, looked = threading.Event(), threading.Event()

    class Slow(NamedActors):
        def newest(self, *arguments, **named):
            found = super().newest(*arguments, **named)
            if threading.current_thread() is not threading.main_thread() and found is None:
                looks.set()
                assert looked.wait(20)
            return found

    caller, answers = NamedCaller(Slow("mine"), "data"), []
    other = threading.Thread(target=lambda: answers.append(caller.call("ask", timeout_s=20)))
    other.start()
    assert looks.wait(20)
    ray.living = {"mine/data-0-1": lambda: "here"}
    assert caller.call("ask", timeout_s=5) == "here"
    looked.set()
    other.join(20)
    assert answers == ["here"]
    assert caller.call("ask", timeout_s=5) == "here"


def test_a_late_word_of_one_that_died_takes_no_successor_away(ray):
    caller, calls = NamedCaller(NamedActors("mine"), "data"), []

    def dies():
        calls.append(True)
        if len(calls) == 1:  # meanwhile another thread hears of the death before, and finds the successor
            ray.living = {"mine/data-0-2": lambda: "here"}
            assert caller.call("ask", timeout_s=5) == "here"
        raise ray.RayActorError

    ray.living = {"mine/data-0-1": dies}
    assert caller.call("ask", timeout_s=5) == "here"
    assert len(calls) == 2


def test_a_member_that_could_not_be_reached_is_asked_again(ray):
    """It lives, and nobody looked for it any more."""
    caller, tries = NamedCaller(NamedActors("mine"), "data"), []

    def cut_off():
        tries.append(True)
        if len(tries) < 3:
            raise ray.ActorUnavailableError
        return "here"

    ray.living = {"mine/data-0-1": cut_off}
    assert caller.call("ask", timeout_s=5) == "here"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.deep
def test_the_readmes_group_runs_under_uv_run(tmp_path):
    """Ray sent the working directory about to start its workers through uv too, and refused one outside of the project."""
    pytest.importorskip("ray")
    section = README.read_text().split("\n## Elastic groups of workers on Ray\n")[1]
    (example,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    (tmp_path / "example.py").write_text(example)
    through = ["uv", "run", "--no-sync", "--project", str(README.parents[2])] if shutil.which("uv") else []
    done = subprocess.run(
        [*through, sys.executable, "example.py"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "RAY_ENABLE_UV_RUN_RUNTIME_ENV"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    own = [line for line in done.stdout.splitlines(keepends=True) if "(raylet)" not in line]  # Ray tells of deaths, too
    assert "".join(own) == printed
