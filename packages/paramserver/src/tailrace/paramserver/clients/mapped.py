"""A reader's mappings of its relay's shared memory."""

from __future__ import annotations

from tailrace.paramserver.errors import ProtocolError, RelayUnreachable
from tailrace.paramserver.machine.protocol import HostInterface, MemorySegment
from tailrace.paramserver.machine.segments import is_name


class MappedSegments:
    """Segments stay mapped from lease to lease, until the relay gives the name to other memory.

    Args:
        machine: the machine that they are on.
        writable: whether they are mapped for writing.
    """

    def __init__(self, machine: HostInterface, *, writable: bool = False) -> None:
        self._machine, self._writable = machine, writable
        self._mapped: dict[str, tuple[tuple[str, int], MemorySegment]] = {}

    def map(self, name: str, nonce: str, generation: object, nbytes: int, relay: str) -> MemorySegment:
        """The segment that a relay named.

        Args:
            nonce: the nonce of the relay's present incarnation.
            generation: the generation of the segment within that incarnation.
            nbytes: the size that it must have.
            relay: its address, for messages.

        Raises:
            ProtocolError: this cannot be the name of a segment.
            RelayUnreachable: there is none of this name here, or one that is too small.
        """
        if not is_name(name) or type(generation) is not int:
            raise ProtocolError(f"the relay {relay} named the segment {name[:40]!r}")
        key = (nonce, generation)
        known = self._mapped.get(name)
        if known is not None and known[0] == key and known[1].size >= nbytes:
            return known[1]
        if known is not None:
            known[1].close()
            del self._mapped[name]
        try:
            segment = self._machine.attach(name, writable=self._writable)
        except OSError as error:
            raise RelayUnreachable(
                f"cannot map the shared memory of the relay {relay}: {error}; is it on this host?"
            ) from error
        if segment.size < nbytes:
            segment.close()
            raise RelayUnreachable(f"the shared memory of the relay {relay} is too small; was it restarted?")
        self._mapped[name] = (key, segment)
        return segment

    def close(self) -> None:
        """Unmap everything once no tensor refers to it."""
        for _, segment in self._mapped.values():
            segment.close()
        self._mapped.clear()
