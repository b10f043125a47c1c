"""Contract suite for admission policies: run it on your own class. Standard library only; a failure names its seed."""

from tailrace.staleness.testing.admission import HoldingSampler, RandomSampler, check_admission_policy

__all__ = ["HoldingSampler", "RandomSampler", "check_admission_policy"]
