"""Errors of the codecs and casts. They cross a connection as `ProtocolError`, with their message."""

# ruff: noqa: N818  the names say what happened; all of them are errors
from __future__ import annotations

from tailrace.paramserver.errors import ManifestInvalid, ParamServerError, ProtocolError


class PayloadMalformed(ProtocolError):
    """An encoded chunk is damaged, or is not for this chunk."""


class CodecUnknown(ProtocolError, LookupError):
    """A peer, or the caller, named a codec that does not exist."""


class CodecUnavailable(ParamServerError, ImportError):
    """A codec exists, but a library that it needs is not installed."""


class CastImpossible(ManifestInvalid):
    """A tensor cannot be cast, or a cast tensor cannot be restored."""
