"""StaleFlow: a strict bound on staleness that is kept under every kind of rollout coordination."""

from tailrace.pipeline.config.app import App

APP = App(
    name="staleflow",
    paper="Unleashing Efficient Asynchronous RL Post-Training via Staleness-Constrained Rollout Coordination",
    package="tailrace.staleflow",
)

__version__ = "0.1.0"
__all__ = ["APP"]
