"""The random numbers of a group. They do not depend on earlier calls or on the number of samples.

Within-group correlation: samples of one prompt are more similar than samples of different prompts. With an intraclass
correlation `icc`, sample k of a group has the normal score

    z_k = sqrt(icc) z_group + sqrt(1 - icc) z_own,k

and the length Q(Phi(z_k)). Each z_k is standard normal for any `icc`, so the distribution of lengths over all groups is
exactly the given one. For a lognormal, log length = mu + sigma z_k, and `icc` is the intraclass correlation of log length
itself; for any other shape it is that of the normal score (a Gaussian copula).

A prompt may be attempted again. Another draw of a group keeps what belongs to the prompt, z_group above all, and has samples
of its own.

Lengths and rewards, the environment, and the time of scoring each have their own random numbers. So two workloads that differ
in one of these share the other draws.
"""

from __future__ import annotations

import math
from enum import IntEnum
from hashlib import shake_128
from random import Random
from struct import Struct, unpack
from typing import Final

_KEY = Struct("<QQ").pack
_64_BITS: Final = 2**64 - 1
_UNIT: Final = 2.0**-32
_SPREAD: Final = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: near numbers become far seeds

LARGEST_NORMAL = math.sqrt(64 * math.log(2))
"""Largest absolute normal value of `draws`: the radius of the smallest 32-bit fraction."""


class RandomStream(IntEnum):
    """Further purposes of a group's random numbers."""

    ENVIRONMENT = 0
    SCORING = 1


def stream(seed: int, index: int, purpose: RandomStream) -> Random:
    """A random generator for a group and a purpose. Seed and index are taken modulo 2^64, so they may be negative."""
    return Random((seed & _64_BITS) << 72 | (index & _64_BITS) << 8 | purpose)


def seed_of(seed: int, index: int, draw: int | None) -> int:
    """The seed of the samples of one draw of a group. The group's first draw has the seed itself.

    Args:
        seed: the workload's.
        index: index of the group in the prompt stream.
        draw: number of the draw; None or the index for the first.
    """
    return seed if draw is None or draw == index else (seed + _SPREAD * (draw + 1)) & _64_BITS


def _unpack(bits: bytes) -> tuple[int, ...]:
    return unpack(f"<{len(bits) // 4}I", bits)


def draws(seed: int, index: int, count: int) -> tuple[list[float], list[float]]:
    """At least `count` normal values and equally many uniform ones. A longer list begins with the shorter one.

    They are computed in pairs by the Box-Muller method from bits of SHAKE-128. Setting up a generator alone would take as long
    as all of this for a group of eight.
    """
    normals: list[float] = []
    uniforms: list[float] = []
    turn = math.tau * _UNIT
    bits = shake_128(_KEY(seed & _64_BITS, index & _64_BITS)).digest(16 * ((count + 1) // 2))
    words = _unpack(bits)
    for at in range(0, len(words), 4):
        radius = math.sqrt(-2.0 * math.log((words[at] + 1) * _UNIT))
        angle = turn * words[at + 1]
        normals.append(radius * math.cos(angle))
        normals.append(radius * math.sin(angle))
        uniforms.append(words[at + 2] * _UNIT)
        uniforms.append(words[at + 3] * _UNIT)
    return normals, uniforms
