"""What stands in front of a role: events are kept until they are logged, commands taken once, old controllers refused."""

import random
import threading

import pytest

from tailrace import contracts as c
from tailrace.faulttol import FaultKind, InjectedError
from tailrace.runtime.errors import StaleEpochError
from tailrace.runtime.executor.doors import Ready
from tailrace.runtime.hosts.mailbox import InjectedCalls, Mailbox
from tailrace.runtime.role_worker import EventQueue


class Role(EventQueue):
    """Remembers what it was given, and counts how often it got ready."""

    def __init__(self):
        super().__init__()
        self.taken, self.began, self.closed = [], 0, 0

    def ready(self, *arguments):
        self.began += 1
        return Ready(address=f"here {arguments}")

    def submit(self, commands):
        self.taken += [command.seq for command in commands]

    def adopt(self):
        self.forget()
        return "what it holds"

    def close(self):
        self.closed += 1


def events(*numbers):
    return [c.Discarded(number) for number in numbers]


def scores(*numbers):
    return [c.Score(number, ("0.0",)) for number in numbers]


@pytest.fixture
def role():
    return Role()


@pytest.fixture
def mailbox(role):
    return Mailbox(role)


def ask(mailbox, told, logged, epoch=1, timeout_s=0.0):
    return mailbox.call("events", (timeout_s, told, logged), epoch)


def test_what_a_dead_controller_took_along_is_told_again(role, mailbox):
    role.put(*events(1, 2))
    assert ask(mailbox, 0, 0) == (2, events(1, 2))
    role.put(*events(3))
    assert ask(mailbox, 2, 1) == (3, events(3))
    assert ask(mailbox, 1, 1, epoch=2) == (3, events(2, 3))
    assert ask(mailbox, 3, 3, epoch=2) == (3, [])


def test_events_are_forgotten_only_once_they_are_in_the_log(role, mailbox):
    role.put(*events(*range(1, 6)))
    ask(mailbox, 0, 0)
    for logged in range(5):
        ask(mailbox, 5, logged)
        assert ask(mailbox, logged, logged) == (5, events(*range(logged + 1, 6)))
    with_nothing = ask(mailbox, 0, 5)
    assert with_nothing == (5, [])


def test_the_error_that_broke_a_role_comes_after_all_events_for_the_next_controller_too(role, mailbox):
    role.put(*events(1))
    role.fail(ValueError("broken"))
    for epoch in (1, 2):
        assert ask(mailbox, 0, 0, epoch) == (1, events(1))
        with pytest.raises(ValueError, match="broken"):
            ask(mailbox, 1, 0, epoch)


def test_a_command_that_comes_twice_is_carried_out_once(role, mailbox):
    mailbox.call("submit", (scores(3, 5),), 1)
    mailbox.call("submit", (scores(3, 5, 9),), 2)
    mailbox.call("submit", (scores(9),), 2)
    assert role.taken == [3, 5, 9]


def test_a_call_without_anything_new_is_not_handed_on(role, mailbox):
    calls = []
    role.submit = calls.append
    mailbox.call("submit", (scores(3),), 1)
    mailbox.call("submit", (scores(3),), 1)
    mailbox.call("submit", ([],), 1)
    assert calls == [scores(3)]


def test_commands_of_one_that_was_replaced_while_they_waited_for_others_are_refused(role, mailbox):
    going_on, refused = threading.Event(), []
    role.submit = lambda commands: going_on.wait(30)

    def old(seq):
        try:
            mailbox.call("submit", (scores(seq),), 1)
        except StaleEpochError as error:
            refused.append(error)

    threads = [threading.Thread(target=old, args=(seq,)) for seq in (3, 4)]
    threads[0].start()
    while not mailbox._submitting.locked():
        pass
    called_s = mailbox._called_s
    threads[1].start()
    while mailbox._called_s == called_s:  # until it has made itself known
        pass
    mailbox.call("put", (), 2)  # another controller comes
    going_on.set()
    for thread in threads:
        thread.join(30)
    assert len(refused) == 1


def test_another_runs_controller_numbers_its_commands_anew(role, mailbox):
    mailbox.call("submit", (scores(3),), 1)
    assert mailbox.call("adopt", (), 1) == "what it holds"
    mailbox.call("submit", (scores(1),), 1)
    assert role.taken == [3, 1]


def test_a_role_gets_ready_and_closes_once_and_says_so_to_everyone(role, mailbox):
    first = mailbox.call("ready", (7,), 1)
    assert first.address == "here (7,)"
    assert mailbox.call("ready", (8,), 2) == first
    mailbox.call("close", (), 2)
    mailbox.close()
    assert (role.began, role.closed) == (1, 1)


def test_the_seconds_of_getting_ready_come_with_the_others(role, monkeypatch):
    mailbox, now_s = Mailbox(role, {"import": 2.0}), [10.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    role.ready = lambda: now_s.append(now_s.pop() + 3.0) or Ready()
    assert mailbox.call("ready", (), 1) == Ready(took={"import": 2.0, "load": 3.0})


def test_what_kept_a_role_from_getting_ready_is_said_to_everyone(role, mailbox):
    role.ready = dict.fromkeys
    for epoch in (1, 2):
        with pytest.raises(TypeError):
            mailbox.call("ready", (1,), epoch)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [("submit", (scores(9),)), ("events", (0.0, 0, 0)), ("ready", ()), ("close", ()), ("adopt", ())],
)
def test_a_controller_that_was_replaced_is_refused(role, mailbox, method, arguments):
    ask(mailbox, 0, 0, epoch=2)
    with pytest.raises(StaleEpochError, match="found a call of controller 1, expected one of 2, which replaced it"):
        mailbox.call(method, arguments, 1)
    assert (role.taken, role.began, role.closed) == ([], 0, 0)


