"""The trainer's side of newer weights than its checkpoint's: they are read from the first source that has them.

sources ──who has the version?──► a lease, each chunk checked ──► `TrainingBackend.load` ──► given back
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tailrace.contracts import HeldWeights
from tailrace.paramserver import ParamServerError, RelayReader
from tailrace.paramserver.clients.lease_view import WeightLease
from tailrace.pipeline.roles.transfer import WeightTransfer
from tailrace.runtime.errors import CheckpointUnusableError

TAKEN_S = 60.0
"""Seconds until a source must have handed the weights over, for all sources together."""
_HOLD_S = 600.0
_LEAST_S = 1.0


@contextmanager
def taken(
    wanted: HeldWeights, token: str, transfer: WeightTransfer, timeout_s: float = TAKEN_S
) -> Iterator[tuple[WeightLease, str]]:
    """A lease on a version, and the address that it came from.

    Args:
        wanted: the version, and who may have it.
        token: shared secret of the run's peers.
        transfer: the transport.
        timeout_s: seconds for all sources together.

    Raises:
        CheckpointUnusableError: none of them hands it over whole.
        LeaseExpired: on leaving, if what was read may be a mixture.
    """
    reading, until, found = transfer.reading, time.monotonic() + timeout_s, list[str]()
    for source in wanted.sources:
        with ExitStack() as opened:
            reader = RelayReader(source, token=token, same_host=reading.same_host, transports=reading.transports)
            opened.enter_context(reader)
            try:
                there = reader.versions()
                if wanted.version not in there:
                    found.append(f"{source} has {', '.join(map(str, there)) or 'none'}")
                    continue
                left_s = max(_LEAST_S, until - time.monotonic())
                lease = opened.enter_context(reader.lease(wanted.version, timeout_s=left_s, hold_s=_HOLD_S))
            except ParamServerError as error:
                found.append(f"{source}: {error}")
                continue
            yield lease, source
            return
    raise CheckpointUnusableError(
        f"the weights of version {wanted.version} could not be taken from any of {len(wanted.sources)}: {'; '.join(found)}"
    )
