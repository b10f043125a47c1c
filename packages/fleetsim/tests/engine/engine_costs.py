"""Simple costs, and random work, for the tests of the engine."""

from dataclasses import dataclass

from hypothesis import strategies as st

from tailrace.fleetsim.engine import Work

# No sum of these is a round number, so that no step ends at the very moment of a call, which are at multiples of TICK_S.
FIXED_S, PER_RUNNING_S, PREFILL_S = 0.0101234567, 0.000713579, 0.000291317
TICK_S = 0.0091


LATENCIES = {n: st.lists(st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.7]), min_size=n, max_size=n) for n in (1, 2, 3)}


@dataclass
class Decode:
    kv_capacity_tokens: int
    per_token_s: float = 1.23457e-5

    def fixed_s(self, running):
        return FIXED_S + PER_RUNNING_S * running


class Prefill:
    def seconds(self, tokens, cached=0):
        return PREFILL_S * (tokens - cached) + 1e-7 * (tokens * tokens - cached * cached)


class NoPrefill:
    def seconds(self, tokens, cached=0):
        return 0.0


def work(name, prompt=10, response=20, done=0):
    return Work(name, prompt, done, ((response, 0.0),))


@st.composite
def works(draw, names, capacity):
    """Work under fresh names that fits the cache; `names` is a counter."""
    made = []
    for _ in range(draw(st.integers(1, 6))):
        tokens = draw(st.lists(st.integers(1, 25), min_size=1, max_size=3))
        prompt = draw(st.integers(1, 20))
        while prompt + sum(tokens) > capacity:
            tokens = [max(1, t // 2) for t in tokens]
            prompt = max(1, prompt // 2)
        name = next(names)
        # Odd latencies, or who comes back would do so at the end of a step or at the moment of a call.
        after = [
            latency and latency + 1.0317e-4 * (name + 0.317 * i + 0.0137)
            for i, latency in enumerate(draw(LATENCIES[len(tokens)]))
        ]
        done = draw(st.integers(0, sum(tokens) - 1)) if draw(st.booleans()) else 0
        made.append(Work(str(name), prompt, done, tuple(zip(tokens, [*after[1:], 0.0], strict=True)), after[0]))
    return made
