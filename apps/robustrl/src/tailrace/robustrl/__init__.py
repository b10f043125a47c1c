"""RobustRL: generation and training one step apart, and only the role that failed restarts."""

from tailrace.pipeline.config.app import App

APP = App(
    name="robustrl",
    paper="Role-Based Fault Tolerance System for LLM RL Post-Training (2025)",
    package="tailrace.robustrl",
)

__version__ = "0.1.0"
__all__ = ["APP"]
