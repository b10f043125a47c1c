"""The network interfaces of this machine, and which of them leads to another one. Needs no torch."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tailrace.trainer.errors import TrainerConfigError

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_UP = 1  # IFF_UP
_ANY_PORT = 9  # nothing is sent there
_ANYWHERE = "192.0.2.1"  # of no machine (RFC 5737): the route to it is the one to all that have none of their own
Interfaces = Mapping[str, Sequence[str]]
"""Addresses by the name of the interface."""


class _Row(ctypes.Structure):
    """A row of what `getifaddrs` returns."""


_Row._fields_ = [
    ("next", ctypes.POINTER(_Row)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("destination", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def interfaces() -> dict[str, tuple[str, ...]]:
    """The interfaces of this machine that are up and have an address, IPv4 before IPv6.

    Raises:
        OSError: the system does not tell.
    """
    library, first = ctypes.CDLL(None, use_errno=True), ctypes.POINTER(_Row)()
    if library.getifaddrs(ctypes.byref(first)):
        number = ctypes.get_errno()
        raise OSError(number, f"the interfaces cannot be listed: {os.strerror(number)}")
    found: dict[str, list[str]] = {}
    row = first
    while row:
        address = _address(row.contents.address)
        if address is not None and row.contents.flags & _UP:
            found.setdefault(row.contents.name.decode(), []).append(address)
        row = row.contents.next
    library.freeifaddrs(first)
    return {name: tuple(sorted(addresses, key=lambda one: ":" in one)) for name, addresses in sorted(found.items())}


def _address(pointer: int | None) -> str | None:
    """The address in a `struct sockaddr`; None of another family than the internet's."""
    if not pointer:
        return None
    head = ctypes.string_at(pointer, 2)
    family = head[1] if sys.platform == "darwin" else int.from_bytes(head, sys.byteorder)
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, ctypes.string_at(pointer + 4, 4))
    if family == socket.AF_INET6:
        return socket.inet_ntop(socket.AF_INET6, ctypes.string_at(pointer + 8, 16))
    return None


def told_interface(told: str, there: Interfaces, where: str = "key 'trainer.interface'") -> tuple[str, str]:
    """The interface that somebody named, and its address.

    Args:
        told: its name, such as ``eth0``, or a network in which it has an address, such as ``10.1.0.0/16``.
        there: those that exist.
        where: says in the error what named it.

    Raises:
        TrainerConfigError: none is that.
    """
    if "/" in told:
        try:
            network = ipaddress.ip_network(told)
        except ValueError as error:
            raise TrainerConfigError(f"{where}: found {told!r}, expected a name or a network: {error}") from error
        inside = ((name, one) for name, addresses in there.items() for one in addresses if _inside(one, network))
        found = next(inside, None)
    else:
        found = next(((told, one) for one in there.get(told, ())), None)
    if found is None:
        exist = ", ".join(f"{name} ({addresses[0]})" for name, addresses in there.items()) or "none"
        raise TrainerConfigError(f"{where}: found {told!r}, which does not exist; expected one of {exist}")
    return found


def _inside(address: str, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    return ipaddress.ip_address(address) in network


def address_towards(address: str = _ANYWHERE) -> str:
    """This machine's address on the way to another one; loopback if there is no way.

    Args:
        address: the other machine's; without one, the way to any that has no route of its own.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, _ANY_PORT))  # it sends nothing
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def interface_of(address: str, there: Interfaces) -> str:
    """The interface that has an address.

    Raises:
        TrainerConfigError: none has.
    """
    for name, addresses in there.items():
        if address in addresses:
            return name
    exist = ", ".join(f"{name} ({', '.join(addresses)})" for name, addresses in there.items())
    raise TrainerConfigError(
        f"found {address} as the address of this machine, which no interface has; set trainer.interface to one of {exist}"
    )


def network_id() -> str:
    """What two processes share that reach each other on loopback: a kernel that runs, and its network namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/net').readlink()}"
    except OSError:
        return socket.gethostname()
