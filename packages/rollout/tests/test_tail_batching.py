"""Tail batching: hand-worked rounds, random runs beside a plain reference, and state in the middle of a round."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest

from tailrace.rollout import RoundError, TailRounds
from tailrace.rollout.tail_batching import quotas

SEEDS = 150


def stream(length: int = 10**9) -> Callable[[int], Sequence[int]]:
    """The prompts 0, 1, ... of an epoch."""
    numbers = iter(range(length))
    return lambda count: list(itertools.islice(numbers, count))


def test_four_short_rounds_then_a_long_one() -> None:
    """The paper's period: at factors of 1.25 the queue gains 32 of 128 prompts a round (section 3, figure 4)."""
    rounds, take = TailRounds(128, 8), stream()
    kinds = []
    for _ in range(10):
        opened = rounds.open(take)
        assert opened is not None
        kinds.append((opened.kind, len(opened.prompts), opened.samples, opened.needed, opened.size))
        rounds.close(opened.prompts[: opened.size])
    assert kinds == ([("short", 160, 10, 8, 128)] * 4 + [("long", 128, 8, 8, 128)]) * 2


def test_a_long_round_takes_the_head_of_the_queue_and_two_may_follow() -> None:
    rounds, take = TailRounds(2, 1, prompt_factor=4.0), stream()
    assert rounds.open(take).prompts == tuple(range(8))  # type: ignore[union-attr]
    assert rounds.close((5, 2)) == (0, 1, 3, 4, 6, 7)  # by launch, not by completion
    assert rounds.open(take).prompts == (0, 1)  # type: ignore[union-attr]
    assert rounds.close((0, 1)) == ()
    assert rounds.open(take).prompts == (3, 4)  # type: ignore[union-attr]
    rounds.close((3, 4))
    assert rounds.open(take).kind == "long"  # type: ignore[union-attr]
    rounds.close((6, 7))
    assert rounds.open(take).prompts == tuple(range(8, 16))  # type: ignore[union-attr]


def test_what_a_short_round_stops_needing_is_told_once() -> None:
    rounds = TailRounds(2, 1, prompt_factor=2.0)
    rounds.open(stream())
    assert rounds.completed(3) == ()
    assert not rounds.full
    assert rounds.completed(1) == (0, 2)
    assert (rounds.full, rounds.kept, rounds.surplus) == (True, (1, 3), (0, 2))
    assert rounds.close(rounds.kept) == (0, 2)


def test_a_filtered_prompt_is_done_and_the_next_takes_its_place() -> None:
    rounds, take = TailRounds(2, 1, prompt_factor=2.0), stream()
    rounds.open(take)
    assert rounds.filter(0, take) == (4,)
    for prompt in (4, 1):
        rounds.completed(prompt)
    assert rounds.close(rounds.kept) == (2, 3)
    long = rounds.open(take)
    assert long is not None
    assert (long.kind, long.prompts) == ("long", (2, 3))
    assert rounds.filter(2, take) == (5,)  # the queue is empty, so the stream goes on
    assert rounds.queue == ()


def test_in_a_long_round_the_queue_comes_before_the_stream() -> None:
    rounds, take = TailRounds(1, 1, prompt_factor=3.0), stream()
    rounds.open(take)
    rounds.close((0,))
    rounds.open(take)
    assert rounds.filter(1, take) == (2,)


def test_groups_too_old_go_to_the_head_of_the_queue() -> None:
    rounds, take = TailRounds(2, 1, prompt_factor=2.0), stream()
    rounds.open(take)
    rounds.close((0, 1))
    assert rounds.queue == (2, 3)
    assert rounds.expired((0, 1), take) == ()  # no round is open
    assert rounds.queue == (0, 1, 2, 3)
    long = rounds.open(take)
    assert long is not None
    assert long.prompts == (0, 1)
    rounds.completed(0)
    assert rounds.expired((0,), take) == (0,)  # it is launched again in its own round
    assert rounds.kept == ()


def test_the_end_of_an_epoch_flushes_or_carries() -> None:
    take = stream(7)
    flush = TailRounds(4, 1)
    assert flush.open(take).size == 4  # type: ignore[union-attr]
    flush.close((0, 1, 2, 3))
    last = flush.open(take)
    assert last is not None
    assert (last.kind, last.prompts, last.size) == ("long", (4, 5, 6), 3)
    flush.close(last.prompts)
    assert flush.open(take) is None

    take = stream(7)
    carry = TailRounds(4, 1, epoch_end="carry")
    carry.open(take)
    carry.close((0, 1, 2, 3))
    assert carry.open(take) is None
    assert carry.queue == (4, 5, 6)
    assert carry.open(stream()).kind == "short"  # type: ignore[union-attr]  # the next epoch


def test_sources_race_for_their_own_share() -> None:
    """Even prompts are quick. A race of all would keep none of the odd ones."""
    rounds = TailRounds(4, 1, prompt_factor=2.0, source_of=lambda prompt: prompt % 2)
    rounds.open(stream())
    assert rounds.completed(0) == ()
    assert rounds.completed(2) == (4, 6)
    assert rounds.completed(7) == ()
    assert rounds.completed(1) == (3, 5)
    assert rounds.kept == (0, 1, 2, 7)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"prompts": 0, "samples": 1}, "prompts=0"),
        ({"prompts": 1, "samples": 0}, "samples=0"),
        ({"prompts": 1, "samples": 1, "prompt_factor": 0.9}, "prompt_factor=0.9"),
        ({"prompts": 1, "samples": 1, "sample_factor": float("nan")}, "sample_factor=nan"),
        ({"prompts": 1, "samples": 1, "epoch_end": "never"}, "epoch_end='never'"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: dict[str, float], found: str) -> None:
    with pytest.raises(RoundError, match=found):
        TailRounds(**arguments)  # type: ignore[arg-type]


