"""Other ways to move the same bytes between two processes, in 32 MiB pieces, into memory that was used before.

Every peer's sender is a process of its own: this file as a script. It gets the name of the peer and the size, holds so many
bytes, and speaks one line of JSON for each on its standard input.
"""

from __future__ import annotations

import base64
import ctypes
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

if __name__ != "__main__":
    from tailrace.paramserver.copying import copy

    from . import model
    from .contenders import Contender, Missing

PIECE = 32 * 2**20
TAG = 7


class Sender:
    """The other process of a peer."""

    def __init__(self, peer: str, nbytes: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, peer, str(nbytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, **fields: Any) -> dict[str, Any]:
        """Its answer."""
        self.tell(**fields)
        return self.hear()

    def tell(self, **fields: Any) -> None:
        """Send it without waiting for an answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(fields).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """What it says next. What libraries print is passed over."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b'{"'):
                return json.loads(line)
        raise Missing(f"its sender ended with status {self._process.wait()}")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def pieces(nbytes: int) -> Iterator[tuple[int, int]]:
    """Offset and size of each piece."""
    for offset in range(0, nbytes, PIECE):
        yield offset, min(PIECE, nbytes - offset)


def address(memory: Any) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def need(*modules: str) -> None:
    """Missing unless all are installed."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise Missing(f"{module} is not installed")


def zeromq(nbytes: int, into: Any) -> Contender:
    need("zmq")
    import zmq

    context = zmq.Context()
    pull = context.socket(zmq.PULL)
    port = pull.bind_to_random_port("tcp://127.0.0.1")
    sender = Sender("zeromq", nbytes)
    sender.ask(port=port)
    view = memoryview(into)

    def once() -> float:
        start = time.perf_counter()
        sender.tell()
        for offset, size in pieces(nbytes):
            frame = pull.recv(copy=False)
            copy(view[offset : offset + size], frame.buffer)
        return time.perf_counter() - start

    def close() -> None:
        sender.close()
        context.destroy(0)

    return Contender("ZeroMQ, TCP", nbytes, once, close=close)


def zeromq_sender(nbytes: int, memory: Any, hear: Callable[[], dict[str, Any]], say: Callable[..., None]) -> None:
    import zmq

    push = zmq.Context().socket(zmq.PUSH)
    push.connect(f"tcp://127.0.0.1:{hear()['port']}")
    say()
    while True:
        hear()
        for offset, size in pieces(nbytes):
            push.send(memoryview(memory)[offset : offset + size], copy=False)


def gloo(nbytes: int, into: Any) -> Contender:
    need("torch")
    import torch
    import torch.distributed as dist

    target = torch.frombuffer(into, dtype=torch.uint8)
    rendezvous = tempfile.mktemp(prefix="tailrace-gloo-")  # noqa: S306  torch makes it
    sender = Sender("gloo", nbytes)
    sender.tell(file=rendezvous)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", world_size=2, rank=0)
    sender.hear()

    def once() -> float:
        start = time.perf_counter()
        sender.tell()
        for offset, size in pieces(nbytes):
            dist.broadcast(target[offset : offset + size], src=1)
        return time.perf_counter() - start

    def close() -> None:
        sender.close()
        dist.destroy_process_group()

    return Contender("gloo broadcast", nbytes, once, close=close)


def gloo_sender(nbytes: int, memory: Any, hear: Callable[[], dict[str, Any]], say: Callable[..., None]) -> None:
    import torch
    import torch.distributed as dist

    data = torch.frombuffer(memory, dtype=torch.uint8)
    dist.init_process_group("gloo", init_method=f"file://{hear()['file']}", world_size=2, rank=1)
    say()
    while True:
        hear()
        for offset, size in pieces(nbytes):
            dist.broadcast(data[offset : offset + size], src=1)


def ray(nbytes: int, into: Any) -> Contender:
    need("ray", "numpy")
    import numpy as np
    import ray as library

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    library.init(
        num_cpus=2,
        object_store_memory=max(2 * nbytes + 2**27, 2**28),
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )

    @library.remote(num_cpus=0)
    class Holder:
        def __init__(self, nbytes: int) -> None:
            self._data = np.ones(nbytes, dtype=np.uint8)

        def put(self) -> list[Any]:
            return [library.put(self._data)]

    holder, target = Holder.remote(nbytes), np.frombuffer(into, dtype=np.uint8)

    def once() -> float:
        start = time.perf_counter()
        found = library.get(library.get(holder.put.remote())[0])
        target[:] = found
        return time.perf_counter() - start

    return Contender("Ray put, get and copy", nbytes, once, close=library.shutdown)


def plain_nixl(nbytes: int, into: Any) -> Contender:
    need("nixl")
    api = importlib.import_module("nixl._api")
    sender = Sender("plain_nixl", nbytes)
    agent = api.nixl_agent("bench-reader", api.nixl_agent_config(backends=[]))
    agent.create_backend("UCX", {"ucx_error_handling_mode": "none"})
    agent.register_memory([(address(into), nbytes, 0, "")], "DRAM")
    there = sender.hear()
    peer = agent.add_remote_agent(base64.b64decode(there["metadata"]))
    handles = [
        agent.initialize_xfer(
            "READ",
            agent.get_xfer_descs([(address(into) + offset, size, 0)], "DRAM"),
            agent.get_xfer_descs([(there["address"] + offset, size, 0)], "DRAM"),
            peer,
        )
        for offset, size in pieces(nbytes)
    ]

    def once() -> float:
        start = time.perf_counter()
        for handle in handles:
            state = agent.transfer(handle)
            while state == "PROC":
                state = agent.check_xfer_state(handle)
            if state != "DONE":
                raise Missing(f"its transfer ended in {state}")
        return time.perf_counter() - start

    return Contender("plain NIXL, READ", nbytes, once, close=sender.close)


def plain_nixl_sender(nbytes: int, memory: Any, hear: Callable[[], dict[str, Any]], say: Callable[..., None]) -> None:
    api = importlib.import_module("nixl._api")
    agent = api.nixl_agent("bench-holder", api.nixl_agent_config(backends=[]))
    agent.create_backend("UCX", {"ucx_error_handling_mode": "none"})
    agent.register_memory([(address(memory), nbytes, 0, "")], "DRAM")
    say(metadata=base64.b64encode(agent.get_agent_metadata()).decode(), address=address(memory))
    hear()


def plain_ucxx(nbytes: int, into: Any) -> Contender:
    need("ucxx")
    importlib.import_module("ucxx")
    array, ucx = importlib.import_module("ucxx._lib.arr").Array, importlib.import_module("ucxx._lib.libucxx")
    sender = Sender("plain_ucxx", nbytes)
    worker = ucx.UCXWorker(ucx.UCXContext({}, (ucx.Feature.TAG,)))
    sender.ask(address=base64.b64encode(worker.address.tobytes()).decode())

    def once() -> float:
        start = time.perf_counter()
        sender.tell()
        for offset, size in pieces(nbytes):
            request = worker.tag_recv(array(memoryview(into)[offset : offset + size]), ucx.UCXXTag(TAG))
            while not request.completed:
                worker.progress()
            request.check_error()
        return time.perf_counter() - start

    return Contender("plain ucxx, tagged messages", nbytes, once, close=sender.close)


def plain_ucxx_sender(nbytes: int, memory: Any, hear: Callable[[], dict[str, Any]], say: Callable[..., None]) -> None:
    importlib.import_module("ucxx")
    array, ucx = importlib.import_module("ucxx._lib.arr").Array, importlib.import_module("ucxx._lib.libucxx")
    worker = ucx.UCXWorker(ucx.UCXContext({}, (ucx.Feature.TAG,)))
    there = ucx.UCXAddress.create_from_buffer(base64.b64decode(hear()["address"]))
    endpoint = worker.create_endpoint_from_worker_address(there, endpoint_error_handling=False)
    say()
    while True:
        hear()
        for offset, size in pieces(nbytes):
            request = endpoint.tag_send(array(memoryview(memory)[offset : offset + size]), ucx.UCXXTag(TAG))
            while not request.completed:
                worker.progress()
            request.check_error()


def mooncake(nbytes: int, into: Any) -> Contender:
    need("mooncake")
    try:
        engine = importlib.import_module("mooncake.engine").TransferEngine()
    except ImportError as error:
        raise Missing(f"it does not load: {error}") from error
    sender = Sender("mooncake", nbytes)
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") or engine.register_memory(address(into), nbytes):
        raise Missing("its engine does not start")
    there = sender.hear()

    def once() -> float:
        start = time.perf_counter()
        for offset, size in pieces(nbytes):
            if engine.transfer_sync_read(there["session"], address(into) + offset, there["address"] + offset, size):
                raise Missing("its transfer failed")
        return time.perf_counter() - start

    return Contender("mooncake, TCP", nbytes, once, close=sender.close)


def mooncake_sender(nbytes: int, memory: Any, hear: Callable[[], dict[str, Any]], say: Callable[..., None]) -> None:
    engine = importlib.import_module("mooncake.engine").TransferEngine()
    engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")
    engine.register_memory(address(memory), nbytes)
    say(session=f"127.0.0.1:{engine.get_rpc_port()}", address=address(memory))
    hear()


PEERS: tuple[Callable[[int, Any], Any], ...] = (ray, gloo, zeromq, mooncake, plain_nixl, plain_ucxx)


def available(nbytes: int) -> tuple[list[Any], dict[str, str]]:
    """The peers that can be measured here, and why the others cannot. All receive into the same memory."""
    into = model.arena(nbytes)
    found, missing = [], dict[str, str]()
    for peer in PEERS:
        try:
            found.append(peer(nbytes, into))
            found[-1].once()
        except Missing as error:
            missing[peer.__name__.removeprefix("plain_")] = str(error)
    return found, missing


def main() -> None:
    import mmap

    name, nbytes = sys.argv[1], int(sys.argv[2])
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_SHARED)
    for start in range(0, nbytes, 2**20):
        memory[start : start + 2**20] = b"\3" * min(2**20, nbytes - start)

    def hear() -> dict[str, Any]:
        line = sys.stdin.readline()
        if not line:
            os._exit(0)
        return json.loads(line)

    def say(**fields: Any) -> None:
        print(json.dumps({"ok": 1, **fields}), flush=True)

    globals()[f"{name}_sender"](nbytes, memory, hear, say)


if __name__ == "__main__":
    main()
