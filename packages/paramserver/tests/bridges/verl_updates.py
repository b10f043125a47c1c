"""Updates by verl's own manager, over relays of three "hosts" of this machine: run by an interpreter that has verl.

    python verl_updates.py MEGABYTES UPDATE ...

Two Ray workers act, two receive, each of these on a host of its own: the relays are `first` (the master's), `second` and
`third`. In an UPDATE, one that is named is killed while the second receives; `whole` kills none. Printed is what happened in
each update, as JSON on the last line.
"""

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time

# Read when Ray is imported: a busy machine starts it slowly, and its workers would have niceness 15.
os.environ |= {"RAY_raylet_start_wait_time_s": "300", "RAY_worker_niceness": "0"}

import ray
import torch
from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry, CheckpointEngineWorker
from verl.checkpoint_engine.base import merge_weight_chunks, split_weight_chunks
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.import_utils import import_external_libs
from verl.workers.config import CheckpointEngineConfig, RolloutConfig
from verl.workers.rollout import BaseRollout

from tailrace.paramserver import new_token, relay_status
from tailrace.paramserver.errors import ParamServerError

BRIDGE = "tailrace.paramserver.bridges.verl"
HOSTS = {"first": "127.0.0.1", "second": "127.0.0.2", "third": "127.0.0.3"}
RUN = f"verl-updates-{os.getpid()}"


def weights_of(step, megabytes):
    """What is trained after a step: several dtypes, a view that is turned, a name that shares memory with another."""
    generator = torch.Generator().manual_seed(step)
    rows = megabytes * 2**20 // 4 // 1024 // 4
    embed = torch.randn(rows, 1024, generator=generator)
    yield "embed", embed
    for layer in range(3):
        bits = torch.randint(-(2**31), 2**31 - 1, (rows, 1024), generator=generator, dtype=torch.int64).to(torch.int32)
        yield f"layers.{layer}.weight", bits.view(torch.float32)  # any bits, those of NaNs too
    yield "half", torch.randn(7, 5, generator=generator).bfloat16()
    yield "turned", torch.randn(6, 4, generator=generator).t()
    yield "ids", torch.arange(5) + step
    yield "head", embed


def same_bits(one, other):
    """Whether two tensors are equal in dtype, shape and every bit."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def config_of(host, token):
    options = {"token": token, "name": RUN, "host": host, "timeout_s": 90.0, "patience_s": 3.0}
    return CheckpointEngineConfig(backend="tailrace", custom_backend_module=BRIDGE, engine_kwargs={"tailrace": options})


class Actor(Worker):
    """The part of verl's `ActorRolloutRefWorker` that an update reaches, with weights that need no model."""

    def __init__(self, config, megabytes):
        super().__init__()
        self.megabytes = megabytes
        import_external_libs(config.custom_backend_module)
        bucket = config.update_weights_bucket_megabytes << 20
        self.checkpoint_engine = CheckpointEngineRegistry.new(
            config.backend, is_master=self.rank == 0, bucket_size=bucket, **config.engine_kwargs[config.backend]
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps=None, mode="auto"):
        assert mode == "tailrace"
        weights = weights_of(global_steps, self.megabytes)
        return await self.checkpoint_engine.send_weights(weights, global_steps=global_steps) or {}

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method, *args, **kwargs):
        return getattr(self.checkpoint_engine, method)(*args, **kwargs)


class Kept(BaseRollout):
    """An inference engine's place: it keeps what it is given."""

    def __init__(self):
        self.weights = {}

    async def resume(self, tags):
        pass

    async def release(self):
        pass

    async def update_weights(self, weights, wire_format="named_tensors", **kwargs):
        assert wire_format == "named_tensors"
        chunks = split_weight_chunks(weights, 2**20)  # as verl's own engines pass them on
        self.weights = {name: tensor.clone() async for name, tensor in merge_weight_chunks(chunks, 2**20)}


