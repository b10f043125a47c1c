"""The parts of a fleet: devices, models, nodes and links. TOML tables have their numbers and sources."""

from tailrace.fleetsim.hardware.devices import Device, FittedDecode, device, devices, find_device, load_device
from tailrace.fleetsim.hardware.links import CROSS_DATACENTER, NETWORK_EFFICIENCY, Link, Node
from tailrace.fleetsim.hardware.models import ModelShape, model, models, shape_of

__all__ = [
    "CROSS_DATACENTER",
    "Device",
    "FittedDecode",
    "Link",
    "ModelShape",
    "NETWORK_EFFICIENCY",
    "Node",
    "device",
    "devices",
    "find_device",
    "load_device",
    "model",
    "models",
    "shape_of",
]
