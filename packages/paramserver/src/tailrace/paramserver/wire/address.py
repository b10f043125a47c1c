"""Addresses of relays as text: ``host:port``, with brackets around an IPv6 host."""

from __future__ import annotations

from tailrace.paramserver.errors import ProtocolError


def parse_address(address: str) -> tuple[str, int]:
    """Host and port.

    Raises:
        ProtocolError: it is not of the form ``host:port``.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ProtocolError(f"found the address {address!r}, expected host:port, for example 127.0.0.1:4711")
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """The text that `parse_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
