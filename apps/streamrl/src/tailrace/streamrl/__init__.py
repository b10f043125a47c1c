"""StreamRL: generation and training beside each other, one step apart, with the longest responses dispatched by themselves."""

from tailrace.pipeline.config.app import App

APP = App(
    name="streamrl",
    paper="StreamRL: Scalable, Heterogeneous, and Elastic RL for LLMs with Disaggregated Stream Generation (2025)",
    package="tailrace.streamrl",
)

__version__ = "0.1.0"
__all__ = ["APP"]
