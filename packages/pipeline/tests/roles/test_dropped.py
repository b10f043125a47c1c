"""What was dropped last, beside a list that is read from its end: a late route begins nothing of it."""

import random

from tailrace.contracts import Purpose, TrajectoryRef
from tailrace.pipeline.roles.data import Dropped


def ref(name):
    return TrajectoryRef(name, 0, 0, Purpose.TRAIN)


def test_what_was_dropped_since_it_was_routed_is_left_out(seeds):
    for seed in seeds(100):
        draw, most = random.Random(seed), random.Random(seed).choice([1, 3, 100])
        dropped, past = Dropped(most), []
        for seq in range(1, 60):
            names = [str(name) for name in draw.sample(range(8), draw.randint(0, 3))]
            if draw.random() < 0.4:
                dropped.note(names, seq)
                past += [(name, seq) for name in names]
                continue
            given = draw.randint(max(1, seq - 20), seq)
            remembered = {}
            for name, at in reversed(past):
                if len(remembered) < most:
                    remembered.setdefault(name, at)
            expected = [name for name in names if given > remembered.get(name, 0)]
            found = [one.trajectory for one in dropped.wanted([ref(name) for name in names], given)]
            assert found == expected, f"seed {seed}, routed at {given}"


def test_it_forgets_with_another_controller():
    dropped = Dropped()
    dropped.note(["a"], 9)
    assert not dropped.wanted([ref("a")], 7)
    dropped.forget()
    assert dropped.wanted([ref("a")], 1) == [ref("a")]
