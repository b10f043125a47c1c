"""The limit of TCP: one process sends a file in memory with `sendfile`, the other receives with `recv_into`.

As a script it is the sender: it takes the size and a port, and sends everything for each byte that it gets.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

from tailrace.paramserver import CHUNK_BYTES


class RawTcp:
    """A process that sends, and a connection to it."""

    def __init__(self, nbytes: int, into: memoryview) -> None:
        self.nbytes, self._into = nbytes, into[:nbytes]
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            self._process = subprocess.Popen([sys.executable, __file__, str(nbytes), str(port)])
            listener.settimeout(60)
            self._sock, _ = listener.accept()
        self._sock.recv(1)

    def once(self) -> float:
        """Seconds for all bytes."""
        start = time.perf_counter()
        self._sock.sendall(b"g")
        got = 0
        while got < self.nbytes:
            count = self._sock.recv_into(self._into[got:])
            if count == 0:
                raise SystemExit("the raw sender ended")
            got += count
        return time.perf_counter() - start

    def close(self) -> None:
        """End the process."""
        self._sock.close()
        self._process.wait(10)


def main() -> None:
    nbytes, port = int(sys.argv[1]), int(sys.argv[2])
    fd = os.memfd_create("raw")
    for _ in range(0, nbytes, 2**20):
        os.write(fd, b"\2" * 2**20)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"r")
        while sock.recv(1):
            sent = 0
            while sent < nbytes:
                sent += os.sendfile(sock.fileno(), fd, sent, min(CHUNK_BYTES, nbytes - sent))


if __name__ == "__main__":
    main()
