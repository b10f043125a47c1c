"""Fields of requests, checked."""

from __future__ import annotations

from typing import Any

from tailrace.paramserver.errors import ProtocolError
from tailrace.paramserver.wire.address import parse_address
from tailrace.processes import ProcessId

_MAX_WAIT_S = 3600.0
_MAX_HOPS = 64
_MAX_BYTES = 2**62


def version_of(message: dict[str, Any]) -> int:
    """The version that is asked for."""
    version = message.get("version")
    if type(version) is not int:
        raise ProtocolError(f"version: found {version!r}, expected an integer")
    return version


def stamp_of(message: dict[str, Any]) -> int | None:
    """The stamp that is asked for, if any."""
    stamp = message.get("stamp")
    if stamp is not None and type(stamp) is not int:
        raise ProtocolError(f"stamp: found {stamp!r}, expected an integer or null")
    return stamp


def flag_of(message: dict[str, Any], field: str) -> bool:
    """A flag, false if it is missing."""
    value = message.get(field, False)
    if type(value) is not bool:
        raise ProtocolError(f"{field}: found {value!r}, expected true or false")
    return value


def seconds_of(message: dict[str, Any], field: str) -> float:
    """A length of time."""
    value = message.get(field)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MAX_WAIT_S:
        raise ProtocolError(f"{field}: found {value!r}, expected seconds from 0 to {_MAX_WAIT_S:.0f}")
    return float(value)


def bytes_of(message: dict[str, Any], field: str, at_most: int | None) -> int:
    """A number of bytes, or another number that is not negative."""
    value, high = message.get(field), _MAX_BYTES if at_most is None else at_most
    if type(value) is not int or not 0 <= value <= high:
        raise ProtocolError(f"{field}: found {value!r}, expected an integer from 0 to {high}")
    return value


def address_of(value: object) -> str:
    """A relay's address."""
    text = str(value)
    parse_address(text)
    return text


def hops_of(message: dict[str, Any]) -> list[str]:
    """The next hops: `addresses`, or one `address`, or null for none."""
    addresses = message.get("addresses")
    if addresses is None:
        address = message.get("address")
        return [] if address is None else [address_of(address)]
    if not isinstance(addresses, list) or len(addresses) > _MAX_HOPS:
        raise ProtocolError(f"addresses: found {str(addresses)[:60]}, expected a list of at most {_MAX_HOPS}")
    found = [address_of(address) for address in addresses]
    if len(set(found)) != len(found):
        raise ProtocolError(f"addresses: found a relay twice in {str(found)[:200]}, expected each once")
    return found


def process_of(message: dict[str, Any]) -> ProcessId | None:
    """The process that asks, where its pid means something to the relay."""
    if (pid := message.get("pid")) is None:
        return None
    namespace, started = message.get("namespace"), message.get("started")
    if not isinstance(namespace, str) or type(pid) is not int or not isinstance(started, int | None):
        raise ProtocolError(f"pid: found {pid!r}, expected it with started and namespace")
    return ProcessId(pid, started, namespace)
