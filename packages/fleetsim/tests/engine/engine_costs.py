"""Simple costs, and random work, for the tests of the engine."""

from dataclasses import dataclass

from hypothesis import strategies as st

from tailrace.fleetsim.engine import Work

# No sum of these is a round number, so that no step ends at the very moment of a call, which are at multiples of TICK_S.
FIXED_S, PER_RUNNING_S, PREFILL_S = 0.0101234567, 0.000713579, 0.000291317
TICK_S = 0.0091


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
    return Work(name, prompt, done, response)


@st.composite
def works(draw, names, capacity):
    """Work under fresh names that fits the cache; `names` is a counter."""
    made = []
    for _ in range(draw(st.integers(1, 6))):
        tokens = draw(st.integers(1, 75))
        prompt = draw(st.integers(1, 20))
        while prompt + tokens > capacity:
            tokens, prompt = max(1, tokens // 2), max(1, prompt // 2)
        done = draw(st.integers(0, tokens - 1)) if draw(st.booleans()) else 0
        cached = draw(st.sampled_from([0, 0, (prompt + done) // 2]))
        made.append(Work(str(next(names)), prompt, done, tokens, cached))
    return made
