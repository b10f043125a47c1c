"""Estimates the speeds of a link and of a codec from observed transfers. Pure: the caller measures the seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
