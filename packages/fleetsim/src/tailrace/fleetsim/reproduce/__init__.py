"""The published tables of Laminar and StaleFlow beside what the simulator finds."""

from tailrace.fleetsim.reproduce.paper import PAPERS, reproduce
from tailrace.fleetsim.reproduce.records import Record, Summary, summarise

__all__ = ["PAPERS", "Record", "Summary", "reproduce", "summarise"]
