"""How large the chunks of a version are: a publisher's default, and what suits a broadcast (Laminar, Appendix C)."""

from __future__ import annotations

from tailrace.paramserver.group.broadcast_time import optimal_chunks

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
