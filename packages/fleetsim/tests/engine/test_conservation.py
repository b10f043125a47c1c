"""Every trajectory finishes once, with all its tokens, and every token is generated once, wherever trajectories are moved."""

import random
from itertools import count

import pytest
from engine_costs import Decode, Prefill

from tailrace.fleetsim.engine import ModelledEngine, Work


@pytest.mark.parametrize("seed", range(30))
def test_trajectories_move_between_engines_and_none_is_lost(seed):
    rng = random.Random(seed)
    capacity = rng.choice([200, 600, 5000])
    kwargs = {"max_running": rng.choice([2, 8, 50])}
    engines = [ModelledEngine(Decode(capacity), Prefill(), **kwargs) for _ in range(3)]
    expected, works, finished, names, kept = {}, {}, {}, count(), 0
    now = 0.0

    def take(engine):
        for when, name, tokens in engine.take_finished():
            assert name not in finished, f"seed {seed}: {name} finished twice"
            assert when <= now, f"seed {seed}"
            finished[name] = tokens

    for _ in range(120):
        now += rng.expovariate(3.0)
        engine = rng.choice(engines)
        engine.advance(now)
        take(engine)
        what = rng.random()
        if what < 0.4:
            fresh = []
            for _ in range(rng.randint(1, 12)):
                total = rng.randint(1, rng.choice([50, 50, 150]))
                done = rng.choice([0, 0, rng.randrange(total)])
                fresh.append(Work(f"t{next(names)}", rng.randint(1, 40), done, total))
                expected[fresh[-1].id] = total
                works[fresh[-1].id] = fresh[-1]
                kept += done
            engine.add(fresh, now)
        elif what < 0.8:
            if rng.random() < 0.2:
                gone = engine.clear(now)
            else:
                gone = engine.remove(rng.sample(sorted(expected), min(len(expected), 15)), now)
            take(engine)
            target = rng.choice(engines)
            target.advance(now)
            for name, tokens in gone:
                assert works[name].done_tokens == tokens < expected[name], f"seed {seed}"
            target.add([works[name] for name, _ in gone], now)
        else:
            engine.set_speed(rng.choice([0.0, 0.5, 1.0, 2.0]), now)
    for engine in engines:
        engine.set_speed(1.0, now)
    now += 1000.0
    for engine in engines:
        engine.advance(now)
        take(engine)
    assert finished == expected, f"seed {seed}"
    assert sum(engine.tokens for engine in engines) == sum(expected.values()) - kept, f"seed {seed}"
