"""What a fleet is made of: devices, models, nodes and the links between them. Tables in TOML, with their sources."""

from tailrace.fleetsim.hardware.devices import Device, FittedDecode, device, device_names, device_toml, load_device
from tailrace.fleetsim.hardware.links import CROSS_DATACENTER, NETWORK_EFFICIENCY, Link, Node
from tailrace.fleetsim.hardware.models import ModelShape, load_model, model, model_names

__all__ = [
    "CROSS_DATACENTER",
    "Device",
    "FittedDecode",
    "Link",
    "ModelShape",
    "NETWORK_EFFICIENCY",
    "Node",
    "device",
    "device_names",
    "device_toml",
    "load_device",
    "load_model",
    "model",
    "model_names",
]
