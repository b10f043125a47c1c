"""A predicted length, and what is left of it after some tokens are there.

A prediction gives two quantiles, and lengths are heavy-tailed and positive, so the log-normal law with these quantiles stands
for it: Z = ln L is normal with mean ln p50 and standard deviation s = ln(p90/p50)/1.2816. With z = (ln t - ln p50)/s and Mills'
ratio m(z) = (1 - Phi(z))/phi(z), the mean of the truncated law has the closed form E[L | L > t] = t m(z - s)/m(z).

That is not p50 - t: who has generated p50 tokens is not about to end, but is one of the longer half.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from tailrace.ranker.errors import PredictionError, RankerOptionError


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long the responses to a prompt will be.

    Args:
        p50: tokens that half of them do not exceed, at least 1.
        p90: tokens that nine of ten do not exceed, at least `p50`.
        score: tokens of a response on average, as far as the method knows. Prompts are ranked by it, the longest highest: by
            `LengthRanker.rank`, by recall and so by ``auto`` and the judgement of drift, and by a run's routing. For longest
            first by the mean is what keeps batches short where lengths are known as distributions only (Bruno, Downey and
            Frederickson, JACM 28, 1981, for exponential ones), and means of several responses add up.

    Raises:
        PredictionError: a value is not finite or outside its range.
    """

    p50: float
    p90: float
    score: float

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.p50, self.p90, self.score))):
            raise PredictionError(
                f"found p50 {self.p50}, p90 {self.p90} and score {self.score}, expected finite numbers"
            )
        if not 1 <= self.p50 <= self.p90:
            raise PredictionError(f"found p50 {self.p50} and p90 {self.p90} tokens, expected 1 <= p50 <= p90")


def ranked(predictions: list[Prediction]) -> list[int]:
    """Positions in the order of their scores, longest first; equal scores keep their order."""
    return sorted(range(len(predictions)), key=lambda at: -predictions[at].score)


Z90 = 1.2815515655446004  # the 0.9-quantile of the standard normal law
_LEAST_SPREAD = 1e-3  # of ln L: for a prediction whose quantiles are equal
_TAIL = 6.0  # from here on the difference 1 - Phi is a continued fraction


@lru_cache(maxsize=8192)  # responses to a prompt that run beside each other have equally many tokens, cycle after cycle
def remaining_tokens(prediction: Prediction, generated: int, *, cap: int | None = None) -> float:
    """E[L - t | L > t]: tokens that are left on average of a response that has `generated` tokens and has not ended.

    Args:
        prediction: the prompt's.
        generated: tokens that are there, t. With 0 the result is the mean length.
        cap: the limit on a response's tokens, at which it would be cut; None for none.

    Returns:
        Tokens; at least 1 as long as the cap is not reached, since the response has not ended. At the cap 0.

    Raises:
        RankerOptionError: `generated` is below 0, or `cap` below 1.
    """
    if generated < 0:
        raise RankerOptionError(f"found {generated} generated tokens, expected 0 or more")
    if cap is not None and cap < 1:
        raise RankerOptionError(f"found a cap of {cap} tokens, expected 1 or more")
    if cap is not None and generated >= cap:
        return 0.0
    spread = max(math.log(prediction.p90 / prediction.p50) / Z90, _LEAST_SPREAD)
    left = _left(prediction.p50, spread, generated)
    if cap is not None:
        # E[min(L, c) - t | L > t]: what lies beyond the cap is cut off.
        left -= _survives(prediction.p50, spread, generated, cap) * _left(prediction.p50, spread, cap)
        left = min(left, float(cap - generated))
    return max(1.0, left)


def _left(p50: float, spread: float, generated: int) -> float:
    z = (math.log(generated / p50)) / spread if generated else -math.inf
    if z < -_TAIL:  # that it ends before is out of the question
        return p50 * math.exp(spread * spread / 2) - generated
    return generated * (_mills(z - spread) / _mills(z) - 1.0)


def _survives(p50: float, spread: float, generated: int, later: int) -> float:
    """P(L > later | L > generated)."""
    z, to = (math.log(generated / p50) / spread if generated else -math.inf), math.log(later / p50) / spread
    if to < -_TAIL:
        return 1.0
    if z < -_TAIL:
        return math.erfc(to / math.sqrt(2)) / 2
    return math.exp((z - to) * (z + to) / 2) * _mills(to) / _mills(z)


def _mills(z: float) -> float:
    """Mills' ratio (1 - Phi(z))/phi(z) of the standard normal law; the continued fraction of Laplace where both vanish."""
    if z < _TAIL:
        return math.erfc(z / math.sqrt(2)) / 2 * math.sqrt(2 * math.pi) * math.exp(z * z / 2)
    fraction = 0.0
    for step in range(30, 0, -1):  # more of them change no bit from `_TAIL` on
        fraction = step / (z + fraction)
    return 1.0 / (z + fraction)
