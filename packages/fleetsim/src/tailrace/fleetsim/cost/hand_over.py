"""Cost of devices that trainer and replicas share in turn: what moves over each device's PCIe link, there or back.

A cell of the trainer that leaves moves parameters, gradients and optimizer into host memory; one that adds gradients brings
parameters and gradients back, and a step the optimizer too. An engine that sleeps keeps its weights in host memory, or drops
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.fleetsim.cost.capacity import TRAINING_BYTES_PER_PARAM
from tailrace.fleetsim.hardware.devices import Device
from tailrace.fleetsim.hardware.models import ModelShape

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
