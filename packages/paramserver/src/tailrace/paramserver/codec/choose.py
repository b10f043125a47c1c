"""Whether to encode the next chunk for a link, from measured speeds; the caller measures the seconds.

A chunk sent raw takes its bytes over the link's speed. An encoded one is encoded first, then its payload is sent, by one
thread. Encoding is used when that is faster by a margin.

What is not done is not measured, so now and then the other way is tried: as often as keeps the time lost to such probes,
by the same model, within a budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tailrace.paramserver.codec.registry import codec
from tailrace.paramserver.errors import ParamServerError

_KEPT = 0.75  # of the weight of all earlier observations, at each new one: the last nine make up 92 %
WARM_UP = 1  # observations that a later one replaces: they pay for imports, page faults and a link's slow start


class ObservationInvalid(ParamServerError, ValueError):  # noqa: N818  named for what happened, as in errors.py
    """An observation is impossible: negative bytes, or no time."""


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """The speed of a link: an exponentially weighted mean of observed transfers, each weighted by its size too.

    The mean is bytes over seconds, so it lies between the slowest and the fastest transfer observed. The first one is
    forgotten at the second.

    Args:
        weighted_bytes: bytes, newer ones at a higher weight.
        weighted_s: the seconds that they took, at the same weights.
        observed: how many there were.
    """

    weighted_bytes: float = 0.0
    weighted_s: float = 0.0
    observed: int = 0

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes per second; None if nothing was observed."""
        return self.weighted_bytes / self.weighted_s if self.weighted_bytes > 0 else None

    def observe(self, nbytes: int, seconds: float) -> LinkSpeed:
        """The estimate after one more transfer.

        Raises:
            ObservationInvalid: not more than 0 of either.
        """
        _check("a transfer", nbytes, seconds)
        kept = _kept(self.observed)
        return LinkSpeed(kept * self.weighted_bytes + nbytes, kept * self.weighted_s + seconds, self.observed + 1)


@dataclass(frozen=True, slots=True)
class CodecSpeed:
    """Seconds per byte of a codec, and the size of its output; weighted as in `LinkSpeed`.

    Args:
        weighted_bytes: weighted bytes of the chunks that were encoded.
        payload_bytes: bytes that were sent for them. A chunk that was not worth encoding was sent raw: its own size.
        encode_s: seconds that encoding took.
        encoded: how many there were.
    """

    weighted_bytes: float = 0.0
    payload_bytes: float = 0.0
    encode_s: float = 0.0
    encoded: int = 0

    @property
    def ratio(self) -> float | None:
        """Bytes sent per byte of a chunk; None if nothing was observed."""
        return self.payload_bytes / self.weighted_bytes if self.weighted_bytes > 0 else None

    @property
    def encode_bytes_per_s(self) -> float | None:
        """Bytes of chunks per second of encoding."""
        return self.weighted_bytes / self.encode_s if self.weighted_bytes > 0 else None

    def observe_encode(self, nbytes: int, payload_bytes: int | None, seconds: float) -> CodecSpeed:
        """The estimate after one more encoded chunk; a payload of None means that encoding did not pay.

        Raises:
            ObservationInvalid: not more than 0 bytes and seconds.
        """
        _check("an encoding", nbytes, seconds)
        sent, kept = nbytes if payload_bytes is None else payload_bytes, _kept(self.encoded)
        return replace(
            self,
            weighted_bytes=kept * self.weighted_bytes + nbytes,
            payload_bytes=kept * self.payload_bytes + sent,
            encode_s=kept * self.encode_s + seconds,
            encoded=self.encoded + 1,
        )


def _kept(observed: int) -> float:
    return 0.0 if observed <= WARM_UP else _KEPT


def _check(what: str, nbytes: int, seconds: float) -> None:
    if not (nbytes > 0 and 0 < seconds < float("inf")):
        raise ObservationInvalid(f"found {what} of {nbytes} bytes in {seconds} s, expected more than 0 of both")


MARGIN = 0.1  # encoding also takes a core: it must win by more than what measurements scatter
PROBE_BUDGET = 0.05  # of the time
PROBE_PAUSE = 16  # chunks between probes, however cheap they are


