"""How large the chunks of a version are: a publisher's default, and what suits a broadcast (Laminar, Appendix C)."""

from __future__ import annotations

import math


def chain_broadcast_time_s(weight_bytes: float, nodes: int, chunks: int, bandwidth: float, startup_s: float) -> float:
    """Seconds from the master's first byte to the last relay's last byte (Laminar, Appendix C, Equation 1).

    T = (p + k - 2) (M / k / bandwidth + startup)

    Args:
        weight_bytes: size of a version, M.
        nodes: the master and the other relays, p.
        chunks: pieces that the version is cut into, k.
        bandwidth: effective bandwidth of a hop, bytes per second.
        startup_s: latency of a message, independent of its size.

    Raises:
        ValueError: an argument is out of range.
    """
    if nodes < 1 or chunks < 1:
        raise ValueError(f"found {nodes} nodes and {chunks} chunks, expected at least 1 of each")
    _check(weight_bytes, bandwidth, startup_s)
    if nodes == 1:
        return 0.0
    return (nodes + chunks - 2) * (weight_bytes / chunks / bandwidth + startup_s)


def optimal_chunks(weight_bytes: float, nodes: int, bandwidth: float, startup_s: float) -> int:
    """The whole number of chunks that minimises `chain_broadcast_time_s`: k* = sqrt((p - 2) M / bandwidth / startup).

    Equation 1 is convex in k, so the best integer is a neighbour of k*. Without a startup latency there is no finite
    optimum: then the answer is one byte for each chunk.
    """
    _check(weight_bytes, bandwidth, startup_s)
    if nodes <= 2 or weight_bytes < 1:
        return 1
    if startup_s == 0:
        return math.ceil(weight_bytes)
    real = math.sqrt((nodes - 2) * weight_bytes / bandwidth / startup_s)
    low = max(1, math.floor(real))
    return min((low, low + 1), key=lambda k: chain_broadcast_time_s(weight_bytes, nodes, k, bandwidth, startup_s))


def _check(weight_bytes: float, bandwidth: float, startup_s: float) -> None:
    if weight_bytes < 0 or startup_s < 0 or bandwidth <= 0:
        raise ValueError(
            f"found {weight_bytes} bytes, {bandwidth} bytes per second and a startup of {startup_s} s, "
            "expected a positive bandwidth and nothing negative"
        )


CHUNK_BYTES = 32 * 2**20  # a publisher's default
SMALLEST_CHUNK_BYTES = 512 * 2**10  # below it the work for each chunk, in Python, is no longer small
LARGEST_CHUNK_BYTES = 64 * 2**20  # above it a chunk that is sent again after a fault costs too much
_ALIGNMENT = 64 * 2**10


def broadcast_chunk_bytes(
    weight_bytes: int,
    nodes: int,
    bandwidth: float,
    startup_s: float,
    *,
    smallest: int = SMALLEST_CHUNK_BYTES,
    largest: int = LARGEST_CHUNK_BYTES,
) -> int:
    """The `chunk_bytes` for a `Publisher`: the weights by the optimal chunk count of Appendix C.

    Rounded up to 64 KiB and kept between the two bounds; where the startup latency is unknown (0) the lower one holds.

    Args:
        weight_bytes: size of a version.
        nodes: the master and the other relays of the longest chain.
        bandwidth: measured bytes per second of a hop.
        startup_s: latency of a message, as measured.
        smallest: lower bound, in bytes.
        largest: upper bound, in bytes.

    Raises:
        ValueError: the bounds are not positive multiples of 64 KiB in order, or another argument is out of range.
    """
    if not 0 < smallest <= largest or smallest % _ALIGNMENT or largest % _ALIGNMENT or largest >= 2**32:
        raise ValueError(
            f"found chunks of {smallest} to {largest} bytes, expected positive multiples of {_ALIGNMENT} in order, "
            "below 4 GiB"
        )
    wanted = weight_bytes / optimal_chunks(weight_bytes, nodes, bandwidth, startup_s)
    rounded = -int(-wanted // _ALIGNMENT) * _ALIGNMENT
    return min(largest, max(smallest, rounded))
