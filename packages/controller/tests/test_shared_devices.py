"""Which devices replicas stand on, and which cells with them: against a plain search, over many plans."""

import random

import pytest

from tailrace.controller.lending import cells_on, devices_for

MOST = 64


def reference(size, taken, own=()):
    """Tries all rows, the one around its own devices first."""
    rows = [tuple(range(first, first + size)) for first in range(0, MOST, size)]
    around = [row for row in rows if own and own[0] in row]
    return next(row for row in (*around, *rows) if not set(row) & taken)


def test_rows_are_whole_and_of_one_replica_each(seeds):
    for seed in seeds(200):
        draw, has = random.Random(seed), {}
        for step in range(40):
            name = f"r{draw.randint(0, 5)}"
            if name in has and draw.random() < 0.3:
                del has[name]
                continue
            size, own = draw.choice([1, 1, 2, 4]), has.get(name, ())
            taken = {device for other, row in has.items() if other != name for device in row}
            row = has[name] = devices_for(size, taken, own)
            where = f"seed {seed}, step {step}"
            assert row == reference(size, taken, own), where
            assert len(row) == size, where
            assert row[0] % size == 0, where
            assert taken.isdisjoint(row), where
            if own and size <= len(own):
                assert set(row) <= set(own), f"{where}: one that shrinks keeps to its own"


@pytest.mark.parametrize(("tp", "grown"), [(1, 2), (1, 4), (2, 4), (4, 8)])
def test_there_and_back_is_where_it_was(tp, grown):
    """A plan does it so: the first of each group of neighbours grows, and shrinks again while others start beside it."""
    before = [tuple(range(first, first + tp)) for first in range(0, 16, tp)]
    kept = [devices_for(grown, set(), row) for row in before[:: grown // tp]]
    assert [device for row in kept for device in row] == list(range(16))
    shrunk = [devices_for(tp, set(), row) for row in kept]
    taken = {device for row in shrunk for device in row}
    for _ in range(16 // tp - len(shrunk)):
        row = devices_for(tp, taken)
        shrunk.append(row)
        taken |= set(row)
    assert sorted(shrunk) == before


def test_a_replica_stands_on_as_many_cells_as_its_devices_reach():
    assert [cells_on((n,), 2, 4) for n in range(8)] == [(0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,)]
    assert cells_on((2, 3), 2, 4) == (1,)
    assert cells_on((4, 5, 6, 7), 2, 4) == (2, 3)
    assert cells_on((0, 1), 1, 2) == (0, 1)
    assert cells_on((8,), 2, 4) == (0,)  # a replica that came later shares the first cell
