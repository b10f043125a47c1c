"""Devices: a table of known ones, and files for others (one that is rented, or this machine as it was measured)."""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

from tailrace.fleetsim.errors import HardwareFileError
from tailrace.fleetsim.hardware.tables import Table, pick


@dataclass(frozen=True, slots=True)
class FittedDecode:
    """What one model's decoding was measured to cost on a device (StaleFlow, equation 11).

    Args:
        k1: seconds for each token in the KV cache.
        k2: seconds to read the weights.
        k3: seconds for each running trajectory.
        k4: seconds that every step costs.
        kv_capacity_tokens: tokens that the KV cache of one replica holds.
    """

    model: str
    tensor_parallel: int
    k1: float
    k2: float
    k3: float
    k4: float
    kv_capacity_tokens: int


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of GPU in the nodes that it comes in. ``devices.toml`` says what each constant means and where it is from.

    The mappings are by tensor parallelism. `fitted` overrides the roofline of decoding for the models it names.
    """

    name: str
    memory_bytes: float
    memory_share: float
    reserve_bytes: float
    gpus_per_node: int
    peak_flops: float
    hbm_bandwidth: float
    gemm_flops: Mapping[int, float]
    weight_bandwidth: Mapping[int, float]
    roofline_exponent: Mapping[int, float]
    row_floor: int
    kv_bandwidth: float
    prefill_flops: float
    train_mfu: float
    allreduce_latency_s: Mapping[int, float]
    allreduce_bandwidth: float
    element_s: float
    cpu_s: float
    pcie_bandwidth: float
    nvlink_bandwidth: float
    nic_bandwidth: float
    nics_per_node: int
    price_per_hour: float | None = None
    fitted: tuple[FittedDecode, ...] = field(default=())

    @property
    def usable_bytes(self) -> float:
        """Memory for weights and KV cache."""
        return self.memory_bytes * self.memory_share - self.reserve_bytes

    @property
    def ridge_batch(self) -> float:
        """Rows from which a bf16 matrix multiplication is bound by arithmetic on the data sheet's numbers.

        Two bytes of weight are read for each two operations of a row; 37 on H20 (StaleFlow, Appendix B.1, SF-3).
        """
        return self.peak_flops / self.hbm_bandwidth

    @property
    def parallel_sizes(self) -> tuple[int, ...]:
        """Tensor parallelisms that all constants are known for, ascending."""
        reduced = {1, *self.allreduce_latency_s}
        return tuple(sorted({*self.gemm_flops} & {*self.weight_bandwidth} & {*self.roofline_exponent} & reduced))

    def fitted_decode(self, model: str, tensor_parallel: int) -> FittedDecode | None:
        """The measurement of this model's decoding, if the device has one."""
        matching = (one for one in self.fitted if (one.model, one.tensor_parallel) == (model, tensor_parallel))
        return next(matching, None)


def device(name: str) -> Device:
    """A device of the table.

    Raises:
        UnknownNameError: there is none of this name.
    """
    return pick("device", name, _devices())


def device_names() -> tuple[str, ...]:
    """All devices of the table."""
    return tuple(_devices())


