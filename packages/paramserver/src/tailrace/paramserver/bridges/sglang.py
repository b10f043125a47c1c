"""A running SGLang server takes versions from a relay, or any named tensors.

For SGLang 0.5.23 ("SGLang for RL Systems", native API). The tests speak to a server that implements this part of the interface
strictly; the engine `sglang` of tailrace-rollout, which loads weights by this bridge, is tested with SGLang's own server.

SGLang has three ways in, and this uses the second:

* `/update_weights_from_tensor` wants every bucket as a Python pickle, in base64, in JSON, once for each rank. Objects that
  are pickled bind both ends to one version of torch and SGLang, and such a server unpickles what anyone sends it.
* `/update_weights_from_distributed` takes names, dtypes and shapes over HTTP and the bytes by broadcast in a process group:
  nothing is pickled at either end, and a bucket goes from the relay's memory to the server's ranks without another copy
  here. `gloo` needs no GPU on this side.
* `/update_weights_from_disk` needs a copy of the version in files that both ends see, and renames the served model to them.

    with RelayReader(relay.address, token=token) as reader:
        server = SGLangServer("http://10.0.0.7:30000", api_key=key, host="10.0.0.2")
        server.update(reader, version=7)

Process groups are neither authenticated nor encrypted (they are torch's): use a network that is yours.
"""

from __future__ import annotations

import datetime
import errno
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from tailrace.contracts import extra
from tailrace.paramserver.bridges.http_calls import HttpCalls
from tailrace.paramserver.clients.lease_view import WeightLease
from tailrace.paramserver.clients.reader import RelayReader, lease_version
from tailrace.paramserver.errors import (
    BridgeError,
    BridgeStateInvalid,
    EngineRefused,
    EngineTimeout,
    EngineUnreachable,
    ParamServerError,
    PortInUse,
    WeightsMismatch,
)
from tailrace.paramserver.layout.sharding import GlobalTensor
from tailrace.paramserver.machine.host import HOST

_POLL_S = 0.001
_LONGEST_POLL_S = 0.02


class SourceGroup:
    """Rank 0, the source of every broadcast, of a process group of its own, which needs no default group.

    Both ends must look for each other under the same keys, so the steps are those of SGLang's `init_custom_process_group`
    (0.5.23). Only sizes and bytes travel in it.

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
            sent = [tensor.cuda() if self._backend == "nccl" else tensor.cpu() for tensor in tensors]
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
        """Leave the group, also with a transfer under way. It is of no use afterwards."""
        import torch.distributed as dist

        held = [self._group]
        self._group = None
        held[0].abort()
        dist.destroy_process_group(held[0])
        # Gloo has no abort: who lets go of the group waits for its transfers, as long as they may take if the other end keeps
        # its connection. That was whoever's garbage collection came across it.
        HOST.spawn(held.clear, "sglang group's end")


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


_T = TypeVar("_T")


def started(run: Callable[[], _T], name: str) -> Future[_T]:
    """Run on a thread of its own, which has a deadline but is not waited for."""
    future: Future[_T] = Future()

    def fill() -> None:
        try:
            future.set_result(run())
        except BaseException as error:  # it is raised where the result is asked for
            future.set_exception(error)

    HOST.spawn(fill, name)
    return future


def has_failed(future: Future[Any]) -> bool:
    """Whether it ended with an error."""
    return future.done() and future.exception() is not None


def named(weights: WeightLease) -> Iterator[tuple[str, GlobalTensor]]:
    """Every name and its tensor, those of a tied one too: servers skip the names that they have tied themselves."""
    specs = weights.tensors
    for name, stored in [(name, name) for name in weights] + list(weights.tied.items()):
        if specs[stored].nbytes:
            yield name, specs[stored]


def buckets_of(tensors: Iterable[tuple[str, Any]], bucket_bytes: int) -> Iterator[tuple[list[tuple[str, Any]], bool]]:
    """Torch tensors in order, in buckets of at most so many bytes; a larger tensor has one for itself, an empty one none.

    Yields:
        A bucket, and whether it is the last: the tensor behind it was asked for before.
    """
    bucket, size = list[tuple[str, Any]](), 0
    for name, tensor in tensors:
        if not tensor.nbytes:
            continue
        if bucket and size + tensor.nbytes > bucket_bytes:
            yield bucket, False
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += tensor.nbytes
    if bucket:
        yield bucket, True


def check_names(weights: WeightLease, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Compare a version with names and shapes that it must have.

    Raises:
        WeightsMismatch: one is missing or of another shape.
    """
    found = {name: spec.shape for name, spec in named(weights)}
    for name, shape in expected.items():
        if found.get(name) != tuple(shape):
            raise WeightsMismatch(
                f"{name!r}: found {list(found[name]) if name in found else 'nothing'} in version {weights.version}, "
                f"expected {list(shape)}"
            )


_log = logging.getLogger(__name__)
_BUCKET_BYTES = 256 << 20
_MEET_S = 60.0
_CLEAN_UP_S = 10.0

