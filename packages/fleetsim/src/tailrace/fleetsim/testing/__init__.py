"""Checks for what plugs into the simulator: run them on your own."""

from tailrace.fleetsim.testing.paper import check_paper

__all__ = ["check_paper"]
