"""The random numbers of a group: the same whatever was asked before, and for whatever number of samples.

Within-group correlation. Samples of one prompt are more alike than samples of different prompts. With an intraclass
correlation `icc`, sample k of a group has the normal score

    z_k = sqrt(icc) z_group + sqrt(1 - icc) z_own,k

and the length Q(Phi(z_k)). Each z_k is standard normal whatever `icc` is, so the lengths' distribution over all groups is
exactly the one asked for. For a lognormal this is log length = mu + sigma z_k, and `icc` is the intraclass correlation of
log length itself; for any other shape it is that of the normal score, a Gaussian copula.

A group has random numbers of its own for lengths and rewards, for its environment and for the time of scoring, so that two
workloads that differ in one of them share the other draws.
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

LARGEST_NORMAL = math.sqrt(64 * math.log(2))
"""No normal value of `draws` is farther from 0: the radius that belongs to the smallest of 32-bit fractions."""


class Stream(IntEnum):
    """What else a group's random numbers are for."""

    ENVIRONMENT = 0
    SCORING = 1


def stream(seed: int, index: int, purpose: Stream) -> Random:
    """A generator of its own for a group and a purpose. Both numbers count modulo 2^64, so that they may be negative."""
    return Random((seed & _64_BITS) << 72 | (index & _64_BITS) << 8 | purpose)


def _unpack(bits: bytes) -> tuple[int, ...]:
    return unpack(f"<{len(bits) // 4}I", bits)


def draws(seed: int, index: int, count: int) -> tuple[list[float], list[float]]:
    """At least `count` normal values and as many uniform ones; a longer list begins with the shorter one.

    Box and Muller's method in pairs, on bits of SHAKE-128: a generator's set-up alone takes as long as all of this for a group
    of eight.
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
