"""Our end of the process group over which an SGLang server receives weights: rank 0, the source of every broadcast.

The steps are those of SGLang's `init_custom_process_group` (0.5.23), because both ends must look for each other under the
same keys. Only sizes and bytes travel in it.
"""

from __future__ import annotations

import datetime
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Any

from tailrace.contracts import extra
from tailrace.paramserver.errors import BridgeStateInvalid, EngineTimeout, EngineUnreachable, PortInUse
from tailrace.paramserver.machine.host import HOST

_POLL_S = 0.001
_LONGEST_POLL_S = 0.02


class SourceGroup:
    """Rank 0 of a process group of its own, which needs no default group.

    Args:
        listener: socket on which the ranks meet, bound to an address that the server can reach; it is taken over.
        world_size: ranks, ours included.
        name: the group's name.
        backend: "gloo" sends from this host's memory; "nccl" needs a GPU here, other than the server's.
        timeout_s: deadline in seconds for all ranks to meet.

    Raises:
        EngineTimeout: not all ranks came in time.
        EngineUnreachable: the group cannot be made.
    """

    def __init__(self, listener: socket.socket, world_size: int, name: str, backend: str, timeout_s: float) -> None:
        with extra("tailrace-paramserver", "torch"):
            import torch
            import torch.distributed.distributed_c10d as c10d

        self.name, self._backend = name, backend
        timeout, deadline = datetime.timedelta(seconds=timeout_s), HOST.now() + timeout_s
        host, port = listener.getsockname()[:2]
        try:
            # Like the rendezvous of tcp://host:port, but for where it listens: torch would do so on every interface.
            store = torch.distributed.TCPStore(
                host, port, world_size, True, timeout, master_listen_fd=listener.detach()
            )
            self._group, _ = c10d._new_process_group_helper(
                world_size,
                0,
                [],
                c10d.Backend(backend),
                c10d.PrefixStore(name, store),
                group_name=name,
                timeout=timeout,
            )
        except (RuntimeError, ValueError) as error:  # torch's DistError is a RuntimeError
            kind = EngineTimeout if HOST.now() >= deadline else EngineUnreachable
            raise kind(
                f"the {world_size - 1} ranks of the server did not meet us on {host}:{port} in {timeout_s:.3g} s: {error}"
            ) from error
        c10d._world.pg_group_ranks[self._group] = {rank: rank for rank in range(world_size)}

    def broadcast(self, tensors: Sequence[Any], timeout_s: float, failed: Callable[[], bool]) -> None:
        """Send tensors to all ranks, in order.

        Args:
            tensors: contiguous ones; they are not written.
            timeout_s: deadline in seconds for all of them.
            failed: asked now and then; True gives up, for the other end has.

        Raises:
            EngineTimeout: a rank did not take them in time.
            EngineUnreachable: the connection to a rank broke, or `failed`.
        """
        import torch

        deadline, pause_s = HOST.now() + timeout_s, _POLL_S
        options = torch.distributed.BroadcastOptions()
        options.rootRank = 0
        options.timeout = datetime.timedelta(seconds=max(timeout_s, 0.001))
        try:
            sent = [tensor.cuda() if self._backend == "nccl" else tensor for tensor in tensors]
            works = [self._group.broadcast([tensor], options) for tensor in sent]
            for work in works:
                while not work.is_completed():
                    if failed():
                        raise EngineUnreachable(f"the server gave up a transfer in the group {self.name}")
                    if HOST.now() >= deadline:
                        raise EngineTimeout(f"the server took no weights for {timeout_s:.3g} s")
                    HOST.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_POLL_S)
                work.wait()  # raises what went wrong
        except RuntimeError as error:
            if isinstance(error, EngineUnreachable | EngineTimeout):
                raise
            raise EngineUnreachable(f"the group {self.name} broke: {error}") from error

    def close(self) -> None:
        """Leave the group, also with a transfer under way."""
        import torch.distributed as dist

        self._group.abort()
        dist.destroy_process_group(self._group)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on this address and no other; port 0 takes a free one.

    Raises:
        PortInUse: another process listens there.
        BridgeStateInvalid: it is no address of this host.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"found the port {port} of {host} in use, expected a free one; port 0 takes one") from error
        raise BridgeStateInvalid(f"cannot listen on {host}:{port}: {error}; name an address of this host") from error
    return listener
