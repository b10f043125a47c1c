"""Axis sync: when a replica pulls weights, and when it may be given work. Entry-point group ``tailrace.sync``."""

from tailrace.repack.sync.plain import Barrier, Interrupting, OnIdle
from tailrace.repack.sync.when_drained import WhenDrained
from tailrace.repack.sync.when_useful import WhenUseful

__all__ = ["Barrier", "Interrupting", "OnIdle", "WhenDrained", "WhenUseful"]
