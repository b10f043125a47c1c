"""Fits decoding and prefill to the rounds of the replicas' engines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from statistics import mean

from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.profile.costs import costs, relative_error
from tailrace.fleetsim.profile.machine import DecodePart, PrefillPart
from tailrace.fleetsim.profile.samples import EngineRound, Look, ReplicaSamples
from tailrace.fleetsim.profile.timing import Timing
from tailrace.repack import FitError, ThroughputModel

LEAST_ROUNDS = 40
CHUNKS = 120
"""Means of this many chunks of similar rounds are fitted: single rounds scatter, and the fit's time grows with their square."""
BLOCKS = (1, 8, 16, 32, 64, 128, 256, 512, 1024)

Cost = tuple[float, int, float]
"""Tokens in the KV cache, running trajectories, seconds."""


def fit_decode(
    replicas: Sequence[ReplicaSamples], timing: Timing, max_running: int | None, longest: int = 1
) -> DecodePart:
    """The cost model of decoding, fitted to rounds that admitted no trajectories.

    Args:
        replicas: the replicas' samples.
        timing: the replicas' clock.
        max_running: the engine's configured limit; None: the largest batch seen.
        longest: most tokens of a trajectory. An engine that does not report the capacity of its cache is assumed to have
            room for a full batch.

    Raises:
        ProfileError: the rounds are too few or too similar.
    """
    rounds = [one for each in replicas for one in _split(each.rounds)[0]]
    if len(rounds) < LEAST_ROUNDS:
        raise ProfileError(
            f"found {len(rounds)} decoding steps to fit to, expected at least {LEAST_ROUNDS}: profile more steps (--steps)"
        )
    chunks = _chunks([(one.kv_tokens, one.running, timing.spent_s(one.since, one.ended)) for one in rounds])
    try:
        model = ThroughputModel.fit(chunks)
    except FitError as error:
        raise ProfileError(f"decoding: {error}") from error
    estimated = [(model.step_latency_s(kv, running), spent) for kv, running, spent in chunks]
    # Least squares give long steps more weight. Scale the model so that all steps together take as long as measured.
    scale = sum(spent for _, spent in estimated) / sum(guess for guess, _ in estimated)
    errors = sorted(abs(scale * guess - spent) / spent for guess, spent in estimated)
    most = (
        max_running
        or max(_most_running(each.rounds) for each in replicas)
        or max(256, *(one.running for one in rounds))
    )
    return DecodePart(
        k1=scale * model.k1,
        k2=scale * model.k2,
        k3=scale * model.k3,
        k4=scale * model.k4,
        kv_capacity_tokens=max(each.kv_capacity_tokens for each in replicas) or most * longest,
        block_tokens=block_tokens([look for each in replicas for look in each.looks]),
        max_running=most,
        error=errors[len(errors) // 2],
    )


def fit_prefill(replicas: Sequence[ReplicaSamples], timing: Timing, decode: DecodePart) -> PrefillPart:
    """The cost of prefill: the time of rounds that admitted trajectories beyond their decoding."""
    rows, targets, wholes = [], [], []
    for intake in chain.from_iterable(_split(each.rounds)[1] for each in replicas):
        spent_s = sum(timing.spent_s(one.since, one.ended) for one in intake)
        rows.append((float(sum(one.fresh_tokens for one in intake)), float(sum(one.fresh for one in intake))))
        targets.append(spent_s - sum(step_s(decode, one.kv_tokens, one.running) for one in intake))
        wholes.append(spent_s)
    found = costs(rows, targets, wholes)
    guessed = sum(a * b for row in rows for a, b in zip(row, found, strict=True))
    if guessed <= 0:
        return PrefillPart(per_token_s=0.0, per_trajectory_s=0.0)
    scale = max(0.0, sum(targets)) / guessed
    found = [scale * value for value in found]
    return PrefillPart(per_token_s=found[0], per_trajectory_s=found[1], error=relative_error(rows, targets, found))


def step_s(decode: DecodePart, kv_tokens: float, running: int) -> float:
    """Seconds of one decoding step."""
    return decode.k1 * kv_tokens + max(decode.k2, decode.k3 * running) + decode.k4


def block_tokens(looks: Sequence[Look]) -> int:
    """The block size for which the trajectories best explain the KV usage that the engine reported."""
    if not looks:
        return 1

    def off(block: int) -> float:
        return sum(abs(look.used_tokens - sum(-(-tokens // block) * block for tokens in look.tokens)) for look in looks)

    return min(BLOCKS, key=off)


def _split(rounds: Sequence[EngineRound]) -> tuple[list[EngineRound], list[list[EngineRound]]]:
    """Rounds that only decoded, and sequences of rounds that admitted trajectories (a prefill may take several rounds)."""
    steady: list[EngineRound] = []
    intakes: list[list[EngineRound]] = []
    queued = 0
    for one in rounds:
        if one.fresh:
            intakes.append([one])
        elif one.queued < queued and intakes:
            intakes[-1].append(one)
        elif one.running:
            steady.append(one)
        queued = one.queued
    return steady, intakes


def _most_running(rounds: Sequence[EngineRound]) -> int:
    """The largest batch while others waited in the queue; 0 if none ever waited."""
    full = (b.running for a, b in pairwise(rounds) if b.queued and b.queued == a.queued and not b.fresh)
    return max(full, default=0)


def _chunks(samples: list[Cost]) -> list[Cost]:
    """Means over similar rounds: sorted by batch size, then by KV usage, in chunks of equal size."""
    ordered = sorted(samples, key=lambda one: (one[1], one[0]))
    size = max(1, len(ordered) // CHUNKS)
    chunks = [ordered[at : at + size] for at in range(0, len(ordered), size)]
    return [
        (mean(kv for kv, _, _ in chunk), round(mean(n for _, n, _ in chunk)), mean(spent for _, _, spent in chunk))
        for chunk in chunks
    ]
