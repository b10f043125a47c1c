"""A TCP proxy in front of a real relay, whose link can be cut, slowed and damaged."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

_PIECE = 16 * 1024
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Passes connections on to `target`, an address that may change.

    Attributes:
        rate: bytes per second of each connection and direction.
        silent: nothing passes, not even the end of a connection.
    """

    def __init__(self) -> None:
        self.target = ""
        self.rate = 1e9
        self.damage = 0  # of the next large pieces to flip a bit of
        self._passing = threading.Event()
        self._passing.set()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._closed = False
        threading.Thread(target=self._accept, daemon=True, name="proxy").start()

    def silence(self, silent: bool) -> None:
        """Let nothing pass, or everything again."""
        (self._passing.clear if silent else self._passing.set)()

    def reset(self) -> None:
        """End all connections, as a firewall would."""
        with self._lock:
            for sock in self._sockets:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop."""
        self._closed = True
        self.silence(False)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True, name="proxy").start()

    def _connect(self, near: socket.socket) -> None:
        self._passing.wait()
        host, _, port = self.target.rpartition(":")
        try:
            far = socket.create_connection((host, int(port)), timeout=5)
        except OSError:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            near.close()
            return
        far.settimeout(None)
        ends = [2]
        with self._lock:
            self._sockets |= {near, far}
        for source, sink in ((near, far), (far, near)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._pump, args=(source, sink, ends), daemon=True, name="proxy").start()

    def _pump(self, source: socket.socket, sink: socket.socket, ends: list[int]) -> None:
        buffer = bytearray(_PIECE)
        try:
            while True:
                count = source.recv_into(buffer)
                self._passing.wait()
                if not count:
                    break
                if count > 4096 and self.damage:
                    self.damage -= 1
                    buffer[count // 2] ^= 4
                if self.rate < 1e9:
                    time.sleep(count / self.rate)
                sink.sendall(memoryview(buffer)[:count])
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for sock in (source, sink):
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        with self._lock:
            ends[0] -= 1
            if not ends[0]:
                for sock in (source, sink):
                    self._sockets.discard(sock)
                    sock.close()