def load_device(path: str | Path) -> Device:
    """A device from a TOML file with the keys of ``devices.toml`` at the top, and optionally ``name``.

    Measured decoding of single models goes into tables ``[[fitted]]`` with the fields of `FittedDecode`. The name is the
    file's if the file gives none.

    Raises:
        HardwareFileError: the file is missing, is not TOML, or does not describe a device.
    """
    path = Path(path)
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HardwareFileError(f"found no readable device file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise HardwareFileError(f"{path}: found a file that is not TOML ({error}), expected a device's table") from None
    name = found.pop("name", path.stem)
    if not isinstance(name, str) or not name:
        raise HardwareFileError(f"{path}, key 'name': found {name!r}, expected a name")
    return _device(name, found, str(path))


def device_toml(device: Device) -> str:
    """The device as a file that `load_device` reads."""
    lines = []
    for one in fields(Device):
        value = getattr(device, one.name)
        if one.name == "fitted" or value is None:
            continue
        if isinstance(value, Mapping):
            value = "{ " + ", ".join(f"{parallel} = {number!r}" for parallel, number in value.items()) + " }"
        else:
            value = _quoted(value) if isinstance(value, str) else repr(value)
        lines.append(f"{one.name} = {value}")
    for fit in device.fitted:
        lines += ["", "[[fitted]]"]
        for one in fields(FittedDecode):
            value = getattr(fit, one.name)
            lines.append(f"{one.name} = {_quoted(value) if isinstance(value, str) else repr(value)}")
    return "\n".join(lines) + "\n"


@functools.cache
def _devices() -> dict[str, Device]:
    text = resources.files(__package__).joinpath("devices.toml").read_text(encoding="utf-8")
    return {name: _device(name, table, f"devices.toml, {name}") for name, table in tomllib.loads(text).items()}


def _device(name: str, found: Mapping[str, Any], where: str) -> Device:
    table = Table(found, where)
    table.only(one.name for one in fields(Device) if one.name != "name")
    made = Device(
        name=name,
        memory_bytes=table.number("memory_bytes"),
        memory_share=table.number("memory_share", most=1.0),
        reserve_bytes=table.number("reserve_bytes", over=False),
        gpus_per_node=table.whole("gpus_per_node"),
        peak_flops=table.number("peak_flops"),
        hbm_bandwidth=table.number("hbm_bandwidth"),
        gemm_flops=table.by_parallel("gemm_flops"),
        weight_bandwidth=table.by_parallel("weight_bandwidth"),
        roofline_exponent=table.by_parallel("roofline_exponent", least=1.0, over=False, infinite=True),
        row_floor=table.whole("row_floor"),
        kv_bandwidth=table.number("kv_bandwidth"),
        prefill_flops=table.number("prefill_flops"),
        train_mfu=table.number("train_mfu", most=1.0),
        allreduce_latency_s=table.by_parallel("allreduce_latency_s", over=False),
        allreduce_bandwidth=table.number("allreduce_bandwidth"),
        element_s=table.number("element_s", over=False),
        cpu_s=table.number("cpu_s", over=False),
        pcie_bandwidth=table.number("pcie_bandwidth"),
        nvlink_bandwidth=table.number("nvlink_bandwidth"),
        nic_bandwidth=table.number("nic_bandwidth"),
        nics_per_node=table.whole("nics_per_node"),
        price_per_hour=table.number("price_per_hour", over=False) if "price_per_hour" in found else None,
        fitted=tuple(_fitted(one, where) for one in _entries(found, where)),
    )
    if not made.parallel_sizes:
        raise HardwareFileError(
            f"{where}: found gemm_flops for tensor parallelism {sorted(made.gemm_flops)}, weight_bandwidth for "
            f"{sorted(made.weight_bandwidth)} and roofline_exponent for {sorted(made.roofline_exponent)}, "
            "expected one that all have"
        )
    return made


def _entries(found: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    entries = found.get("fitted", [])
    if not isinstance(entries, list) or not all(isinstance(one, Mapping) for one in entries):
        raise HardwareFileError(f"{where}, key 'fitted': found {entries!r:.60}, expected tables [[fitted]]")
    return entries


def _fitted(found: Mapping[str, Any], where: str) -> FittedDecode:
    table = Table(found, f"{where}, [[fitted]]")
    table.only(one.name for one in fields(FittedDecode))
    return FittedDecode(
        model=str(table.take("model")),
        tensor_parallel=table.whole("tensor_parallel"),
        k1=table.number("k1", over=False),
        k2=table.number("k2", over=False),
        k3=table.number("k3", over=False),
        k4=table.number("k4", over=False),
        kv_capacity_tokens=table.whole("kv_capacity_tokens"),
    )


def _quoted(text: str) -> str:
    # A JSON string is a TOML string, but for the delete character, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