class Receiver(CheckpointEngineWorker):
    """verl's own worker, which can say what it has and which relay it read."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def wrong(self, step, megabytes):
        kept, expected = self.server_adapter.weights, dict(weights_of(step, megabytes))
        return sorted(kept.keys() ^ expected.keys()) + [
            name for name in kept.keys() & expected.keys() if not same_bits(kept[name], expected[name])
        ]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def read_from(self):
        return self.checkpoint_engine._reader.address

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def where(self):
        return self.checkpoint_engine.prepare()["address"]


class Replica:
    """The calls that the manager makes of verl's `RolloutReplica`."""

    def __init__(self, workers, calls):
        self.workers, self._calls = workers, calls

    def __getattr__(self, name):
        async def call(**kwargs):
            self._calls.append(name)

        return call


def group(cls, count, *args):
    pool = RayResourcePool([count], use_gpu=False, max_colocate_count=1)
    return RayWorkerGroup(resource_pool=pool, ray_cls_with_init=RayClassWithInitArgs(ray.remote(cls), *args))


def receiver(host, token):
    rollout = RolloutConfig(name="vllm", checkpoint_engine=config_of(host, token))
    return group(Receiver, 1, rollout, None, Kept())


class Killer(threading.Thread):
    """SIGKILLs a relay as soon as another, or it, has received some chunks of a version, and not all."""

    def __init__(self, victim, watched, token):
        super().__init__(daemon=True)
        self._victim, self._watched, self._token = relay_status(victim, token=token).pid, watched, token
        self._over = threading.Event()
        self.killed_at = None
        self.start()

    def run(self):
        while not self._over.is_set():
            with contextlib.suppress(ParamServerError):
                for progress in relay_status(self._watched, token=self._token).receiving.values():
                    have, of = map(int, re.match(r"(\d+)/(\d+)", progress).groups())
                    if 0 < have < of:
                        os.kill(self._victim, signal.SIGKILL)
                        self.killed_at = progress
                        return

    def end(self):
        self._over.set()
        self.join()
        return self.killed_at


def main():
    megabytes, updates = int(sys.argv[1]), sys.argv[2:]
    token = new_token()
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    calls, happened = [], []
    actors = group(Actor, 2, config_of(HOSTS["first"], token), megabytes)
    receivers = [receiver(HOSTS[name], token) for name in ("second", "third")]
    replicas = [Replica(one.workers, calls) for one in receivers]
    manager = CheckpointEngineManager(config_of(HOSTS["first"], token), actors, replicas)

    def addresses():
        first = ray.get(actors.execute_checkpoint_engine(["prepare"] * 2))[0]["address"]
        return dict(zip(HOSTS, [first, *(one.where()[0] for one in receivers)], strict=True))

    for step, update in enumerate(updates, start=1):
        relays = addresses()
        killer = Killer(relays[update], relays["second"], token) if update in relays else None
        calls.clear()
        began, error, metrics = time.perf_counter(), None, {}
        try:
            metrics = manager.update_weights(global_steps=step)
        except ray.exceptions.RayTaskError as failure:
            error = type(failure.cause).__name__
        seconds = time.perf_counter() - began
        happened.append(
            {
                "update": update,
                "seconds": seconds,
                "killed_at": killer.end() if killer else None,
                "error": error,
                "wrong": [] if error else [name for one in receivers for name in one.wrong(step, megabytes)[0]],
                "read": [] if error else [one.read_from()[0] for one in receivers],
                "relays": list(relays.values()),
                "calls": list(calls),
                "metrics": metrics,
            }
        )
        print(happened[-1], file=sys.stderr)
    ray.get(actors.execute_checkpoint_engine(["close"] * 2))
    for one in receivers:
        ray.get(one.execute_checkpoint_engine(["close"]))
    ray.shutdown()
    print(json.dumps(happened))


if __name__ == "__main__":
    main()
