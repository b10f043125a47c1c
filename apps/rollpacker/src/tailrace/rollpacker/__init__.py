"""RollPacker: on-policy training in rounds, whose longest responses wait for a round of their own."""

from tailrace.pipeline.config.app import App

APP = App(
    name="rollpacker",
    paper="RollPacker: Taming Long-Tail Rollouts for RL Post-Training with Tail Batching",
    package="tailrace.rollpacker",
)

__version__ = "0.1.0"
__all__ = ["APP"]
