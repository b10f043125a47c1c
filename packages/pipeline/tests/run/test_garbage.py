"""Garbage in circles goes after a training step, and only then."""

import gc
import weakref

from tailrace import contracts as c
from tailrace.pipeline.run.launching.garbage import GarbageCollection


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
