"""One rollout replica's engine: continuous batching, advanced from one batch change to the next in closed form."""

from tailrace.fleetsim.engine.costs import DecodeTime, PrefillTime
from tailrace.fleetsim.engine.engine import Engine
from tailrace.fleetsim.engine.work import Work

__all__ = ["DecodeTime", "Engine", "PrefillTime", "Work"]
