"""Workloads of simulated runs: prompts, response lengths, turns with an environment, rewards. Pure and seeded."""

from tailrace.fleetsim.workload.config import WorkloadConfig
from tailrace.fleetsim.workload.replayed import Recorded, read_trace
from tailrace.fleetsim.workload.workload import Description, ModelledSample, Spread, Workload

__all__ = ["Description", "Recorded", "ModelledSample", "Spread", "Workload", "WorkloadConfig", "read_trace"]
