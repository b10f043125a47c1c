"""Sessions alone: who answers whose turns, who waits, and what is told to whom at the end."""

from types import SimpleNamespace
from typing import Any

from tailrace import contracts as c
from tailrace.controller.members import Members
from tailrace.controller.outbox import Outbox
from tailrace.controller.sessions import Sessions
from tailrace.controller.trajectories import Phase


class Asked:
    """Sessions of trajectories that run, unless a test says that one waits for a replica."""

    def __init__(self, *environments, most=None):
        fleet: Any = SimpleNamespace()
        self.members, self.outbox, self.trajectories = Members(), Outbox(fleet), {}
        ledger: Any = SimpleNamespace(trajectories=self.trajectories)
        self.sessions = Sessions(ledger, self.members, self.outbox, most)
        for id_ in environments:
            self.up(id_)

    def up(self, id_):
        self.members.add("environment", id_)
        self.members.came_up(c.Up("environment", id_), 0.0)

    def ask(self, *names):
        """Has these answered; returns who was asked for which."""
        for name in names:
            self.trajectories.setdefault(name, SimpleNamespace(phase=Phase.IN_ENVIRONMENT))
            self.sessions.ask(name)
        return self.send()

    def send(self):
        self.sessions.send()
        return self.said(c.Call)

    def said(self, kind):
        taken = self.outbox.take()
        assert {type(command) for command in taken} <= {kind}
        return {command.environment: command.trajectories for command in taken}

    def answer(self, name, seq=None):
        return self.sessions.answered(c.Turned(name, 1, 9, answers=seq))


def test_who_has_fewest_sessions_at_work_gets_the_next():
    run = Asked("0", "1")
    assert run.ask("a", "b", "d") == {"0": ("a", "d"), "1": ("b",)}
    assert run.ask("e") == {"1": ("e",)}
    run.trajectories["a"].phase = run.trajectories["d"].phase = Phase.PENDING  # they wait for a replica
    assert run.ask("f", "g") == {"0": ("f", "g")}
    assert run.sessions.of == {"a": "0", "b": "1", "d": "0", "e": "1", "f": "0", "g": "0"}
    assert run.sessions.waiting == {}


def test_a_session_stays_with_its_member_and_waits_for_it():
    run = Asked("0", "1", most=1)
    assert run.ask("a", "b", "d") == {"0": ("a",), "1": ("b",)}
    assert list(run.sessions.waiting) == ["d"]
    assert run.answer("a") == "0"
    assert run.ask("a") == {"0": ("a",)}  # its own is never held back
    run.members.get("environment", "0").health = c.Health.STARTING
    assert run.answer("a") == "0"
    assert run.ask("a") == {}
    assert list(run.sessions.waiting) == ["d", "a"]
    run.members.get("environment", "0").health = c.Health.UP
    assert run.send() == {"0": ("a",)}
    run.sessions.over("b")
    assert run.send() == {"1": ("d",)}


def test_each_may_have_so_many_at_work():
    run = Asked("0", most=2)
    assert run.ask("a") == {"0": ("a",)}
    assert run.ask("b", "d") == {"0": ("b",)}
    assert run.ask("e") == {}
    run.trajectories["a"].phase = Phase.PENDING
    assert run.send() == {"0": ("d",)}


def test_nobody_is_asked_while_no_environment_is_up():
    run = Asked()
    assert run.ask("a", "b") == {}
    run.up("0")
    assert run.send() == {"0": ("a", "b")}
    assert run.send() == {}


def test_an_answer_counts_once_and_only_to_the_call_that_waits():
    run = Asked("0")
    failed = run.members.get("environment", "0").failures
    run.ask("a")
    seq = run.outbox.seq
    failed.append(1)
    assert run.answer("a", seq - 1) is None
    assert run.answer("b", seq) is None
    assert failed == [1]
    assert run.answer("a", seq) == "0"
    assert failed == []  # it did its work
    assert run.answer("a", seq) is None
    run.ask("a")
    assert run.answer("a") == "0"  # it does not say to what


def test_what_ends_is_closed_with_the_members_that_have_it():
    run = Asked("0", "1", most=1)
    run.ask("a", "b", "d")
    run.sessions.close(["a", "d", "z", "b"])
    assert run.said(c.Close) == {"0": ("a",), "1": ("b",)}
    assert run.sessions.plain() == {"of": {}, "calls": {}, "waiting": []}
    assert run.answer("a") is None
    run.sessions.close(["a", "b"])
    assert run.said(c.Close) == {}


def test_what_a_member_was_to_answer_waits_for_another_before_what_came_later():
    run = Asked("0", "1", most=2)
    run.ask("a", "b", "d", "e", "f")
    assert run.answer("d") == "0"
    assert list(run.sessions.waiting) == ["f"]
    run.members.get("environment", "0").health = c.Health.DOWN
    run.sessions.went_down("0")
    assert list(run.sessions.waiting) == ["a", "f"]
    assert run.sessions.of == {"b": "1", "e": "1"}
    assert set(run.sessions.calls) == {"b", "e"}
    run.up("2")
    assert run.send() == {"2": ("a", "f")}


def test_after_the_driver_died_nothing_is_left():
    run = Asked("0", most=1)
    run.ask("a", "b")
    run.sessions.forget()
    assert run.sessions.plain() == {"of": {}, "calls": {}, "waiting": []}
