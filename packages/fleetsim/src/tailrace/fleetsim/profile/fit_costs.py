"""Fits decoding and prefill to the rounds of the replicas' engines, and training to its updates and steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from itertools import chain, pairwise
from statistics import mean

from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.profile.machine import DecodePart, PrefillPart, TrainingPart
from tailrace.fleetsim.profile.samples import EngineRound, Look, ReplicaSamples, Timing, TrainerSamples, TrainingUpdate
from tailrace.repack import FitError, ThroughputModel
from tailrace.repack.throughput import least_squares

FIRST = 2  # the first updates, which still allocate and import
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
    guessed = sum(_estimate(found, row) for row in rows)
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


def fit_training(trainer: TrainerSamples, timing: Timing) -> TrainingPart:
    """The cost of an update.

    Updates of several sizes were measured while nothing else ran. Beside replicas the same update takes more processor time,
    since caches are shared. So the level is fitted to the run.

    Raises:
        ProfileError: there are too few updates.
    """
    settled = trainer.updates[FIRST:] if len(trainer.updates) > FIRST + 2 else trainer.updates
    if not settled:
        raise ProfileError("found no training step to fit to, expected at least one: profile more steps (--steps)")
    shaped = trainer.sizes or settled
    found = costs(
        [_row(update) for update in shaped], [timing.spent_s(update.began, update.ended) for update in shaped]
    )
    rows, targets = (
        [_row(update) for update in settled],
        [timing.spent_s(update.began, update.ended) for update in settled],
    )
    level = sum(targets) / sum(_estimate(found, row) for row in rows)
    found = [level * value for value in found]
    passed_s = sum(update.ended.wall_s - update.began.wall_s for update in settled)
    steps_s = sum(step.ended.wall_s - step.began.wall_s for step in trainer.steps[-len(settled) :])
    # Fetching a batch is computing of other members, slowed down like the trainer's own.
    return TrainingPart(
        fixed_s=found[0],
        per_token_s=found[1],
        per_square_token_s=found[2],
        batch_s=max(0.0, steps_s - passed_s) * min(1.0, sum(targets) / passed_s) / len(settled),
        error=relative_error(rows, targets, found),
    )


def thousand_tokens_s(updates: Sequence[TrainingUpdate], timing: Timing) -> float:
    """Processor seconds for 1,000 tokens."""
    tokens = sum(update.tokens for update in updates)
    spent_s = sum(timing.processor_s(update.began, update.ended) for update in updates)
    return 1000 * spent_s / tokens if tokens else 0.0


def _row(update: TrainingUpdate) -> tuple[float, ...]:
    return float(update.parts), float(update.tokens), float(update.square_tokens)


def _estimate(found: Sequence[float], row: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(found, row, strict=True))


def costs(
    rows: Sequence[Sequence[float]], targets: Sequence[float], scales: Sequence[float] | None = None
) -> list[float]:
    """The coefficients of at least 0 with the least sum of squared relative errors.

    Every subset of the columns is tried, so there should be few columns. Without rows, or if a column is all 0, its
    coefficient is 0.

    Args:
        rows: the measured quantities of each sample, one per coefficient.
        targets: the measured cost of each sample.
        scales: errors are relative to these; None: to the targets. Rows whose scale is not positive are left out.
    """
    width = len(rows[0]) if rows else 0
    weighed = [
        ([value / scale for value in row], target / scale)
        for row, target, scale in zip(rows, targets, scales or targets, strict=True)
        if scale > 0
    ]
    best, least = [0.0] * width, math.inf
    for size in range(1, width + 1):
        for columns in itertools.combinations(range(width), size):
            chosen_rows = [[row[column] for column in columns] for row, _ in weighed]
            found = least_squares(chosen_rows, [target for _, target in weighed])
            if found is None or min(found) < 0:
                continue
            chosen = dict(zip(columns, found, strict=True))
            error = math.fsum((sum(chosen[c] * row[c] for c in columns) - target) ** 2 for row, target in weighed)
            if error < least * (1 - 1e-9):
                best, least = [chosen.get(column, 0.0) for column in range(width)], error
    return best


def relative_error(rows: Sequence[Sequence[float]], targets: Sequence[float], found: Sequence[float]) -> float:
    """Median of |estimated - measured| / measured; 0 without rows."""
    errors = sorted(
        abs(_estimate(found, row) - target) / target for row, target in zip(rows, targets, strict=True) if target > 0
    )
    return errors[len(errors) // 2] if errors else 0.0
