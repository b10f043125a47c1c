"""Garbage in circles goes after a training step, and only then."""

import gc
import weakref

import pytest

from tailrace import contracts as c
from tailrace.pipeline.run.launching.garbage_collection import GarbageCollection


class Circle:
    def __init__(self):
        self.itself = self


def test_collects_after_a_step_and_leaves_what_lives_out_of_later_collections():
    collection = GarbageCollection()
    gc.disable()
    try:
        collection.tick(0.0, None)
        gone = weakref.ref(Circle())
        collection.observe(1.0, (c.Tick(),), (), None)
        collection.tick(1.0, None)
        assert gone() is not None
        collection.observe(2.0, (c.Stepped(1),), (), None)
        collection.tick(2.0, None)
        assert gone() is None
        assert gc.get_freeze_count() > 0
    finally:
        gc.enable()
        gc.unfreeze()


@pytest.mark.deep
def test_full_collections_take_a_hundredth_of_the_time_and_find_circles_that_died_frozen():
    now = [0.0]

    def clock():
        now[0] += 0.25  # so long a full collection takes
        return now[0]

    collection = GarbageCollection(clock)

    def step():
        collection.observe(0.0, (c.Stepped(1),), (), None)
        collection.tick(0.0, None)

    gc.disable()
    try:
        kept = Circle()
        step()  # a full one: 25 s until the next
        dead, young = weakref.ref(kept), weakref.ref(Circle())
        del kept
        now[0] = 10.0
        step()
        assert dead() is not None  # it was frozen while it lived
        assert young() is None
        now[0] = 26.0
        step()
        assert dead() is None
    finally:
        gc.enable()
        gc.unfreeze()
