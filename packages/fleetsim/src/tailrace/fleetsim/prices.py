"""What devices cost: money where the user gave prices, and hours of each device by its own name everywhere else."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.contracts import expected_one_of
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.hardware import Device, devices


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
