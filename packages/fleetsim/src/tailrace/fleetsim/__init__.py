"""Fleets in virtual time: the production controller and policies, on devices that are modelled."""

from __future__ import annotations

from tailrace.contracts.lazy import loads_lazily

__version__ = "0.1.0"
__all__ = ["Result", "simulate", "simulate_into"]

__getattr__ = loads_lazily(__name__, __all__, ("results.result", "run", "results.run_directory"))
