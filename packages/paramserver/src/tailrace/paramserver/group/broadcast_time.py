"""How long a chain-pipelined broadcast takes, and how many chunks are best (Laminar, Appendix C)."""

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
