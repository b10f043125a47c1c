"""Cost of moving weights: a version over relays, from a server, between devices or sites; memory when devices change hands."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tailrace.fleetsim.cost.capacity import TRAINING_BYTES_PER_PARAM
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.hardware.devices import Device
from tailrace.fleetsim.hardware.links import CROSS_DATACENTER, Link, Node
from tailrace.fleetsim.hardware.models import ModelShape
from tailrace.paramserver import CHUNK_BYTES, chain_broadcast_time_s, optimal_chunks

RING_CHUNK_BYTES = 4 * 2**20 / 8
"""Bytes that a channel sends at once: NCCL_BUFFSIZE (4 MiB) / NCCL_STEPS (8); BROADCAST_CHUNKSTEPS is 1."""
RING_CHANNELS = 2
"""Channels that share a NIC: NCCL duplicates every ring that its search finds."""
RING_HOP_S = 14e-6
"""Seconds of latency of a hop over the network: NCCL's tuning table, ring, protocol Simple."""
RELAY_HOP_BANDWIDTH = 100e9
"""Bytes per second of a hop between relays that Laminar's figures imply: more than one NIC, less than all of them."""

TENSOR_S = 2.9e-4
"""Seconds without the transfer itself for a tensor that is moved on its own: looked up, allocated, copied, acknowledged.

verl's collective weight transfer moves the 18,867 tensors of Qwen3-30B-A3B between 4 x 8 H100 in about 7 s
(verl/checkpoint_engine/README.md), 1.6 s of which a 400 Gbps NIC needs for their 61 GB.
"""


