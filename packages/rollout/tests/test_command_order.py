"""Commands are carried out once and in order, whatever the transport does to them."""

import random
from typing import Any

from tailrace.contracts import Abort, Interrupt, Pull, Route
from tailrace.rollout.command_order import CommandOrder


def chain(count):
    kinds = [lambda seq, after: Pull(seq, "r0", 1, after=after), lambda seq, after: Route(seq, "r0", (), after=after)]
    seqs = [3 * number + 1 for number in range(count)]  # other replicas have commands in between
    return [kinds[number % 2](seq, after) for number, (seq, after) in enumerate(zip(seqs, [0, *seqs], strict=False))]


def test_delayed_reordered_and_repeated_commands_come_out_once_and_in_order(seeds):
    for seed in seeds(50):
        draw = random.Random(seed)
        commands = chain(draw.randint(1, 30))
        arrivals = commands + draw.choices(commands, k=draw.randint(0, 20))
        draw.shuffle(arrivals)
        order, out = CommandOrder(), []
        for command in arrivals:
            order.add(command)
            out += order.take() if draw.random() < 0.5 else []
        assert out + order.take() == commands, f"seed {seed}"
        assert order.held_back == 0
        assert order.last_seq == commands[-1].seq


def test_what_is_behind_a_gap_waits():
    first, second, third = chain(3)
    order = CommandOrder()
    order.add(third)
    order.add(first)
    assert order.take() == [first]
    assert not order.ready
    assert order.held_back == 1
    order.add(second)
    assert order.take() == [second, third]


def test_commands_without_a_chain_are_carried_out_as_they_come():
    order = CommandOrder()
    commands: list[Any] = [Abort(9, ("a",)), Interrupt(2, "r0", ("a",)), Route(1, "r0", ())]
    for command in commands:
        order.add(command)
    assert order.take() == commands


def test_another_controller_begins_a_chain_of_its_own():
    order = CommandOrder()
    for command in chain(2):
        order.add(command)
    order.take()
    order.add(Route(1, "r0", (), after=0))
    assert order.take() == []
    order.restart()
    order.add(Route(1, "r0", (), after=0))
    assert order.take() == [Route(1, "r0", (), after=0)]
