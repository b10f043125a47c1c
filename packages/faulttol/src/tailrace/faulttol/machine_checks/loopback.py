"""Does the machine's own network carry bytes unchanged, and fast enough?"""

from __future__ import annotations

import hashlib
import random
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tailrace.faulttol.machine_checks.check import UnfitError

_BLOCK_BYTES = 1 << 20
_SILENT_S = 10.0


@dataclass(frozen=True, slots=True)
class Loopback:
    """Send random bytes to itself over TCP and compare what comes. Plugin ``loopback``.

    Args:
        send_bytes: bytes to send.
        least_bytes_per_s: least bandwidth.
    """

    send_bytes: int = 64 << 20
    least_bytes_per_s: float = 50e6

    def run(self, directory: Path) -> str:  # noqa: ARG002 - the protocol's argument
        """See `MachineCheck.run`."""
        block = random.Random(self.send_bytes).randbytes(_BLOCK_BYTES)
        sizes = [min(_BLOCK_BYTES, self.send_bytes - start) for start in range(0, self.send_bytes, _BLOCK_BYTES)]
        try:
            with socket.create_server(("127.0.0.1", 0)) as server:
                server.settimeout(_SILENT_S)
                sender = threading.Thread(target=_send, args=(server.getsockname(), block, sizes), daemon=True)
                began_s = time.monotonic()
                sender.start()
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(_SILENT_S)
                    received, count = _received(connection)
                seconds = time.monotonic() - began_s
        except OSError as error:
            raise UnfitError(f"loopback: {error}, expected to send to itself") from error
        sent = hashlib.sha256()
        for size in sizes:
            sent.update(block[:size])
        if count != self.send_bytes or received != sent.digest():
            raise UnfitError(
                f"loopback: {count:,} bytes came, expected the {self.send_bytes:,} that were sent, unchanged"
            )
        bytes_per_s = self.send_bytes / seconds
        found = f"{bytes_per_s / 1e6:,.0f} MB/s"
        if bytes_per_s < self.least_bytes_per_s:
            raise UnfitError(f"loopback: found {found}, expected {self.least_bytes_per_s / 1e6:,.0f} MB/s at least")
        return found


def _send(address: tuple[str, int], block: bytes, sizes: list[int]) -> None:
    """Send the blocks. Whoever receives finds out whether all came."""
    with socket.create_connection(address, timeout=_SILENT_S) as connection:
        for size in sizes:
            connection.sendall(memoryview(block)[:size])


def _received(connection: socket.socket) -> tuple[bytes, int]:
    """The hash of all bytes that come, and their number."""
    digest, count = hashlib.sha256(), 0
    while part := connection.recv(_BLOCK_BYTES):
        digest.update(part)
        count += len(part)
    return digest.digest(), count
