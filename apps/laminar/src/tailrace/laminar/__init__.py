"""Laminar: trajectory-level asynchrony, relays for weights and repacking of the long tail."""

from tailrace.pipeline.config.app import App

APP = App(
    name="laminar",
    paper="Laminar: A Scalable Asynchronous RL Post-Training Framework (EuroSys 2026)",
    package="tailrace.laminar",
)

__version__ = "0.1.0"
__all__ = ["APP"]
