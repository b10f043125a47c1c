"""The machines that a run is counted for: ``8xH100``, with other sites ``8xH100,16xH20@cloud``, or this one."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.hardware import Device, Node, find_device


@dataclass(frozen=True, slots=True)
class Machines:
    """Machines of the trainer's site, all alike, and those of other sites. They are numbered through, the trainer's first.

    Args:
        device: their kind of device; None: not told, so that nothing is known of them but their devices' memory.
        devices: devices in all, without those of other sites.
        site: the site; empty for the trainer's.
        elsewhere: the machines of each other site.
    """

    device: Device | None = None
    devices: int = 0
    site: str = ""
    elsewhere: tuple[Machines, ...] = ()

    @property
    def sites(self) -> tuple[Machines, ...]:
        """The machines of each site, the trainer's first."""
        return (replace(self, elsewhere=()), *self.elsewhere)

    @property
    def here(self) -> int:
        """How many machines the trainer's site has."""
        return 1 if self.device is None else max(1, -(-self.devices // self.device.gpus_per_node))

    @property
    def nodes(self) -> int:
        """How many machines there are at all sites."""
        return self.here + sum(other.here for other in self.elsewhere)

    @property
    def in_all(self) -> int:
        """Devices of all sites."""
        return self.devices + sum(other.devices for other in self.elsewhere)

    @property
    def per_node(self) -> int:
        """Devices of one machine of the trainer's site."""
        return self.devices if self.device is None else min(self.devices, self.device.gpus_per_node)

    @property
    def node(self) -> Node | None:
        """The links of one machine of the trainer's site."""
        return None if self.device is None else Node.of(self.device)

    def at(self, node: int) -> Machines:
        """The machines of the site where one stands."""
        first = 0
        for found in self.sites:
            first += found.here
            if node < first:
                return found
        raise IndexError(f"found machine {node}, expected one of {self.nodes}")

    def nodes_at(self, site: str) -> range:
        """The numbers of the machines of a site; none of one that is not there."""
        first = 0
        for found in self.sites:
            if found.site == site:
                return range(first, first + found.here)
            first += found.here
        return range(0)

    def __str__(self) -> str:
        if self.device is None:
            return f"{self.devices} GPUs" if self.devices else "this machine"
        nodes = f", {self.here} machines of {self.per_node}" if self.here > 1 else ""
        at = f" at {self.site}" if self.site else ""
        return "; ".join((f"{self.devices} x {self.device.name}{nodes}{at}", *map(str, self.elsewhere)))


def read_machines(text: str) -> Machines:
    """Machines as ``--devices`` names them: a number and a kind of device, or a device file, such as ``8xH100``.

    Those of other sites follow with the name of the site: ``8xH100,16xH20@cloud``.

    Raises:
        FleetError: it is no number and kind, a site is named twice, or they do not fill whole machines.
        FleetsimError: the kind is not known.
    """
    home, *others = (_of_site(part.strip()) for part in text.split(","))
    names = [home.site, *(other.site for other in others)]
    if names[0] or "" in names[1:] or len(set(names)) < len(names):
        raise FleetError(
            f"--devices: found {text!r}, expected the trainer's site first and without a name, and each other one once, "
            "such as 8xH100,16xH20@cloud"
        )
    return replace(home, elsewhere=tuple(others))


def _of_site(text: str) -> Machines:
    match = re.fullmatch(r"(\d+)\s*x\s*([^\s@]+)(?:@(\S+))?", text)
    if match is None or int(match[1]) < 1:
        raise FleetError(f"--devices: found {text!r}, expected a number and a kind of device, such as 8xH100")
    device, count = find_device(match[2]), int(match[1])
    if count > device.gpus_per_node and count % device.gpus_per_node:
        raise FleetError(
            f"--devices: found {count} x {device.name}, expected at most {device.gpus_per_node}, those of one machine, or a "
            f"multiple of them"
        )
    return Machines(device, count, match[3] or "")
