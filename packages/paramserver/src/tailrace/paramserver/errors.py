"""Every error of this package. Errors with a wire name cross a connection by name and message; nothing else does."""

from __future__ import annotations

from tailrace.contracts import TailraceError

# ruff: noqa: N818  the names say what happened; all of them are errors


class ParamServerError(TailraceError):
    """Root of the errors of this package."""


class ManifestInvalid(ParamServerError, ValueError):
    """A manifest, or the weights to make one from, cannot be accepted."""


class ProtocolError(ParamServerError, ValueError):
    """A peer sent something that is not part of the protocol."""


class AuthenticationFailed(ParamServerError, PermissionError):
    """The two ends of a connection do not hold the same token."""


class RelayUnreachable(ParamServerError, ConnectionError):
    """A relay cannot be connected to, or the connection to it broke."""


class PeerClosed(RelayUnreachable):
    """The other end closed the connection."""


class RelayTimeout(ParamServerError, TimeoutError):
    """A peer stayed silent for longer than it may."""


class RelayStartFailed(ParamServerError, RuntimeError):
    """A relay process ended before it served."""


class PortInUse(ParamServerError, OSError):
    """Another process listens on the port."""


class RelayNameTaken(ParamServerError, FileExistsError):
    """A living relay on this host has the same name."""


class NotEnoughSharedMemory(ParamServerError, MemoryError):
    """A version does not fit in shared memory."""


class ChunkDamaged(ParamServerError, ValueError):
    """The bytes of a chunk do not match its checksum."""


class VersionRetired(ParamServerError, LookupError):
    """The relay no longer holds the version."""


class VersionNotYet(ParamServerError, TimeoutError):
    """The version did not become visible in time."""


class SourceBusy(VersionNotYet):
    """The relay has the version and sends it to others: it had no turn in time."""


class SlotBusy(ParamServerError, TimeoutError):
    """The slot that a new version needs stayed leased for longer than the writer may wait."""


class LeaseExpired(ParamServerError, TimeoutError):
    """A lease was held past its deadline, and its memory can no longer be trusted."""


class VersionSuperseded(ParamServerError, RuntimeError):
    """A newer version took the place of this one before it was pushed."""


class TransportUnavailable(ParamServerError, RuntimeError):
    """A transport cannot be used here: unknown, not installed, or not made for this memory or platform."""


class PublishTimeout(ParamServerError, TimeoutError):
    """A version did not become visible on the master relay in time."""


_WIRE: dict[str, type[ParamServerError]] = {
    kind.__name__: kind
    for kind in (
        ManifestInvalid,
        ProtocolError,
        AuthenticationFailed,
        RelayUnreachable,
        RelayTimeout,
        PortInUse,
        RelayNameTaken,
        NotEnoughSharedMemory,
        ChunkDamaged,
        VersionRetired,
        VersionNotYet,
        SourceBusy,
        SlotBusy,
        LeaseExpired,
        TransportUnavailable,
    )
}


def to_wire(error: ParamServerError) -> dict[str, str]:
    """The error as a JSON object: its message, and its wire name or that of the nearest kind of error that has one."""
    names = (kind.__name__ for kind in type(error).__mro__)
    return {"error": next((name for name in names if name in _WIRE), "ProtocolError"), "message": str(error)}


def from_wire(data: dict[str, object]) -> ParamServerError:
    """The error that `to_wire` described; an unknown name becomes a `ProtocolError`."""
    return _WIRE.get(str(data.get("error")), ProtocolError)(str(data.get("message", "no message")))


class BridgeError(ParamServerError):
    """Root of the errors of the bridges."""


class WeightsMismatch(BridgeError, ValueError):
    """A version and a model do not fit: a tensor is missing, unknown, or of another shape or dtype."""


class EngineUnreachable(BridgeError, ConnectionError):
    """An engine does not answer, or the connection to it broke."""


class EngineTimeout(BridgeError, TimeoutError):
    """An engine did not do its part before the deadline."""


class EngineRefused(BridgeError, RuntimeError):
    """An engine answered that it did not do what it was asked."""


class BridgeStateInvalid(BridgeError, RuntimeError):
    """A call came out of turn, or with settings that cannot work."""


class PayloadMalformed(ProtocolError):
    """An encoded chunk is damaged, or is not for this chunk."""


class CodecUnknown(ProtocolError, LookupError):
    """A peer, or the caller, named a codec that does not exist."""


class CodecUnavailable(ParamServerError, ImportError):
    """A codec exists, but a library that it needs is not installed."""


class CastImpossible(ManifestInvalid):
    """A tensor cannot be cast, or a cast tensor cannot be restored."""


class LayoutInvalid(ParamServerError, ValueError):
    """A layout does not describe its model: a tensor is not covered, boxes overlap or stick out, a dtype or shape differs."""


class LayoutMismatch(ParamServerError, ValueError):
    """Two layouts, or a layout and the memory that it describes, do not fit together."""
