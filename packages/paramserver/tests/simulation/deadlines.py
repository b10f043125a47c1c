"""Deadlines, checked in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from simulation.world import World


@contextmanager
def within(world: World, seconds: float, what: str) -> Iterator[None]:
    """What happens in here must be over in so many seconds of virtual time, whatever becomes of it."""
    scheduler = world.scheduler
    process, start = scheduler.current.process, scheduler.now
    suspended_before = process.suspended_s
    try:
        yield
    finally:
        took = scheduler.now - start - (process.suspended_s - suspended_before)
        if not process.dead and took > seconds + 1e-6:
            scheduler.fail(f"{process.name}: {what} took {took:.3f} s, which is over its deadline of {seconds:.3f} s")