@dataclass(frozen=True, slots=True)
class CodecChoice:
    """The model's times for raw and for encoded chunks.

    Args:
        encode: whether to encode.
        raw_s: seconds for a byte sent raw.
        encoded_s: seconds for a byte sent encoded.
    """

    encode: bool
    raw_s: float
    encoded_s: float

    @property
    def better_s(self) -> float:
        """Seconds per byte in the chosen way."""
        return self.encoded_s if self.encode else self.raw_s

    @property
    def other_s(self) -> float:
        """Seconds for a byte, the other way."""
        return self.raw_s if self.encode else self.encoded_s


def choose(
    link_bytes_per_s: float,
    encode_bytes_per_s: float,
    ratio: float,
    *,
    margin: float = MARGIN,
) -> CodecChoice:
    """Whether encoding is faster than sending raw.

    Args:
        link_bytes_per_s: the link's speed.
        encode_bytes_per_s: bytes of chunks that are encoded in a second.
        ratio: bytes sent per byte of an encoded chunk.
        margin: share of the raw time that encoding must save at least.
    """
    raw_s = 1 / link_bytes_per_s
    encoded_s = 1 / encode_bytes_per_s + ratio / link_bytes_per_s
    return CodecChoice(encoded_s < raw_s * (1 - margin), raw_s, encoded_s)


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision for a chunk.

    Args:
        encode: whether to encode it.
        probe: whether this is done to learn how fast it is, and not because it is thought to be faster.
        choice: the model's choice; None while a speed is unknown.
    """

    encode: bool
    probe: bool
    choice: CodecChoice | None


@dataclass(frozen=True, slots=True)
class CodecChooser:
    """Decides for one link and one codec, chunk after chunk; a value, every method makes a new one.

        decision, chooser = chooser.decide(nbytes)
        chooser = chooser.sent_raw(nbytes, seconds)                           # or:
        chooser = chooser.sent_encoded(nbytes, payload_bytes, encode_s)

    Only raw chunks measure the link: a small payload disappears in a socket's buffer. A chunk that was encoded, found not
    worth it and sent raw is told to both, `sent_encoded` with None and `sent_raw`.

    Args:
        link: the link's speed so far.
        codec: the codec's speed and ratio so far.
        margin: see `choose`.
        probe_budget: part of the time that may be lost to probes.
        saved_s: seconds that may be lost now.
        since_probe: decisions since the last probe.
    """

    link: LinkSpeed = field(default_factory=LinkSpeed)
    codec: CodecSpeed = field(default_factory=CodecSpeed)
    margin: float = MARGIN
    probe_budget: float = PROBE_BUDGET
    saved_s: float = 0.0
    since_probe: int = 0

    @property
    def choice(self) -> CodecChoice | None:
        """The model's present times; None while a speed is unknown."""
        link, encode, ratio = self.link.bytes_per_s, self.codec.encode_bytes_per_s, self.codec.ratio
        if link is None or encode is None or ratio is None:
            return None
        return choose(link, encode, ratio, margin=self.margin)

    def decide(self, nbytes: int) -> tuple[Decision, CodecChooser]:
        """The decision for the next chunk, and the chooser that remembers it."""
        choice = self.choice
        if choice is None or min(self.link.observed, self.codec.encoded) <= WARM_UP:
            # The link first: raw is what always works. Then whichever was tried less.
            return Decision(self.link.observed > self.codec.encoded, True, choice), self
        lost_s = max(0.0, choice.other_s - choice.better_s) * nbytes
        if self.since_probe >= PROBE_PAUSE and self.saved_s >= lost_s:
            after = replace(self, saved_s=self.saved_s - lost_s, since_probe=0)
            return Decision(not choice.encode, True, choice), after
        saved_s = self.saved_s + self.probe_budget * choice.better_s * nbytes
        after = replace(self, saved_s=min(saved_s, max(lost_s, self.saved_s)), since_probe=self.since_probe + 1)
        return Decision(choice.encode, False, choice), after

    def sent_raw(self, nbytes: int, seconds: float) -> CodecChooser:
        """A chunk was sent raw.

        Raises:
            ObservationInvalid: not more than 0 bytes and seconds.
        """
        return replace(self, link=self.link.observe(nbytes, seconds))

    def sent_encoded(self, nbytes: int, payload_bytes: int | None, encode_s: float) -> CodecChooser:
        """A chunk of `nbytes` was encoded; None if that was not worth it and the chunk was then sent raw.

        Raises:
            ObservationInvalid: not more than 0 bytes and seconds.
        """
        return replace(self, codec=self.codec.observe_encode(nbytes, payload_bytes, encode_s))


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
