"""Weight versions for RL post-training: relays in shared memory, chain-pipelined broadcast, leases and checksums."""

from tailrace.paramserver.clients.lease_view import WeightLease
from tailrace.paramserver.clients.publisher import Publisher
from tailrace.paramserver.clients.reader import RelayReader
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
    VersionNotYet,
    VersionRetired,
    VersionSuperseded,
)
from tailrace.paramserver.group.broadcast_time import chain_broadcast_time_s, optimal_chunks
from tailrace.paramserver.group.chain import RelayStatus, relay_status, set_chain
from tailrace.paramserver.manifest import CHUNK_BYTES, Manifest, TensorSpec
from tailrace.paramserver.relays.process import RelayProcess
from tailrace.paramserver.relays.server import RelayServer
from tailrace.paramserver.tensors import RawTensor
from tailrace.paramserver.wire.authentication import new_token

__all__ = [
    "AuthenticationFailed",
    "CHUNK_BYTES",
    "ChunkDamaged",
    "LeaseExpired",
    "Manifest",
    "ManifestInvalid",
    "NotEnoughSharedMemory",
    "ParamServerError",
    "PortInUse",
    "ProtocolError",
    "PublishTimeout",
    "Publisher",
    "RawTensor",
    "RelayNameTaken",
    "RelayProcess",
    "RelayReader",
    "RelayServer",
    "RelayStartFailed",
    "RelayStatus",
    "RelayTimeout",
    "RelayUnreachable",
    "SlotBusy",
    "TensorSpec",
    "VersionNotYet",
    "VersionRetired",
    "VersionSuperseded",
    "WeightLease",
    "chain_broadcast_time_s",
    "new_token",
    "optimal_chunks",
    "relay_status",
    "set_chain",
]
