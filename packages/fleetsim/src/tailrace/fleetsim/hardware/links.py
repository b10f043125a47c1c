"""Links between devices, and nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.hardware.devices import Device

NETWORK_EFFICIENCY = 0.78
"""Share of its NICs' bandwidth that a node achieves: 470 GB over 4 x 200 Gbps in 6 s (RobustRL, section 7.4)."""

RDMA_STARTUP_S = 5e-6
"""Seconds of latency of an RDMA message (Laminar, Appendix C.2)."""

NVLINK_STARTUP_S = 3.4e-6
"""Seconds of latency of a hop over NVLink: NCCL's tuning table, ring, protocol Simple."""

PCIE_STARTUP_S = 1e-5
"""Seconds of latency of a copy from host to device (assumed; it matters only for many small copies)."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link for data.

    Args:
        name: the link's name, for messages.
        bandwidth: bytes per second of a long transfer.
        startup_s: latency of a message of any size.

    Raises:
        FleetError: a number is out of its range.
    """

    name: str
    bandwidth: float
    startup_s: float = 0.0

    def __post_init__(self) -> None:
        if not (self.bandwidth > 0 and math.isfinite(self.bandwidth)):
            raise FleetError(
                f"link {self.name}: found a bandwidth of {self.bandwidth!r} bytes per second, "
                "expected a finite one over 0"
            )
        if not (self.startup_s >= 0 and math.isfinite(self.startup_s)):
            raise FleetError(
                f"link {self.name}: found a start-up latency of {self.startup_s!r} s, expected a finite one of at least 0"
            )

    def transfer_s(self, size_bytes: float, messages: int = 1) -> float:
        """Seconds to transfer `size_bytes` in `messages` messages, one after another."""
        return size_bytes / self.bandwidth + messages * self.startup_s


CROSS_DATACENTER = Link("cross-datacenter", 80e9 / 8, 5e-3)
"""A dedicated 80 Gbps line (StreamRL, section 7). Its latency, a round trip of some 500 km of fibre, is assumed."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with its links.

    Args:
        gpus: number of devices.
        nics: number of network interfaces, shared evenly by the devices.
        nvlink: the link between two of its devices.
        rdma: the link of one NIC.
        pcie: the link from its memory to one device.

    Raises:
        FleetError: `gpus` or `nics` is below 1.
    """

    gpus: int
    nics: int
    nvlink: Link
    rdma: Link
    pcie: Link

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.nics < 1:
            raise FleetError(f"found a node of {self.gpus} GPUs and {self.nics} NICs, expected at least 1 of each")

    @classmethod
    def of(
        cls, device: Device, *, gpus: int | None = None, nics: int | None = None, nic_bandwidth: float | None = None
    ) -> Node:
        """The node of a device; arguments that are not None replace the device's own numbers.

        Links have the achieved bandwidth, not the data sheet's: NVLink that of an all-reduce, a NIC `NETWORK_EFFICIENCY` of
        its line rate.
        """
        rate = device.nic_bandwidth if nic_bandwidth is None else nic_bandwidth
        return cls(
            gpus=device.gpus_per_node if gpus is None else gpus,
            nics=device.nics_per_node if nics is None else nics,
            nvlink=Link("NVLink", device.allreduce_bandwidth, NVLINK_STARTUP_S),
            rdma=Link("RDMA", rate * NETWORK_EFFICIENCY, RDMA_STARTUP_S),
            pcie=Link("PCIe", device.pcie_bandwidth, PCIE_STARTUP_S),
        )

    @property
    def network_bandwidth(self) -> float:
        """Bytes per second of all NICs together, as achieved."""
        return self.nics * self.rdma.bandwidth

    @property
    def network_bandwidth_per_gpu(self) -> float:
        """Bytes per second of a device's share of the NICs."""
        return self.network_bandwidth / self.gpus