@dataclass(frozen=True, slots=True)
class WeightCost:
    """Moving one model's weights between a trainer and replicas on one kind of node.

    Args:
        params: number of the model's parameters.
        weight_bytes: bytes of a version as replicas use it.
        tensor_parallel: devices of a replica, each of which takes its share of the version.
        layers: number of the model's layers; collective transfers go layer by layer.
        tensors: number of the model's tensors.
        node: the node on which replicas run.
        hop_bandwidth: bytes per second between two relays.
        chunk_bytes: bytes of a chunk that relays pass on; None for the optimal size.
        tensor_s: seconds for each tensor of a pull without its bytes: 0 for shards in the engine's own layout (Laminar),
            `TENSOR_S` for an engine that takes tensor by tensor.
    """

    params: int
    weight_bytes: float
    tensor_parallel: int
    layers: int
    tensors: int
    node: Node
    hop_bandwidth: float
    chunk_bytes: float | None = CHUNK_BYTES
    tensor_s: float = 0.0

    def __post_init__(self) -> None:
        if self.hop_bandwidth <= 0 or self.weight_bytes <= 0 or self.tensor_parallel < 1:
            raise FleetError(
                f"found {self.weight_bytes} bytes of weights for {self.tensor_parallel} devices over "
                f"{self.hop_bandwidth} bytes per second, expected numbers over 0"
            )

    @classmethod
    def of(
        cls,
        model: ModelShape,
        device: Device,
        tensor_parallel: int,
        *,
        node: Node | None = None,
        hop_bandwidth: float | None = None,
        chunk_bytes: float | None = CHUNK_BYTES,
        tensor_s: float = 0.0,
    ) -> WeightCost:
        """The cost for replicas on devices of this kind.

        A hop has the bandwidth that Laminar's figures imply, or that of all the node's NICs if that is less.
        """
        node = node or Node.of(device)
        return cls(
            params=model.params,
            weight_bytes=model.weight_bytes,
            tensor_parallel=tensor_parallel,
            layers=model.layers,
            tensors=model.weight_tensors,
            node=node,
            hop_bandwidth=min(RELAY_HOP_BANDWIDTH, node.network_bandwidth) if hop_bandwidth is None else hop_bandwidth,
            chunk_bytes=chunk_bytes,
            tensor_s=tensor_s,
        )

    def push_s(self) -> float:
        """Seconds that the trainer stalls to publish: the whole version goes to the master relay (Laminar, section 8.3).

        The time does not depend on the number of relays or replicas.
        """
        return self.weight_bytes / self.hop_bandwidth + self.node.rdma.startup_s

    def broadcast_s(self, nodes: int) -> float:
        """Seconds from when the master relay has the version until the last of `nodes` nodes, including the master's, has it.

        The broadcast is chain-pipelined (Laminar's equation 1, Appendix C).
        """
        if self.chunk_bytes is None:
            chunks = optimal_chunks(self.weight_bytes, nodes, self.hop_bandwidth, self.node.rdma.startup_s)
        else:
            chunks = max(1, math.ceil(self.weight_bytes / self.chunk_bytes))
        return chain_broadcast_time_s(self.weight_bytes, nodes, chunks, self.hop_bandwidth, self.node.rdma.startup_s)

    def pull_s(self) -> float:
        """Seconds to load a version from the node's memory, all shards at once over PCIe (Laminar, section 4.2)."""
        shard_bytes = self.weight_bytes / self.tensor_parallel
        return self.node.pcie.transfer_s(shard_bytes, self.tensors) + self.tensors * self.tensor_s

    def peer_s(self) -> float:
        """Seconds from one machine's memory or devices to another's over all NICs (RobustRL, section 7.4; StaleFlow's push)."""
        return self.weight_bytes / self.node.network_bandwidth + self.node.rdma.startup_s

    def global_sync_s(self, trainer_gpus: int, rollout_gpus: int) -> float:
        """Seconds of a global synchronisation as in the baselines, for which the trainer and all replicas wait.

        Each device of a replica gets its shard, layer by layer, in a collective broadcast from the trainer's device that has it
        (Laminar, section 8.3).

        Raises:
            FleetError: there is no trainer device, or fewer rollout devices than one replica needs.
        """
        replicas = rollout_gpus // self.tensor_parallel
        if trainer_gpus < 1 or replicas < 1:
            raise FleetError(
                f"found {trainer_gpus} trainer and {rollout_gpus} rollout GPUs, expected at least 1 and "
                f"{self.tensor_parallel} (one replica)"
            )
        # With fewer trainer devices than shards, a device sends several shards one after another.
        sharded = min(self.tensor_parallel, trainer_gpus)
        return collective_broadcast_s(
            self.weight_bytes / sharded, replicas, self._replicas_per_node, self.layers, self.node
        )

    def reshard_s(self, shard_gpus: int) -> float:
        """Seconds of resharding on colocated devices: each gathers the version and keeps its share of it.

        Transfers within nodes over NVLink and between nodes over all NICs overlap, so that the slower one counts.

        Args:
            shard_gpus: devices over which one copy is sharded in training (FSDP size).
        """
        if shard_gpus < 1:
            raise FleetError(f"found a version sharded over {shard_gpus} devices, expected at least 1")
        nodes = math.ceil(shard_gpus / self.node.gpus)
        within = min(shard_gpus, self.node.gpus)
        network_s = self.weight_bytes * (nodes - 1) / nodes / self.node.network_bandwidth
        nvlink_s = self.weight_bytes * (within - 1) / within / self.node.nvlink.bandwidth
        return max(network_s, nvlink_s)

    def cross_datacenter_s(self, link: Link = CROSS_DATACENTER, *, bytes_per_param: float | None = None) -> float:
        """Seconds for one version over a link between datacenters.

        Args:
            link: the link.
            bytes_per_param: bytes per parameter on the link; None: as replicas use it. StreamRL's figure of under 10 s for
                72B over 80 Gbps holds for 1; with 2 bytes (bf16) it is 14.5 s.
        """
        return link.transfer_s(self.weight_bytes if bytes_per_param is None else self.params * bytes_per_param)

    @property
    def _replicas_per_node(self) -> int:
        return max(1, self.node.gpus // self.tensor_parallel)


# Cost of a collective broadcast between devices as NCCL does it: a ring through which chunks are pipelined.


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


# Cost of devices that trainer and replicas share in turn: what moves over each device's PCIe link, there or back.
#
# A cell of the trainer that leaves moves parameters, gradients and optimizer into host memory; one that adds gradients brings
# parameters and gradients back, and a step the optimizer too. An engine that sleeps keeps its weights in host memory, or
# drops
# them.

PARAMETER, GRADIENT = 2.0, 2.0
"""Bytes of a parameter in bf16, and of its gradient; what else the state has is the optimizer's."""
KEEPS_WEIGHTS, DROPS_WEIGHTS = 1, 2
"""Levels at which an engine sleeps: see `tailrace.contracts.SleepingEngine`."""


@dataclass(frozen=True, slots=True)
class HandOverCost:
    """Bytes that change places when devices change hands, and the link's speed.

    Args:
        parameters, gradients, optimizer: of a cell of the trainer, on each of its devices.
        devices: of a cell.
        engine: weights of a replica, on all of its devices.
        level: at which its engine sleeps while the trainer has its devices; 0: it does not.
        bandwidth: bytes per second between a device and its host, one way.
    """

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    devices: int = 1
    engine: float = 0.0
    level: int = 0
    bandwidth: float = float("inf")

    @classmethod
    def of(
        cls, model: ModelShape, device: Device, cell_devices: int, *, level: int, critic: bool = False
    ) -> HandOverCost:
        """The cost on one kind of device.

        Args:
            cell_devices: devices over which each cell of the trainer shards its state.
            level: see the class.
            critic: whether a critic of the same size is trained too.
        """
        each = model.params * (2 if critic else 1) / cell_devices
        rest = TRAINING_BYTES_PER_PARAM - PARAMETER - GRADIENT
        moved = each * PARAMETER, each * GRADIENT, each * rest
        return cls(*moved, cell_devices, engine=model.weight_bytes, level=level, bandwidth=device.pcie_bandwidth)

    def seconds(self, size: float) -> float:
        """Seconds for so many bytes of a device."""
        return size / self.bandwidth

    def engine_bytes(self, tp: int) -> float:
        """Bytes that an engine moves on each of its `tp` devices to sleep, or to wake."""
        return self.engine / tp if self.level == KEEPS_WEIGHTS else 0.0
