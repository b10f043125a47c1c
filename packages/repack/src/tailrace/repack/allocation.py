"""How many devices generate and how many train (StreamRL, section 4.2, Algorithm 1).

Where the paper, taken literally, chooses badly:

* of allocations that take equally long it keeps the first it meets. Here it is the one with fewest devices, and of those the
  one with fewest that generate;
* across datacenters it takes the k whose time is nearest to the slower stage's, which may be slower still. Here the faster
  stage keeps as few devices as do not hold the slower one up;
* an iteration takes as long as the slower stage only if they overlap fully. `iteration_s` says what it takes otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tailrace.repack.batch_time import asked
from tailrace.repack.errors import LoadError, NothingFitsError, UnmeasuredError
from tailrace.repack.lpt import check_count

StageTime = Callable[[int], float]
"""Seconds that a stage takes on so many devices; infinite if it does not fit them."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Devices of each stage.

    Args:
        generate: devices that generate.
        train: devices that train.
        iteration_s: seconds of an iteration.
    """

    generate: int
    train: int
    iteration_s: float


def allocate(
    devices: int,
    generate_s: StageTime,
    train_s: StageTime,
    *,
    iteration_s: Callable[[float, float], float] = max,
) -> Allocation:
    """Share the devices of one datacenter between generation and training (Algorithm 1, first part).

    Args:
        devices: devices, or machines, or whatever the times are measured by; at least 2. Some may be left over.
        generate_s: see `StageTime`; asked for 1 to ``devices - 1``.
        train_s: likewise.
        iteration_s: seconds of an iteration, from those of generation and of training. The larger where they overlap fully;
            a synchronous pipeline gives its makespan. Infinite: such a pair does not do.

    Raises:
        LoadError: there are fewer than two devices.
        NothingFitsError: no allocation fits.
        UnmeasuredError: a time is unknown, negative or no number.
    """
    check_count("devices", devices, least=2)
    generation = [_time_s("generate_s", generate_s, count) for count in range(1, devices)]
    training = [_time_s("train_s", train_s, count) for count in range(1, devices)]
    best = _where_slower(generation, training) if iteration_s is max else _of_all(generation, training, iteration_s)
    if best is None:
        raise NothingFitsError(
            f"found no way to share {devices} devices, expected generation and training to fit beside each other"
        )
    return best


def allocate_across(
    generate_devices: int,
    train_devices: int,
    generate_s: StageTime,
    train_s: StageTime,
    *,
    tolerance: float = 0.02,
) -> Allocation:
    """Devices of each stage where each has a datacenter of its own (Algorithm 1, second part).

    The slower stage keeps all its devices; generation, if both take equally long. The other keeps the fewest with which it
    takes at most ``1 + tolerance`` times as long as the slower one.

    Args:
        generate_devices: devices where generation is, at least 1.
        train_devices: devices where training is, at least 1.
        generate_s: see `StageTime`; asked for up to `generate_devices`.
        train_s: likewise.
        tolerance: share of the slower stage's time, at least 0.

    Raises:
        LoadError: a value is out of its range.
        NothingFitsError: a stage does not fit its devices.
        UnmeasuredError: a time is unknown, negative or no number.
    """
    check_count("generate_devices", generate_devices)
    check_count("train_devices", train_devices)
    if not (tolerance >= 0 and math.isfinite(tolerance)):
        raise LoadError(f"found tolerance={tolerance!r}, expected a finite share of at least 0")
    all_generate_s = _time_s("generate_s", generate_s, generate_devices)
    all_train_s = _time_s("train_s", train_s, train_devices)
    for stage, count, seconds in (
        ("generation", generate_devices, all_generate_s),
        ("training", train_devices, all_train_s),
    ):
        if seconds == math.inf:
            raise NothingFitsError(f"found that {stage} does not fit its {count} devices, expected that it fits all")
    if all_generate_s < all_train_s:
        generate, seconds = _fewest("generate_s", generate_s, generate_devices, all_train_s * (1 + tolerance))
        return Allocation(generate, train_devices, max(seconds, all_train_s))
    train, seconds = _fewest("train_s", train_s, train_devices, all_generate_s * (1 + tolerance))
    return Allocation(generate_devices, train, max(seconds, all_generate_s))


def _where_slower(generation: Sequence[float], training: Sequence[float]) -> Allocation | None:
    """The best where the slower stage decides: each stage then needs only as many as keep it within the best time."""
    fastest: list[float] = []  # training with at most so many devices
    for seconds in training:
        fastest.append(min(seconds, fastest[-1]) if fastest else seconds)
    best_s = min(max(seconds, fastest[-generate]) for generate, seconds in enumerate(generation, 1))
    if best_s == math.inf:
        return None
    generate = next(count for count, seconds in enumerate(generation, 1) if seconds <= best_s)
    train = next(count for count, seconds in enumerate(training, 1) if seconds <= best_s)
    return Allocation(generate, train, best_s)


def _of_all(
    generation: Sequence[float], training: Sequence[float], iteration_s: Callable[[float, float], float]
) -> Allocation | None:
    best: tuple[float, int, int] | None = None
    for generate, generating_s in enumerate(generation, 1):
        if generating_s == math.inf:
            continue
        for train, training_s in enumerate(training[: len(training) + 1 - generate], 1):
            seconds = iteration_s(generating_s, training_s) if training_s < math.inf else math.inf
            if math.isnan(seconds):
                raise UnmeasuredError(
                    f"found iteration_s({generating_s!r}, {training_s!r})={seconds!r}, expected seconds"
                )
            found = (seconds, generate + train, generate)
            if seconds < math.inf and (best is None or found < best):
                best = found
    return None if best is None else Allocation(best[2], best[1] - best[2], best[0])


def _fewest(name: str, stage_s: StageTime, devices: int, within_s: float) -> tuple[int, float]:
    return next(
        (count, seconds) for count in range(1, devices + 1) if (seconds := _time_s(name, stage_s, count)) <= within_s
    )


def _time_s(name: str, stage_s: StageTime, devices: int) -> float:
    seconds = asked(stage_s, devices, f"{name} for {devices} devices", "seconds of at least 0")
    if seconds < 0:
        raise UnmeasuredError(f"found {name}({devices})={seconds!r}, expected seconds of at least 0")
    return seconds
