"""Fleets in virtual time: the production controller and policies, on devices that are modelled."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["Result", "simulate", "simulate_into"]


def __getattr__(name: str) -> Any:
    if name == "simulate":
        from tailrace.fleetsim.run import simulate

        return simulate
    if name == "simulate_into":
        from tailrace.fleetsim.results.run_directory import simulate_into

        return simulate_into
    if name == "Result":
        from tailrace.fleetsim.results.result import Result

        return Result
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
