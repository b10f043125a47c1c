"""How long a run trained, from its log."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace import contracts as c
from tailrace.pipeline.run.eventlog import Instant


def training_seconds(log: Iterable[Instant]) -> float:
    """Seconds from the first version that replicas could pull to the last step; 0 if there was none."""
    first = last = None
    for instant in log:
        for event in instant.events:
            if isinstance(event, c.Published) and first is None:
                first = instant.now
            elif isinstance(event, c.Stepped):
                last = instant.now
    return last - first if first is not None and last is not None else 0.0
