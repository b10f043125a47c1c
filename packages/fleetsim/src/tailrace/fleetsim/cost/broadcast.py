"""Cost of a collective broadcast between devices as NCCL does it: a ring through which chunks are pipelined."""

from __future__ import annotations

import math

from tailrace.fleetsim.hardware.links import Node

RING_CHUNK_BYTES = 4 * 2**20 / 8
"""Bytes that a channel sends at once: NCCL_BUFFSIZE (4 MiB) / NCCL_STEPS (8); BROADCAST_CHUNKSTEPS is 1."""

RING_CHANNELS = 2
"""Channels that share a NIC: NCCL duplicates every ring that its search finds."""

RING_HOP_S = 14e-6
"""Seconds of latency of a hop over the network: NCCL's tuning table, ring, protocol Simple."""


def collective_broadcast_s(shard_bytes: float, replicas: int, replicas_per_node: int, calls: int, node: Node) -> float:
    """Seconds until every replica's device has its shard of a version.

    Each shard has its own ring: the trainer's device, then one device of every replica, node after node. NCCL has no other
    algorithm for a broadcast. A device receives its shard through its own share of the NICs. A call is complete everywhere
    before the next begins, as in frameworks that wait for every engine's answer to each update.

    Args:
        shard_bytes: bytes of one device's shard.
        replicas: number of replicas that receive it.
        replicas_per_node: number of these replicas in one node.
        calls: number of broadcasts of a version, one for each layer.
        node: the receivers' node.
    """
    bandwidth = node.network_bandwidth_per_gpu
    chunk_bytes = min(RING_CHANNELS * RING_CHUNK_BYTES, shard_bytes / calls)
    between = math.ceil(replicas / replicas_per_node)
    within = replicas - between
    # The first chunk passes every hop; the others follow at the speed of the slowest hop, a NIC.
    first_s = between * RING_HOP_S + (between - 1) * chunk_bytes / bandwidth
    first_s += within * (node.nvlink.startup_s + chunk_bytes / node.nvlink.bandwidth)
    return shard_bytes / bandwidth + calls * first_s
