"""A model of a replica's engine: continuous batching, advanced from one change of the batch to the next in closed form."""

from tailrace.fleetsim.engine.engine import ModelledEngine
from tailrace.fleetsim.engine.state import DecodeTime, PrefillTime, Work

__all__ = ["DecodeTime", "ModelledEngine", "PrefillTime", "Work"]