def test_calls_that_do_not_fit_are_refused_and_change_nothing() -> None:
    rounds, take = TailRounds(2, 1), stream()
    with pytest.raises(RoundError, match="no open round"):
        rounds.close(())
    rounds.open(take)
    before = rounds.state()
    for wrong in (
        lambda: rounds.open(take),
        lambda: rounds.completed(99),
        lambda: rounds.filter(99, take),
        lambda: rounds.abandon(99),
        lambda: rounds.close((0, 1, 2)),
        lambda: rounds.close((99,)),
    ):
        with pytest.raises(RoundError):
            wrong()
        assert rounds.state() == before
    rounds = TailRounds(1, 1, prompt_factor=2.0)
    rounds.open(take := stream())
    rounds.close((0,))
    rounds.open(take)
    with pytest.raises(RoundError, match="wait for all"):
        rounds.close(())
    with pytest.raises(RoundError, match="cannot be read"):
        TailRounds.restore({"prompts": 2})


class Reference:
    """What a person would write: every prompt with its place, and no counts kept."""

    def __init__(self, prompts: int, factor: float, prompts_left: list[int]) -> None:
        self.prompts, self.launch, self.left = prompts, -int(-(prompts * factor) // 1), prompts_left
        self.queue: list[int] = []
        self.members: list[int] = []
        self.long = False

    def open(self) -> list[int] | None:
        if len(self.queue) >= self.prompts:
            self.long = True
        elif len(self.left) >= self.launch:
            self.long, self.members = False, self.left[: self.launch]
            self.left = self.left[self.launch :]
            return self.members
        else:
            self.queue += self.left
            self.left, self.long = [], True
        if not self.queue:
            return None
        self.members, self.queue = self.queue[: self.prompts], self.queue[self.prompts :]
        return self.members

    def replace(self, prompt: int) -> list[int]:
        self.members.remove(prompt)
        if self.long and self.queue:
            new = [self.queue.pop(0)]
        else:
            new, self.left = self.left[:1], self.left[1:]
        self.members += new
        return new


def test_random_runs_agree_with_the_reference(seeds: Callable[[int], Iterator[int]]) -> None:
    """Every prompt of the epoch is trained on, filtered or refused exactly once, in rounds that the reference opens too."""
    for seed in seeds(SEEDS):
        draw = random.Random(seed)
        prompts, factor, length = draw.randint(1, 6), draw.choice((1.0, 1.25, 1.5, 2.0)), draw.randint(0, 60)
        take = stream(length)
        rounds, reference = TailRounds(prompts, 2, factor), Reference(prompts, factor, list(range(length)))
        ended: Counter[int] = Counter()
        while True:
            if draw.random() < 0.3:
                rounds = TailRounds.restore(json.loads(json.dumps(rounds.state())))
            opened, expected = rounds.open(take), reference.open()
            assert (None if opened is None else list(opened.prompts)) == expected, f"seed {seed}"
            if opened is None:
                break
            assert (opened.kind == "long") is reference.long
            assert opened.samples == (2 if reference.long else 3)  # 1.25 x 2, rounded up
            running = list(opened.prompts)
            while not rounds.full:
                if draw.random() < 0.3:
                    rounds = TailRounds.restore(json.loads(json.dumps(rounds.state())))
                prompt = running.pop(draw.randrange(len(running)))
                if draw.random() < 0.2:
                    ended[prompt] += 1
                    new = rounds.filter(prompt, take)
                    assert list(new) == reference.replace(prompt)
                    running += new
                else:
                    late = rounds.completed(prompt)
                    running = [other for other in running if other not in late]
                assert not set(running) & set(rounds.surplus)
            kept = rounds.kept
            size = min(prompts, len(reference.members)) if not reference.long else len(reference.members)
            assert len(kept) == size == rounds.size, f"seed {seed}"
            ended.update(kept)
            late = [prompt for prompt in reference.members if prompt not in kept]
            assert list(rounds.close(kept)) == late
            assert not (late and reference.long)
            reference.queue += late
        assert ended == Counter(range(length)), f"seed {seed}"


def test_quotas_are_the_nearest_whole_parts_within_their_limits(seeds: Callable[[int], Iterator[int]]) -> None:
    """Beside every division that the limits allow: none is nearer to the exact shares in the largest distance below."""
    for seed in seeds(SEEDS):
        _near_quotas(seed)


def _near_quotas(seed: int) -> None:
    draw = random.Random(seed)
    sources = range(draw.randint(1, 3))
    shares = {source: draw.randint(1, 5) for source in sources}
    most = {source: draw.randint(0, 5) for source in sources}
    least = {source: draw.randint(0, most[source]) for source in sources}
    size = draw.randint(sum(least.values()), sum(most.values()))
    found = quotas(size, shares, least, most)
    exact = {source: size * shares[source] / sum(shares.values()) for source in sources}

    def furthest_below(parts: dict[int, int]) -> list[float]:
        return sorted((exact[s] - parts[s] for s in sources if parts[s] < most[s]), reverse=True)

    allowed = [
        dict(zip(sources, parts, strict=True))
        for parts in itertools.product(*(range(least[s], most[s] + 1) for s in sources))
        if sum(parts) == size
    ]
    assert found in allowed
    best = min((furthest_below(parts) or [0.0])[0] for parts in allowed)
    assert (furthest_below(found) or [0.0])[0] == pytest.approx(best), f"seed {seed}"  # type: ignore[arg-type]