Pause = Literal["abort", "retract", "in_place"]


class SGLangServer:
    """One server, with tensor parallelism; SGLang 0.5.23 takes weights this way without data parallelism only.

    A server that could not be given a whole version stays paused, since it holds parts of two: the next update that
    succeeds lets it go on.

    Args:
        url: the server's URL, such as http://10.0.0.7:30000.
        api_key: its API key (or admin API key).
        host: address of this host that the server's ranks can reach.
        port: the port on which they meet; 0 takes a free one for each group.
        backend: "gloo" sends from this host's memory; "nccl" needs a GPU here, other than the server's.
        pause: how requests under way are treated: "abort" ends them, "retract" computes their KV cache anew with the new
            weights, "in_place" keeps a cache that the old weights made.
        bucket_bytes: weights in one request; the server holds one bucket beside its model.
        check_names: names and shapes that a version must have, to refuse another one before the server is touched.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        backend: Literal["gloo", "nccl"] = "gloo",
        pause: Pause = "retract",
        bucket_bytes: int = _BUCKET_BYTES,
        check_names: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        if bucket_bytes < 1:
            raise BridgeStateInvalid(f"found bucket_bytes {bucket_bytes}, expected at least 1")
        self._http = HttpCalls(url, api_key=api_key)
        self._host, self._port, self._backend, self._pause = host, port, backend, pause
        self._bucket_bytes, self._check_names = bucket_bytes, check_names
        self._group: SourceGroup | None = None
        self._groups = 0

    def weight_version(self, *, timeout_s: float = 10.0) -> str:
        """What the server says that its weights are.

        Raises:
            EngineUnreachable, EngineTimeout, EngineRefused: see their messages.
        """
        return str(self._call("GET", "/model_info", None, timeout_s).get("weight_version"))

    def update(
        self, reader: RelayReader, version: int | None = None, *, timeout_s: float = 300.0, hold_s: float = 600.0
    ) -> int:
        """Give the server a version, in buckets, and flush what the old weights had cached.

        Args:
            reader: a reader of a relay, preferably on this host.
            version: its number; None takes the newest visible one.
            timeout_s: deadline in seconds for all of it.
            hold_s: how long the relay keeps the version.

        Returns:
            The version that the server now has, and names in its answers (`weight_version`).

        Raises:
            WeightsMismatch: the version lacks one of `check_names`. The server is unchanged.
            EngineUnreachable, EngineTimeout, EngineRefused: the server does not take it; if it stays paused with parts of
                two versions, the message says so, else it is unchanged.
            PortInUse, BridgeStateInvalid: `host` and `port` cannot be listened on, or the server has other parallelism.
            ParamServerError: what `RelayReader.lease` raises.
        """
        deadline = HOST.now() + timeout_s
        leased = lease_version(reader, version, timeout_s=timeout_s, hold_s=hold_s)
        with self._paused_if_it_fails() as touched, leased as weights:
            if self._check_names is not None:
                check_names(weights, self._check_names)
            number = weights.version
            tensors = ((name, weights[spec.name]) for name, spec in named(weights))
            self._replace(tensors, str(number), deadline, touched)
        # Only now, when the lease is known to have held until the last byte was read.
        self._call("POST", "/continue_generation", {}, max(deadline - HOST.now(), _CLEAN_UP_S))
        return number

    def load(self, tensors: Iterable[tuple[str, Any]], label: str, *, timeout_s: float = 300.0) -> None:
        """Give the server tensors that come from elsewhere than a relay, as `update` does.

        Args:
            tensors: pairs of a Hugging Face parameter name and a torch tensor of full shape. What they raise is raised here.
            label: what the server is to name its weights by.
            timeout_s: deadline in seconds for all of it.

        Raises:
            EngineUnreachable, EngineTimeout, EngineRefused, PortInUse, BridgeStateInvalid: see `update`.
        """
        deadline = HOST.now() + timeout_s
        with self._paused_if_it_fails() as touched:
            self._replace(tensors, label, deadline, touched)
        self._call("POST", "/continue_generation", {}, max(deadline - HOST.now(), _CLEAN_UP_S))

    def close(self) -> None:
        """Leave the process group, and have the server leave it."""
        self._leave()

    def __enter__(self) -> SGLangServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def _paused_if_it_fails(self) -> Iterator[threading.Event]:
        """The event is set once the server may hold parts of two versions; an error then leaves the group, and says so."""
        touched = threading.Event()
        try:
            yield touched
        except BaseException as error:
            if touched.is_set():
                self._leave()
                if isinstance(error, ParamServerError):
                    raise type(error)(
                        f"{error}; {self._http.url} stays paused, with parts of two versions, until an update succeeds"
                    ) from error
            raise

    def _replace(
        self, tensors: Iterable[tuple[str, Any]], label: str, deadline: float, touched: threading.Event
    ) -> None:
        """Pause the server and send it the tensors. It stays paused."""
        group = self._join(deadline)
        session = self._pause_and_begin(deadline)
        touched.set()
        self._send(tensors, label, group, deadline)
        if session:
            self._call("POST", "/end_weight_update", {}, deadline - HOST.now())
        found = self.weight_version(timeout_s=deadline - HOST.now())
        if found != label:
            raise EngineRefused(f"the server names its weights {found!r}, expected {label!r}")

    def _join(self, deadline: float) -> SourceGroup:
        """The group, made now if there is none."""
        info = self._call("GET", "/server_info", None, deadline - HOST.now())
        sizes = {name: info.get(name) for name in ("tp_size", "pp_size", "dp_size")}
        for name, size in sizes.items():
            if type(size) is not int or size < 1:
                raise EngineRefused(f"{self._http.url} says {name} {str(size)[:40]!r}, expected a positive integer")
        if sizes["pp_size"] != 1 or sizes["dp_size"] != 1:
            raise BridgeStateInvalid(
                f"{self._http.url} has {sizes}: SGLang takes broadcast weights with tensor parallelism only"
            )
        if self._group is not None:
            return self._group
        self._groups += 1
        name = f"tailrace-{os.getpid()}-{id(self):x}-{self._groups}"
        listener = listen(self._host, self._port)
        port = listener.getsockname()[1]
        world_size = 1 + int(info["tp_size"])
        body = {"master_address": self._host, "master_port": port, "rank_offset": 1, "world_size": world_size}
        body |= {"group_name": name, "backend": self._backend}
        wait_s = max(min(deadline - HOST.now(), _MEET_S), 0.001)
        asked = started(lambda: self._call("POST", "/init_weights_update_group", body, wait_s), "sglang init")
        met = started(lambda: SourceGroup(listener, world_size, name, self._backend, wait_s), "sglang meeting")
        futures: list[Future[Any]] = [asked, met]
        wait(futures, timeout=2 * wait_s, return_when=FIRST_EXCEPTION)
        if not asked.done() or not met.done() or asked.exception() is not None:
            met.add_done_callback(_close_late)
            for future in (asked, met):  # why, if one of the two knows
                if has_failed(future):
                    future.result()
            raise EngineTimeout(f"the server's ranks did not meet us on {self._host}:{port} in {wait_s:.3g} s")
        self._group = met.result()
        return self._group

    def _pause_and_begin(self, deadline: float) -> bool:
        """Pause, and open a session; whether the server knows of sessions, which releases before 0.5.23 need not."""
        body = {"selector": "all"}
        try:
            self._call("POST", "/pause_generation", {"mode": self._pause}, deadline - HOST.now())
            begin = "/begin_weight_update"
            try:
                answer = self._http.call("POST", begin, body, max(deadline - HOST.now(), 0.001), absent_is_none=True)
            except EngineRefused:  # of the session that a broken update left open
                self._call("POST", "/end_weight_update", {}, deadline - HOST.now())
                answer = self._call("POST", begin, body, deadline - HOST.now())
        except BridgeError:
            try:  # nothing has changed
                self._call("POST", "/continue_generation", {}, _CLEAN_UP_S)
            except BridgeError as error:
                _log.warning("the server may stay paused: %s", error)
            raise
        return answer is not None

    def _send(self, tensors: Iterable[tuple[str, Any]], label: str, group: SourceGroup, deadline: float) -> None:
        for bucket, last in buckets_of(tensors, self._bucket_bytes):
            sent = [tensor.detach().contiguous() for _, tensor in bucket]
            body: dict[str, Any] = {
                "names": [name for name, _ in bucket],
                "dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in sent],
                "shapes": [list(tensor.shape) for tensor in sent],
                "group_name": group.name,
                "flush_cache": last and self._pause != "in_place",
            }
            if last:
                body["weight_version"] = label
            asked = self._asked(body, max(deadline - HOST.now(), 0.001))
            try:
                group.broadcast(sent, deadline - HOST.now(), lambda asked=asked: has_failed(asked))  # type: ignore[misc]
            except BridgeError:
                if has_failed(asked):
                    asked.result()  # why, rather than only that the transfer broke
                raise
            asked.result()

    def _asked(self, body: dict[str, Any], timeout_s: float) -> Future[dict[str, Any]]:
        return started(lambda: self._call("POST", "/update_weights_from_distributed", body, timeout_s), "sglang update")

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is None:
            return
        group.close()
        try:
            self._call("POST", "/destroy_weights_update_group", {"group_name": group.name}, _CLEAN_UP_S)
        except BridgeError as error:
            _log.warning("the server may keep the group %s, which is not used again: %s", group.name, error)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> dict[str, Any]:
        if timeout_s <= 0:
            raise EngineTimeout(f"no time was left for {method} {self._http.url}{path}")
        answer = self._http.call(method, path, body, timeout_s)
        return answer if answer is not None else {}


def _close_late(met: Future[SourceGroup]) -> None:
    if met.exception() is None:
        met.result().close()
