from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from types import GenericAlias
from typing import Any, Protocol, get_type_hints

import pytest

from tailrace.contracts import Command, Event, Experience, Place, Stepped
from tailrace.runtime.errors import AnswerError
from tailrace.runtime.executor import doors
from tailrace.runtime.executor.deployment import DATA
from tailrace.runtime.executor.doors import (
    EnvironmentCalls,
    Mail,
    Ready,
    Role,
    RoleDoor,
    StopCalls,
    StoreCalls,
    TrainerCalls,
    ask,
)
from tailrace.runtime.executor.seam import MemberDeadError, RoleSpec
from tailrace.runtime.hosts.local import LocalHost
from tailrace.runtime.hosts.mailbox import Mailbox

EXPERIENCE = Experience("a", 0, (1,), (), reward=0.0)


class Store(StoreCalls, Protocol):
    """What others ask of a data role."""

    def append(self, owner: str, deltas: Sequence[object], /) -> list[str]: ...
    def experiences(self, ids: Sequence[str], /) -> list[Experience]: ...
    def consume(self, ids: Sequence[str], version: int, /) -> None: ...
    def audit(self) -> dict[str, Any]: ...


STORE_DOOR = RoleDoor[Store](DATA, Store)


class Answers:
    """A caller, and a member, whose next answer is set."""

    def __init__(self, answer=None):
        self.answer, self.calls = answer, []

    def call(self, method, *arguments, **deadline):
        self.calls.append((method, arguments, deadline))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_call_goes_out_by_its_name_with_the_callers_deadline():
    caller = Answers()
    assert STORE_DOOR.open(caller, 7.0).consume(["a"], 3) is None
    assert caller.calls == [("consume", (["a"], 3), {"timeout_s": 7.0})]
    with pytest.raises(MemberDeadError):
        STORE_DOOR.open(Answers(MemberDeadError("gone"))).audit()


def test_the_executors_call_is_the_protocols_method():
    member: Any = Answers(4)
    assert ask(member, TrainerCalls.ready, 5, True) == 4
    ask(member, Mail.events, 0.5, 2, 1)
    assert member.calls == [("ready", (5, True), {}), ("events", (0.5, 2, 1), {})]


@pytest.mark.parametrize(
    ("method", "arguments", "right", "wrong", "expected"),
    [
        ("append", ("r0#1", []), ["a"], [1], "list[str]"),
        ("append", ("r0#1", []), [], None, "list[str]"),
        ("experiences", (["a"],), [EXPERIENCE], [EXPERIENCE, "b"], "list[Experience]"),
        ("experiences", (["a"],), [EXPERIENCE], (EXPERIENCE,), "list[Experience]"),
        ("audit", (), {"consumed": 3}, {3: "consumed"}, "dict[str, Any]"),
        ("consume", (["a"], 1), None, 1, "None"),
    ],
)
def test_an_answer_of_another_type_is_named_with_its_call_in_one_line(method, arguments, right, wrong, expected):
    assert getattr(STORE_DOOR.open(Answers(right)), method)(*arguments) == right
    with pytest.raises(AnswerError) as found:
        getattr(STORE_DOOR.open(Answers(wrong)), method)(*arguments)
    said = str(found.value)
    assert said.startswith(f"data answered {method} with ")
    assert said.endswith(f"of type {type(wrong).__name__}, expected {expected}")
    assert "\n" not in said
    assert len(said) < 160


def test_a_long_answer_is_cut_in_the_error():
    with pytest.raises(AnswerError) as found:
        STORE_DOOR.open(Answers([*range(100_000)])).append("r0#1", [])
    assert len(str(found.value)) < 160


class Wrong:
    def __init__(self, **answers):
        self.answers = answers

    def ready(self):
        return self.answers.get("ready", Ready())

    def events(self, timeout_s):
        return self.answers.get("events", [])

    def append(self, owner, deltas):
        return deltas

    def close(self):
        pass


def test_a_role_that_answers_the_executor_with_another_type_is_named_by_its_mailbox():
    event = Stepped(1, {}, answers=1)
    assert Mailbox(Wrong(events=[event])).call("events", (0.0, 0, 0), epoch=1) == (1, [event])
    with pytest.raises(
        AnswerError, match=r"^Wrong answered events with None of type NoneType, expected list\[Event\]$"
    ):
        Mailbox(Wrong(events=None)).call("events", (0.0, 0, 0), epoch=1)
    with pytest.raises(
        AnswerError, match=r"^Wrong answered events with \['up'\] of type list, expected list\[Event\]$"
    ):
        Mailbox(Wrong(events=["up"])).call("events", (0.0, 0, 0), epoch=1)
    for found in (3, {"address": "here"}, None):
        with pytest.raises(AnswerError, match=r"^Wrong answered ready with .* of type \w+, expected Ready$"):
            Mailbox(Wrong(ready=found)).call("ready", (), epoch=1)


@pytest.mark.parametrize("protocol", [Role, TrainerCalls, StopCalls, EnvironmentCalls, StoreCalls, Store, Mail])
def test_every_answer_of_a_protocol_can_be_checked(protocol):
    for base in protocol.__mro__:
        for name in [name for name in vars(base) if not name.startswith("_")]:
            hints = get_type_hints(getattr(protocol, name))
            assert doors._answers(getattr(protocol, name))(object()) is (hints["return"] in (Any, object))


@pytest.mark.parametrize("seed", range(40))
def test_a_nested_value_fits_as_a_slow_reference_says(seed):
    """The reference knows each value's type from how it was made."""
    draw = random.Random(seed)

    def made(depth):
        """A hint, and a value of it or of another."""
        kind = draw.randrange(6 if depth else 3)
        if kind < 3:
            hint, right = ((int, 3), (str, "x"), (None, None))[kind]
            other = draw.random() < 0.1
            return hint, 2.5 if other else right, not other
        parts = [made(depth - 1) for _ in range(2)]
        (one, first, fits), (two, second, also) = parts
        if kind == 3:
            return GenericAlias(list, (one,)), [first, first], fits
        if kind == 4:
            return GenericAlias(tuple, (one, two)), (first, second), fits and also
        return GenericAlias(Mapping, (str, two)), {"k": second}, also

    for _ in range(50):
        hint, value, fits = made(3)
        assert doors._fits(hint)(value) is fits, (seed, hint, value)


def test_commands_and_events_are_told_apart():
    assert not doors._fits(list[Command])([Stepped(1, {}, answers=1)])
    assert doors._fits(list[Event])([Stepped(1, {}, answers=1)])


def test_whoever_asks_across_a_host_gets_the_line():
    host = LocalHost()
    try:
        member = host.spawn(DATA, "0", 1, RoleSpec(Wrong, {"events": None}), Place())
        assert ask(member, Role.ready).result().took
        with pytest.raises(
            AnswerError, match=r"^Wrong answered events with None of type NoneType, expected list\[Event\]$"
        ):
            ask(member, Mail.events, 0.0, 0, 0).result()
        with pytest.raises(AnswerError, match=r"^data answered append with \[3\] of type list, expected list\[str\]$"):
            STORE_DOOR.open(host.caller(DATA), 30.0).append("r0", [3])
    finally:
        host.close()
