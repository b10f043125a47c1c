"""A torch module to a torch module in another process.

A trainer publishes its module and a replica takes it over; between them stands a relay:

```python
import multiprocessing, torch
from tailrace.paramserver import Publisher, RelayProcess, RelayReader, new_token
from tailrace.paramserver.bridges.torch_module import load_module, publish_module

def replica(address, token):
    module = torch.nn.Linear(4, 2)
    with RelayReader(address, token=token) as reader:
        print("version", load_module(reader, module, timeout_s=30), module.weight.sum().item())

if __name__ == "__main__":
    token, module = new_token(), torch.nn.Linear(4, 2)
    with RelayProcess.start("module", token=token) as relay, Publisher(relay.address, token=token) as publisher:
        publish_module(publisher, 1, module)
        multiprocessing.get_context("spawn").Pool(1).apply(replica, (relay.address, token))
```
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tailrace.contracts import extra
from tailrace.paramserver.clients.lease_view import WeightLease
from tailrace.paramserver.clients.publisher import Publisher
from tailrace.paramserver.clients.reader import RelayReader, lease_version
from tailrace.paramserver.errors import ManifestInvalid, WeightsMismatch
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.manifest import DTYPES
from tailrace.paramserver.tensors import source


def publish_module(publisher: Publisher | None, version: int, module: Any) -> float:
    """Publish a module's parameters and persistent buffers under their names in its `state_dict`.

    Tied tensors go once. Sharded parameters (DTensor) are gathered one at a time, so that at most one full tensor exists
    beside the shards. Gathering is collective: every rank calls this, and the ranks without a publisher only take part.

    Args:
        publisher: the publisher; None on the other ranks of a sharded module.
        version: the version's number.
        module: a torch module on any device.

    Returns:
        Seconds that this rank was held up: those of one local copy, and of the gathering if there is any.

    Raises:
        ManifestInvalid: a tensor cannot be published. Nothing was gathered, nothing published.
    """
    tensors = _tensors(module)
    for name, tensor in tensors.items():  # on every rank alike, before the first of them waits for the others
        _check_publishable(name, tensor)
    if publisher is not None:
        return publisher.publish(version, _gathered(tensors))
    start = HOST.now()
    for _ in _gathered(tensors):
        pass
    return HOST.now() - start


def load_module(
    reader: RelayReader, module: Any, version: int | None = None, *, timeout_s: float = 30.0, hold_s: float = 300.0
) -> int:
    """Overwrite a module's parameters and persistent buffers, in place, with those of a version.

    Everything is compared before anything is written: a module is never half-loaded because a tensor did not fit.
    Tied tensors may have been published under any of their names. Of a sharded module (DTensor) each rank calls this
    and writes its own shards, without communication.

    Args:
        reader: a reader of a relay.
        module: a torch module on any device.
        version: the version's number; None takes the newest visible one and waits until there is one.
        timeout_s: how long to wait for it.
        hold_s: how long the relay keeps it while it is copied.

    Returns:
        The version that the module now has.

    Raises:
        WeightsMismatch: a tensor is missing, unknown, or of another shape or dtype. The module is unchanged.
        VersionNotYet: no such version in time.
        LeaseExpired: the copy outlasted `hold_s` and the relay gave the memory away; load again, with a longer one.
        ParamServerError: what `RelayReader.lease` raises. The module is unchanged.
    """
    tensors = _tensors(module)
    with lease_version(reader, version, timeout_s=timeout_s, hold_s=hold_s) as weights:
        for target, name in _plan(tensors, weights):
            _overwrite(target, weights[name])
        return weights.version


def _tensors(module: Any) -> dict[str, Any]:
    with extra("tailrace-paramserver", "torch"):
        import torch

    found: dict[str, Any] = {}
    for name, value in module.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            raise ManifestInvalid(
                f"{name!r}: found a {type(value).__name__} in the module's state, expected a tensor; "
                "extra state of another kind does not travel"
            )
        found[name] = value
    return found


def _check_publishable(name: str, tensor: Any) -> None:
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise ManifestInvalid(f"{name!r}: found the dtype {dtype}, expected one of {', '.join(DTYPES)}")
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise ManifestInvalid(f"{name!r}: found a {tensor.layout} tensor on {tensor.device}, expected a dense one")


def _gathered(tensors: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every tensor in full, the names of a tied one next to each other while its full tensor is alive."""
    names = _names_by_tensor(tensors)
    for own in names:
        tensor = tensors[own[0]]
        full = tensor.detach().full_tensor() if _is_sharded(tensor) else tensor
        for name in own:
            yield name, replace(source(name, full), lasting=True)
        del full


def _names_by_tensor(tensors: dict[str, Any]) -> list[list[str]]:
    """The names of each tensor. Two tensors that are the same memory read the same way are one."""
    names: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        key: Any = id(tensor)  # ranks must agree on the order of gathering, and an empty shard has no address
        if not _is_sharded(tensor) and not tensor.is_meta and tensor.numel():
            key = (str(tensor.device), tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
        names.setdefault(key, []).append(name)
    return list(names.values())


def _plan(tensors: dict[str, Any], weights: WeightLease) -> list[tuple[Any, str]]:
    """What to write where: each of the module's tensors, and the name of its data in the version."""
    stored = {name: name for name in weights} | dict(weights.tied)
    specs = weights.tensors
    unknown = stored.keys() - tensors.keys()
    plan: list[tuple[Any, str]] = []
    for names in _names_by_tensor(tensors):
        tensor, published = tensors[names[0]], [name for name in names if name in stored]
        if tensor.is_meta:
            raise WeightsMismatch(f"{names[0]!r}: found a meta tensor in the module, expected one with memory")
        if not published:
            raise WeightsMismatch(f"version {weights.version} has no tensor {names[0]!r}, which the module has")
        for name in published:
            spec = specs[stored[name]]
            dtype = str(tensor.dtype).removeprefix("torch.")
            if spec.shape != tuple(tensor.shape) or spec.dtype != dtype:
                raise WeightsMismatch(
                    f"{name!r}: found {spec.dtype} {list(spec.shape)} in version {weights.version}, "
                    f"expected {dtype} {list(tensor.shape)} as in the module"
                )
        first, *others = dict.fromkeys(stored[name] for name in published)
        for other in others:
            if not _same_bytes(weights, first, other):
                raise WeightsMismatch(
                    f"{first!r} and {other!r} are tied in the module and differ in version {weights.version}"
                )
        plan.append((tensor, first))
    if unknown:
        raise WeightsMismatch(
            f"version {weights.version} has {len(unknown)} tensors that the module lacks, the first is {min(unknown)!r}"
        )
    return plan


def _same_bytes(weights: WeightLease, first: str, second: str) -> bool:
    import torch

    one, other = (weights[name].reshape(-1).view(torch.uint8) for name in (first, second))
    return bool(torch.equal(one, other))


def _overwrite(target: Any, source: Any) -> None:
    import torch

    with torch.no_grad():
        if _is_sharded(target):
            from torch.distributed.tensor import distribute_tensor

            # No source rank: each rank cuts its shard out of the full tensor that it has in front of it.
            shard = distribute_tensor(source, target.device_mesh, target.placements, src_data_rank=None)
            target.to_local().copy_(shard.to_local())
        else:
            target.copy_(source)


def _is_sharded(tensor: Any) -> bool:
    return callable(getattr(tensor, "full_tensor", None))
