"""Decides whether the sender encodes a chunk, from measurements on this connection."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.paramserver.codec.choose import CodecChooser
from tailrace.paramserver.codec.registry import codec
from tailrace.paramserver.errors import ParamServerError


class LinkEncoder:
    """The codecs of one sender towards one receiver. It remembers how fast they and the link are, from version to version.

    Args:
        now: clock.
        always: encode whatever becomes smaller by it, however long it takes.
    """

    def __init__(self, now: Callable[[], float], *, always: bool = False) -> None:
        self._now, self._always = now, always
        self._choosers: dict[str, CodecChooser] = {}

    def encode(self, name: str, base: memoryview, chunk: memoryview) -> bytes | None:
        """The bytes to send instead of a chunk; None if raw seems faster."""
        # One thread encodes and sends, one after the other.
        decision, chooser = self._choosers.get(name, CodecChooser()).decide(chunk.nbytes)
        payload = None
        if decision.encode or self._always:
            began = self._now()
            try:
                payload = codec(name).encode(base, chunk)
            except ParamServerError:  # it became unavailable: raw always works
                payload = None
            took = self._now() - began
            if took > 0 and chunk.nbytes > 0:
                chooser = chooser.sent_encoded(chunk.nbytes, None if payload is None else len(payload), took)
        self._choosers[name] = chooser
        return payload

    def sent_raw(self, name: str, nbytes: int, seconds: float) -> None:
        """A chunk that could have been encoded went raw, and took so long to send."""
        if seconds > 0 and nbytes > 0:
            chooser = self._choosers.get(name, CodecChooser())
            self._choosers[name] = chooser.sent_raw(nbytes, seconds)

    @property
    def now(self) -> Callable[[], float]:
        """Its clock."""
        return self._now