def test_events_that_come_for_one_that_was_replaced_meanwhile_are_the_others(role, mailbox):
    refused = []

    def old():
        try:
            ask(mailbox, 0, 0, epoch=1, timeout_s=30.0)
        except StaleEpochError as error:
            refused.append(error)

    thread = threading.Thread(target=old)
    thread.start()
    while not mailbox._polling.locked():
        pass
    mailbox.call("submit", ([],), 2)
    role.put(*events(1))
    thread.join(30)
    assert len(refused) == 1
    assert ask(mailbox, 0, 0, epoch=2) == (1, events(1))


def test_other_members_need_no_epoch(role, mailbox):
    ask(mailbox, 0, 0, epoch=2)
    mailbox.call("put", tuple(events(1)))
    assert ask(mailbox, 0, 0, epoch=2) == (1, events(1))


def test_it_is_quiet_only_while_nobody_waits_for_an_answer(role, mailbox):
    mailbox._called_s -= 100.0
    assert mailbox.quiet_s() >= 100.0
    seen = []
    role.export = lambda: seen.append(mailbox.quiet_s())
    mailbox.call("export", ())
    assert seen == [0.0]
    assert mailbox.quiet_s() < 100.0
    mailbox._called_s -= 100.0
    assert mailbox.quiet_s() >= 100.0  # nobody waits any more
    mailbox._called_s -= 100.0
    ask(mailbox, 0, 0)
    assert mailbox.quiet_s() < 100.0


def test_it_is_not_quiet_while_it_loads(role, mailbox):
    """Nobody calls a trainer before it has its checkpoint, which may take longer than it waits for a controller."""
    seen = []

    def ready():
        mailbox._called_s -= 100.0
        seen.append(mailbox.quiet_s())
        return Ready()

    role.ready = ready
    mailbox.call("ready", (), 1)
    assert seen == [0.0]
    assert mailbox.quiet_s() < 100.0


@pytest.mark.parametrize("method", ["ready", "export"])
def test_a_call_that_hangs_keeps_nobody_waiting_for_ever(role, mailbox, method):
    seen = []

    def hangs():
        mailbox._called_s -= 100.0
        seen.extend([mailbox.quiet_s(101.0), mailbox.quiet_s(60.0)])
        return Ready()

    setattr(role, method, hangs)
    mailbox.call(method, (), 1 if method == "ready" else None)
    assert seen == [0.0, pytest.approx(40.0, abs=30.0)]


@pytest.mark.parametrize("seed", range(20))
def test_whenever_controllers_die_the_log_has_every_event_once_and_in_order(role, mailbox, seed):
    drawn = random.Random(seed)
    log, said, told, epoch = [], 0, 0, 1
    logged = 0
    while said < 200:
        for _ in range(drawn.choice([0, 1, 3])):
            said += 1
            role.put(*events(said))
        told, found = ask(mailbox, told, logged, epoch)
        if drawn.random() < 0.3:  # it dies with what it has heard
            told, epoch = logged, epoch + 1
            continue
        log += found
        logged = told
    for _ in range(2):  # first what was told before, then what is new
        told, found = ask(mailbox, told, logged, epoch)
        log += found
    assert log == events(*range(1, said + 1)), f"seed {seed}"


class Stops:
    """Whether the role waits in a phase, and how it was struck there."""

    def __init__(self, waits):
        self.waits, self.how = waits, []

    def struck(self, kind):
        self.how.append(kind)
        return self.waits


@pytest.mark.parametrize("stops", [None, Stops(False)])
def test_an_exception_that_was_injected_is_what_the_next_question_for_events_gets(role, mailbox, stops):
    calls = InjectedCalls()
    if stops is not None:
        role.stops = stops
    assert calls.call(mailbox, "events", (0.0, 0, 0), 1) == (0, [])
    assert calls.call(mailbox, "strike", (FaultKind.RAISE,), 1) is True
    calls.call(mailbox, "submit", (scores(3),), 1)
    with pytest.raises(InjectedError, match="a scripted fault raised this"):
        calls.call(mailbox, "events", (0.0, 0, 0), 1)


def test_a_role_that_waits_in_a_phase_raises_there(role, mailbox):
    role.stops, calls = Stops(True), InjectedCalls()
    assert calls.call(mailbox, "strike", (FaultKind.RAISE,)) is True
    assert calls.call(mailbox, "events", (0.0, 0, 0), 1) == (0, [])
    assert role.stops.how == [FaultKind.RAISE]


@pytest.mark.parametrize("done", [True, False, None])
def test_a_role_that_can_is_struck_from_inside(role, mailbox, done):
    role.stops, calls, struck = Stops(False), InjectedCalls(), []
    if done is not None:
        role.strike = lambda kind: struck.append(kind) or done
    assert calls.call(mailbox, "strike", (FaultKind.STALL,)) is bool(done)
    assert struck == ([] if done is None else [FaultKind.STALL])
    assert role.stops.how == [FaultKind.STALL]
    del role.stops
    assert calls.strike(role, FaultKind.STALL) is bool(done)
    assert calls.call(mailbox, "events", (0.0, 0, 0), 1) == (0, [])
