"""Codecs by name."""

from __future__ import annotations

from tailrace.paramserver.codec.delta import DeltaCodec
from tailrace.paramserver.codec.errors import CodecUnavailable, CodecUnknown
from tailrace.paramserver.codec.protocol import Codec

_CODECS: dict[str, Codec] = {built_in.name: built_in for built_in in (DeltaCodec(),)}


def codec(name: object) -> Codec:
    """The codec of a name; the name may come from a peer.

    Raises:
        CodecUnknown: there is none.
        CodecUnavailable: it needs something that is not installed here.
    """
    found = _CODECS.get(name) if isinstance(name, str) else None
    if found is None:
        raise CodecUnknown(f"found the codec {str(name)[:40]!r}, expected one of {', '.join(sorted(_CODECS))}")
    missing = found.unavailable()
    if missing is not None:
        raise CodecUnavailable(f"the codec {found.name!r} cannot be used here: {missing}")
    return found


def available() -> tuple[str, ...]:
    """Names of the codecs that can be used here, sorted, to offer to a peer."""
    return tuple(sorted(name for name, found in _CODECS.items() if found.unavailable() is None))
