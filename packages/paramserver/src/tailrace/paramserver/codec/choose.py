"""Whether to encode the next chunk for a link, from measured speeds. Pure and deterministic.

A chunk sent raw takes its bytes over the link's speed. An encoded one passes three stages: it is encoded, the payload is
sent, and it is decoded. Where the stages of successive chunks overlap, the slowest stage sets the pace; where they do
not, their sum does. Encoding is used when its pace is better by a margin.

What is not done is not measured, so now and then the other way is tried: as often as keeps the time lost to such probes,
by the same model, within a budget.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tailrace.paramserver.codec.speed import WARM_UP, CodecSpeed, LinkSpeed

MARGIN = 0.1  # encoding also takes a core: it must win by more than what measurements scatter
PROBE_BUDGET = 0.05  # of the time
PROBE_PAUSE = 16  # chunks between probes, however cheap they are


@dataclass(frozen=True, slots=True)
class Choice:
    """What the model says of both ways.

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
        """Seconds for a byte, the way that was chosen."""
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
    decode_bytes_per_s: float | None = None,
    overlapped: bool = True,
    margin: float = MARGIN,
) -> Choice:
    """Whether encoding is faster than sending raw.

    Args:
        link_bytes_per_s: the link's speed.
        encode_bytes_per_s: bytes of chunks that are encoded in a second.
        ratio: bytes sent per byte of an encoded chunk.
        decode_bytes_per_s: bytes of chunks that are decoded in a second; None leaves decoding out.
        overlapped: whether one chunk is encoded while the one before is sent.
        margin: by what part of the raw time encoding must win.
    """
    raw_s = 1 / link_bytes_per_s
    stages = [1 / encode_bytes_per_s, ratio / link_bytes_per_s]
    if decode_bytes_per_s is not None:
        stages.append(1 / decode_bytes_per_s)
    encoded_s = max(stages) if overlapped else sum(stages)
    return Choice(encoded_s < raw_s * (1 - margin), raw_s, encoded_s)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a chunk.

    Args:
        encode: whether to encode it.
        probe: whether this is done to learn how fast it is, and not because it is thought to be faster.
        choice: what the model says; None while a speed is unknown.
    """

    encode: bool
    probe: bool
    choice: Choice | None


@dataclass(frozen=True, slots=True)
class CodecChooser:
    """Decides for one link and one codec, chunk after chunk; a value, every method makes a new one.

        decision, chooser = chooser.decide(nbytes)
        chooser = chooser.sent_raw(nbytes, seconds)                           # or:
        chooser = chooser.sent_encoded(nbytes, payload_bytes, encode_s)       # and, if the receiver tells:
        chooser = chooser.decoded(nbytes, decode_s)

    Only raw chunks measure the link: a small payload disappears in a socket's buffer. A chunk that was encoded, found not
    worth it and sent raw is told to both, `sent_encoded` with None and `sent_raw`.

    Args:
        link: the link's speed so far.
        codec: the codec's speed and ratio so far.
        overlapped: whether one chunk is encoded while the one before is sent.
        margin: see `choose`.
        probe_budget: part of the time that may be lost to probes.
        saved_s: seconds that may be lost now.
        since_probe: decisions since the last probe.
    """

    link: LinkSpeed = field(default_factory=LinkSpeed)
    codec: CodecSpeed = field(default_factory=CodecSpeed)
    overlapped: bool = True
    margin: float = MARGIN
    probe_budget: float = PROBE_BUDGET
    saved_s: float = 0.0
    since_probe: int = 0

    @property
    def choice(self) -> Choice | None:
        """What the model says now; None while a speed is unknown."""
        link, encode, ratio = self.link.bytes_per_s, self.codec.encode_bytes_per_s, self.codec.ratio
        if link is None or encode is None or ratio is None:
            return None
        return choose(
            link,
            encode,
            ratio,
            decode_bytes_per_s=self.codec.decode_bytes_per_s,
            overlapped=self.overlapped,
            margin=self.margin,
        )

    def decide(self, nbytes: int) -> tuple[Decision, CodecChooser]:
        """What to do with the next chunk, and the chooser that remembers it."""
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

    def decoded(self, nbytes: int, decode_s: float) -> CodecChooser:
        """The receiver says how long it took to decode a chunk.

        Raises:
            ObservationInvalid: not more than 0 bytes and seconds.
        """
        return replace(self, codec=self.codec.observe_decode(nbytes, decode_s))
