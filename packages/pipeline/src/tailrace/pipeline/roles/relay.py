"""The relay role: one relay process per node, holding weight versions in shared memory (Laminar, section 4)."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tailrace.paramserver import RelayProcess, set_chain


class RelayRole:
    """Starts and watches the relay process of a node.

    Args:
        name: unique on the machine; names the shared-memory segments.
        token: shared secret of the run's peers.
        host: address to listen on; ``"node"`` is this machine's address in the Ray cluster.
    """

    def __init__(self, *, name: str, token: str, host: str = "127.0.0.1") -> None:
        if host == "node":
            import ray

            host = ray.util.get_node_ip_address()
        self._token = token
        self._process = RelayProcess.start(name, host=host, token=token)

    def address(self) -> str:
        """Where the relay listens."""
        return self._process.address

    def set_chain(self, addresses: Sequence[str]) -> None:
        """This relay is the master, the others follow in order."""
        set_chain([self._process.address, *addresses], token=self._token)

    def watch(self, timeout_s: float) -> bool:
        """Whether the process still runs after up to `timeout_s` seconds; returns at once when it ends."""
        deadline = time.monotonic() + timeout_s
        while self._process.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self._process.alive()

    def kill(self) -> None:
        """SIGKILL to the relay process."""
        self._process.kill()

    def close(self) -> None:
        """End the process and free its shared memory."""
        self._process.close()
