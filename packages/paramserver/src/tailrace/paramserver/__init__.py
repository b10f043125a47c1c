"""Weight versions for RL post-training: relays in shared memory, chain-pipelined broadcast, leases, resumable pulls.

Layouts and reshard plans are in `tailrace.paramserver.layout`, casts in `tailrace.paramserver.codec.cast`, engines and
frameworks in `tailrace.paramserver.bridges`.

A name's file is loaded when the name is first asked for: a relay's process is up without publishers, readers and groups.
"""

from typing import TYPE_CHECKING

from tailrace.contracts.lazy import loads_lazily

if TYPE_CHECKING:
    from tailrace.paramserver.chunk_size import (
        CHUNK_BYTES,
        broadcast_chunk_bytes,
        chain_broadcast_time_s,
        optimal_chunks,
    )
    from tailrace.paramserver.clients.lease_view import WeightLease
    from tailrace.paramserver.clients.needs import Needs
    from tailrace.paramserver.clients.publisher import Publisher
    from tailrace.paramserver.clients.reader import RelayReader
    from tailrace.paramserver.clients.share import Share, shares
    from tailrace.paramserver.errors import (
        AuthenticationFailed,
        ChunkDamaged,
        LeaseExpired,
        ManifestInvalid,
        NotEnoughSharedMemory,
        ParamServerError,
        PortInUse,
        ProtocolError,
        PublishTimeout,
        RelayNameTaken,
        RelayStartFailed,
        RelayTimeout,
        RelayUnreachable,
        SlotBusy,
        SourceBusy,
        TransportUnavailable,
        VersionNotYet,
        VersionRetired,
        VersionSuperseded,
    )
    from tailrace.paramserver.group.coordinator import MemberStatus, RelayState
    from tailrace.paramserver.group.relay_calls import RelayStatus, fetch, relay_status, set_chain
    from tailrace.paramserver.group.relay_group import RelayGroup
    from tailrace.paramserver.machine.segments import LeftSegments, left_segments, remove_left
    from tailrace.paramserver.manifest import Manifest, TensorSpec
    from tailrace.paramserver.relays.process import RelayProcess
    from tailrace.paramserver.relays.server import RelayServer
    from tailrace.paramserver.tensors import RawTensor
    from tailrace.paramserver.wire.authentication import new_token

__version__ = "0.1.0"
__all__ = [
    "AuthenticationFailed",
    "CHUNK_BYTES",
    "ChunkDamaged",
    "LeaseExpired",
    "LeftSegments",
    "Manifest",
    "ManifestInvalid",
    "RelayState",
    "MemberStatus",
    "Needs",
    "NotEnoughSharedMemory",
    "ParamServerError",
    "PortInUse",
    "ProtocolError",
    "PublishTimeout",
    "Publisher",
    "RawTensor",
    "RelayGroup",
    "RelayNameTaken",
    "RelayProcess",
    "RelayReader",
    "RelayServer",
    "RelayStartFailed",
    "RelayStatus",
    "RelayTimeout",
    "RelayUnreachable",
    "Share",
    "SlotBusy",
    "SourceBusy",
    "TensorSpec",
    "TransportUnavailable",
    "VersionNotYet",
    "VersionRetired",
    "VersionSuperseded",
    "WeightLease",
    "broadcast_chunk_bytes",
    "chain_broadcast_time_s",
    "fetch",
    "new_token",
    "optimal_chunks",
    "relay_status",
    "set_chain",
    "shares",
    "left_segments",
    "remove_left",
]

if not TYPE_CHECKING:
    __getattr__ = loads_lazily(
        __name__,
        __all__,
        (
            "errors",
            "chunk_size",
            "manifest",
            "wire.authentication",
            "tensors",
            "machine.segments",
            "relays.server",
            "relays.process",
            "clients.needs",
            "clients.share",
            "clients.lease_view",
            "clients.reader",
            "clients.publisher",
            "group.coordinator",
            "group.relay_calls",
            "group.relay_group",
        ),
    )
