"""Deterministic simulation testing: random pipelines, fleets and faults, with the invariants checked at every event."""

from tailrace.fuzz.campaign import BrokenCase, Findings, fuzz, replay
from tailrace.fuzz.case import Case
from tailrace.fuzz.draw import draw_case
from tailrace.fuzz.errors import CaseError, FuzzError, InvariantError
from tailrace.fuzz.trial import Trial, Violation, run_case

__version__ = "0.1.0"
__all__ = [
    "Case",
    "CaseError",
    "Violation",
    "BrokenCase",
    "Findings",
    "FuzzError",
    "InvariantError",
    "Trial",
    "draw_case",
    "fuzz",
    "replay",
    "run_case",
]
