"""A paper's published tables beside what the simulator finds. What is a paper's own stands in its app."""

from tailrace.fleetsim.reproduce.paper import Found, OrderStatement, Paper, Parameters, TargetMeasure, reproduce
from tailrace.fleetsim.reproduce.points import Point, Setting, Toml
from tailrace.fleetsim.reproduce.probes import ProbeFindings
from tailrace.fleetsim.reproduce.records import PaperSummary, TargetRecord, summarise

__all__ = [
    "Found",
    "TargetMeasure",
    "ProbeFindings",
    "OrderStatement",
    "Paper",
    "Parameters",
    "Point",
    "TargetRecord",
    "Setting",
    "PaperSummary",
    "Toml",
    "reproduce",
    "summarise",
]
