"""The transport and codec of weights between trainer, relays and replicas, from `[relay]` of the configuration.

A trainer that restarts may take newer weights than its checkpoint's, from the first source that has them:

    sources ──who has the version?──► a lease, each chunk checked ──► `TrainingBackend.load` ──► given back
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from tailrace.contracts import HeldWeights
from tailrace.paramserver import ParamServerError, RelayReader
from tailrace.paramserver.clients.lease_view import LeasedWeights, WeightLease
from tailrace.paramserver.clients.origin import RelayOrigin
from tailrace.paramserver.codec.cast import Cast, restore, through
from tailrace.paramserver.codec.registry import available
from tailrace.paramserver.codec.registry import codec as load_codec
from tailrace.paramserver.transport.protocol import load as load_transport
from tailrace.runtime.errors import CheckpointUnusableError

Codec = Literal["auto", "none", "delta", "bf16", "fp8"]
NODE = "node"
"""The host that stands for each machine's own address in the Ray cluster."""
_CASTS = {"bf16": "bfloat16", "fp8": "float8_e4m3fn"}
_RESTORED = "float32"  # represents every value of every cast exactly; an engine converts it to its own dtype


@dataclass(frozen=True, slots=True)
class SendOptions:
    """What a `Publisher` and a relay are told; see `Publisher`."""

    transports: tuple[str, ...] | None
    codecs: tuple[str, ...]
    always_encode: bool = False


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a `RelayReader` is told; see there."""

    transports: tuple[str, ...] = ()
    same_host: bool | None = None


@dataclass(frozen=True, slots=True)
class WeightTransfer:
    """The transport and the codec of a run, the same for all members.

    Args:
        transport: `shm` shares memory between processes of one machine, and uses the relays' own connections between
            machines. Any other transport is used everywhere, also between processes of one machine.
        codec: `auto` sends exact deltas between relays whose connection is so slow that this is faster. `delta` sends them over
            every connection, from the trainer too, which keeps one more copy of its weights for that. `none` sends all bytes.
            `bf16` and `fp8` lose precision: the trainer casts the weights that it publishes, and replicas widen them again.
        host: address under which relays reach this process; ``"node"`` is this machine's address in the Ray cluster.
    """

    transport: str = "shm"
    codec: Codec = "auto"
    host: str = "127.0.0.1"

    def check(self, ranks: int = 1) -> None:
        """Check that transport and codec can be used here, and together.

        Args:
            ranks: number of trainer processes.

        Raises:
            ParamServerError: the transport, or a library that it or the codec needs, is not installed.
            ValueError: they cannot be combined.
        """
        load_transport(self.transport)
        if self.codec == "fp8" and ranks > 1:
            raise ValueError("found codec 'fp8' with several trainer processes, expected one: it scales whole rows")
        if self.codec == "delta":
            load_codec("delta")
            if self.transport != "shm":
                raise ValueError(
                    f"found codec 'delta' with transport {self.transport!r}, expected transport 'shm': a delta travels on the "
                    "relays' own connections"
                )

    @property
    def address(self) -> str:
        """The address under which others reach this process."""
        if self.host != NODE:
            return self.host
        import ray

        return str(ray.util.get_node_ip_address())

    @property
    def sending(self) -> SendOptions:
        """How a publisher and a relay send."""
        if self.codec == "delta":
            return SendOptions((), ("delta",), always_encode=True)
        codecs = () if self.codec == "none" else available()
        return SendOptions(None if self.transport == "shm" else (self.transport,), codecs)

    @property
    def reading(self) -> ReadOptions:
        """How a replica reads from its relay."""
        return ReadOptions() if self.transport == "shm" else ReadOptions((self.transport,), same_host=False)

    def cast(self, weights: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
        """The trainer's weights as it publishes them."""
        return Cast(_CASTS[self.codec]).apply(weights) if self.codec in _CASTS else weights

    def restored(self, published: WeightLease, origin: RelayOrigin | None = None) -> Iterable[tuple[str, Any]]:
        """The weights of a version: `SlicedWeights`, or whole tensors where a cast is undone.

        Args:
            published: a lease on the version.
            origin: where other processes of this machine can read it.
        """
        return restore(published, _RESTORED) if self.codec in _CASTS else LeasedWeights(published, origin)

    def as_published(self, weights: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
        """Weights from a checkpoint, changed as they would be if a relay had delivered them."""
        if self.codec not in _CASTS:
            return weights
        return restore(through(Cast(_CASTS[self.codec]), weights), _RESTORED)


TAKEN_S = 60.0
"""Seconds until a source must have handed the weights over, for all sources together."""
_HOLD_S = 600.0
_LEAST_S = 1.0


@contextmanager
def taken(
    wanted: HeldWeights, token: str, transfer: WeightTransfer, timeout_s: float = TAKEN_S
) -> Iterator[tuple[WeightLease, str]]:
    """A lease on a version, and the address that it came from.

    Args:
        wanted: the version, and who may have it.
        token: shared secret of the run's peers.
        transfer: the transport.
        timeout_s: seconds for all sources together.

    Raises:
        CheckpointUnusableError: none of them hands it over whole.
        LeaseExpired: on leaving, if what was read may be a mixture.
    """
    reading, until, found = transfer.reading, time.monotonic() + timeout_s, list[str]()
    for source in wanted.sources:
        with ExitStack() as opened:
            reader = RelayReader(source, token=token, same_host=reading.same_host, transports=reading.transports)
            opened.enter_context(reader)
            try:
                there = reader.versions()
                if wanted.version not in there:
                    found.append(f"{source} has {', '.join(map(str, there)) or 'none'}")
                    continue
                left_s = max(_LEAST_S, until - time.monotonic())
                lease = opened.enter_context(reader.lease(wanted.version, timeout_s=left_s, hold_s=_HOLD_S))
            except ParamServerError as error:
                found.append(f"{source}: {error}")
                continue
            yield lease, source
            return
    raise CheckpointUnusableError(
        f"the weights of version {wanted.version} could not be taken from any of {len(wanted.sources)}: {'; '.join(found)}"
    )
