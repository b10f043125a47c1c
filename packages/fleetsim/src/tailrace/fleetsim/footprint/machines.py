"""The machines that a run is counted for: ``8xH100``, or this one with the devices that the configuration asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.hardware import Device, Node, find_device


@dataclass(frozen=True, slots=True)
class Machines:
    """Machines that are all alike.

    Args:
        device: their kind of device; None: not told, so that nothing is known of them but their devices' memory.
        devices: devices in all.
    """

    device: Device | None = None
    devices: int = 0

    @property
    def nodes(self) -> int:
        """How many machines they are."""
        return 1 if self.device is None else max(1, -(-self.devices // self.device.gpus_per_node))

    @property
    def per_node(self) -> int:
        """Devices of one machine."""
        return self.devices if self.device is None else min(self.devices, self.device.gpus_per_node)

    @property
    def node(self) -> Node | None:
        """The links of one machine."""
        return None if self.device is None else Node.of(self.device)

    def __str__(self) -> str:
        if self.device is None:
            return f"{self.devices} GPUs" if self.devices else "this machine"
        nodes = f", {self.nodes} machines of {self.per_node}" if self.nodes > 1 else ""
        return f"{self.devices} x {self.device.name}{nodes}"


def read_machines(text: str) -> Machines:
    """Machines as ``--devices`` names them: a number and a kind of device, or a device file, such as ``8xH100``.

    Raises:
        FleetError: it is no number and kind, or they do not fill whole machines.
        FleetsimError: the kind is not known.
    """
    match = re.fullmatch(r"(\d+)\s*x\s*(\S+)", text.strip())
    if match is None or int(match[1]) < 1:
        raise FleetError(f"--devices: found {text!r}, expected a number and a kind of device, such as 8xH100")
    device, count = find_device(match[2]), int(match[1])
    if count > device.gpus_per_node and count % device.gpus_per_node:
        raise FleetError(
            f"--devices: found {count} x {device.name}, expected at most {device.gpus_per_node}, those of one machine, or a "
            f"multiple of them"
        )
    return Machines(device, count)
