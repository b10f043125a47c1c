"""Devices: a table of known ones, files for others, and what they cost."""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import BeforeValidator, Field

from tailrace.contracts import expected_one_of
from tailrace.fleetsim.errors import FleetError, HardwareFileError, UnknownNameError
from tailrace.pipeline.config.options import read_options
from tailrace.pipeline.errors import ConfigError

# What devices cost: money where the user gave prices, and hours of each device by its own name everywhere else.


def price_per_hour(
    counts: Mapping[str, int], prices: Mapping[str, float], own: Mapping[str, Device] | None = None
) -> float | None:
    """The price of all devices for an hour, in the currency of the prices; None if no device has one.

    Args:
        counts: number of devices by name.
        prices: price of one device for an hour, by name. It may have devices that the fleet does not have.
        own: devices that come from files, which may have a price of their own.

    Raises:
        FleetError: a price is of a device that nobody knows, or only some of the fleet's devices have one.
    """
    known = list(dict.fromkeys([*counts, *devices()]))
    for name in prices:
        if name not in known:
            raise FleetError(f"key 'fleet.prices': found the unknown device {name!r}, {expected_one_of(name, known)}")
    filed = {
        name: kind.price_per_hour for name, kind in (own or {}).items() if kind.price_per_hour is not None
    }  # of device files
    each = {name: value for name, value in {**filed, **prices}.items() if name in counts}
    if not each:
        return None
    missing = [name for name in counts if name not in each]
    if missing:
        raise FleetError(
            f"key 'fleet.prices': found a price of {', '.join(each)} and none of {', '.join(missing)}, expected one of "
            "each device of the fleet"
        )
    return sum(count * each[name] for name, count in counts.items())


Entry = TypeVar("Entry")


def _of_all(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return dict.fromkeys((1, 2, 4, 8), value)
    return {
        int(size) if size.isdecimal() else size: number for size, number in value.items()
    }  # keys of TOML are strings


Kind = TypeVar("Kind")
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Least = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
OF_ALL = BeforeValidator(_of_all)
"""A value by tensor parallelism; a single number holds for 1, 2, 4 and 8."""


@dataclass(frozen=True, slots=True)
class FittedDecode:
    """The measured cost of one model's decoding on a device (StaleFlow, equation 11).

    Args:
        model: the model's name.
        tensor_parallel: number of devices of a replica.
        k1: seconds for each token in the KV cache.
        k2: seconds to read the weights.
        k3: seconds for each running trajectory.
        k4: seconds of fixed overhead of a step.
        kv_capacity_tokens: tokens that fit into the KV cache of one replica.
    """

    model: str
    tensor_parallel: Count
    k1: Least
    k2: Least
    k3: Least
    k4: Least
    kv_capacity_tokens: Count


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of GPU, with its nodes. ``devices.toml`` has the meaning and the source of each constant.

    The mappings are by tensor parallelism. `fitted` replaces the roofline of decoding for the models that it names.
    """

    name: Annotated[str, Field(min_length=1)]
    memory_bytes: Positive
    memory_share: Share
    reserve_bytes: Least
    gpus_per_node: Count
    peak_flops: Positive
    hbm_bandwidth: Positive
    gemm_flops: Annotated[Mapping[Count, Positive], OF_ALL]
    weight_bandwidth: Annotated[Mapping[Count, Positive], OF_ALL]
    roofline_exponent: Annotated[Mapping[Count, Annotated[float, Field(ge=1)]], OF_ALL]
    row_floor: Count
    kv_bandwidth: Positive
    prefill_flops: Positive
    train_mfu: Share
    allreduce_latency_s: Annotated[Mapping[Count, Least], OF_ALL]
    allreduce_bandwidth: Positive
    element_s: Least
    cpu_s: Least
    pcie_bandwidth: Positive
    nvlink_bandwidth: Positive
    nic_bandwidth: Positive
    nics_per_node: Count
    host_memory_bytes: Positive | None = None
    disk_bandwidth: Positive | None = None
    publish_bandwidth: Positive | None = None
    pull_bandwidth: Positive | None = None
    price_per_hour: Least | None = None
    fitted: tuple[FittedDecode, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.parallel_sizes:
            raise HardwareFileError(
                f"found gemm_flops for tensor parallelism {sorted(self.gemm_flops)}, weight_bandwidth for "
                f"{sorted(self.weight_bandwidth)} and roofline_exponent for {sorted(self.roofline_exponent)}, "
                "expected one that all three have"
            )

    @property
    def usable_bytes(self) -> float:
        """Memory for weights and KV cache."""
        return self.memory_bytes * self.memory_share - self.reserve_bytes

    @property
    def ridge_batch(self) -> float:
        """Number of rows from which a bf16 matrix multiplication is bound by arithmetic, by the data sheet.

        Two bytes of weight are read for each two operations of a row; 37 on H20 (StaleFlow, Appendix B.1).
        """
        return self.peak_flops / self.hbm_bandwidth

    @property
    def parallel_sizes(self) -> tuple[int, ...]:
        """Tensor parallelisms for which all constants are known, ascending."""
        reduced = {1, *self.allreduce_latency_s}
        return tuple(sorted({*self.gemm_flops} & {*self.weight_bandwidth} & {*self.roofline_exponent} & reduced))

    def fitted_decode(self, model: str, tensor_parallel: int) -> FittedDecode | None:
        """The measurement of this model's decoding, if the device has one."""
        matching = (one for one in self.fitted if (one.model, one.tensor_parallel) == (model, tensor_parallel))
        return next(matching, None)


def device(name: str) -> Device:
    """A device of the table.

    Raises:
        UnknownNameError: the table has no device of this name.
    """
    return pick("device", name, devices())


def load_device(path: str | Path) -> Device:
    """A device from a TOML file with the keys of ``devices.toml`` at the top level, and optionally ``name``.

    Tables ``[[fitted]]`` may have measured decoding of single models, with the fields of `FittedDecode`. Without ``name``,
    the device is named like the file.

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
    return _read(Device, {"name": path.stem, **found}, str(path))


def find_device(name: str) -> Device:
    """A device of the table, or one from a file where the name ends in ``.toml``.

    Raises:
        UnknownNameError: the table has no device of this name.
        HardwareFileError: the file does not describe a device.
    """
    return load_device(name) if name.endswith(".toml") else device(name)


@functools.cache
def devices() -> Mapping[str, Device]:
    """All devices of the table."""
    text = resources.files(__package__).joinpath("devices.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text).items()
    return {name: _read(Device, {"name": name, **table}, f"devices.toml, {name}") for name, table in tables}


def _read(kind: type[Kind], content: Mapping[str, Any], where: str) -> Kind:
    try:
        return cast(Kind, read_options(kind, content, where))
    except ConfigError as error:
        raise HardwareFileError(str(error)) from error


def pick(kind: str, name: str, table: Mapping[str, Entry]) -> Entry:
    """The entry of this name.

    Raises:
        UnknownNameError: the table has no such entry. The message suggests the nearest name and lists all.
    """
    if name in table:
        return table[name]
    by_fold = {one.casefold(): one for one in table}
    close = [by_fold[one] for one in difflib.get_close_matches(name.casefold(), by_fold, n=3, cutoff=0.5)]
    meant = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    raise UnknownNameError(f"found the unknown {kind} {name!r}, {meant}Expected one of {', '.join(table)}")
