"""``--price DEVICE=NUMBER``: what one device costs for an hour, in the user's currency."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from tailrace.cli.errors import CommandError
from tailrace.contracts import expected_one_of
from tailrace.pipeline.config.models import RunConfig

EXPECTED = "expected DEVICE=NUMBER, what one device costs for an hour, such as H800=2.1"


def read_prices(texts: Sequence[str]) -> dict[str, float]:
    """Prices by device.

    Raises:
        CommandError: a text is no price, or a device has two.
    """
    prices: dict[str, float] = {}
    for text in texts:
        name, _, number = (part.strip() for part in text.partition("="))
        if not name or not number:
            raise CommandError(f"--price {text}: {EXPECTED}")
        try:
            value = float(number)
        except ValueError:
            raise CommandError(f"--price {text}: found {number!r}, {EXPECTED}") from None
        if not math.isfinite(value) or value < 0:
            raise CommandError(f"--price {text}: found {number}, expected a finite number of at least 0")
        if name in prices:
            raise CommandError(f"--price {text}: found a second price of {name}, expected one of each device")
        prices[name] = value
    return prices


def with_prices(config: RunConfig, prices: Mapping[str, float]) -> RunConfig:
    """The configuration with these prices over its own. Wrong ones of its own stay, for the fleet's checks to name."""
    own = config.fleet.get("prices", {})
    if not prices or not isinstance(own, Mapping):
        return config
    return config.model_copy(update={"fleet": {**config.fleet, "prices": {**own, **prices}}})


def check_used(prices: Mapping[str, float], devices: Collection[str]) -> None:
    """Check that each price is of a device that takes part.

    Args:
        devices: the names of the devices of all fleets.

    Raises:
        CommandError: a price is of another device.
    """
    known = sorted(set(devices))
    for name, value in prices.items():
        if name not in known:
            raise CommandError(f"--price {name}={value:g}: found no such device here, {expected_one_of(name, known)}")
