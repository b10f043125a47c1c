"""Contract suites of the axes that no component owns: run them on your own class. Standard library only.

Each case is drawn from a seed; a failure's message names the seed. The base classes in `tailrace.contracts.policies` state
the rules.
"""

from tailrace.contracts.testing.batching import check_batching_policy
from tailrace.contracts.testing.provisioning import check_provisioning_policy
from tailrace.contracts.testing.reasons import check_reason
from tailrace.contracts.testing.training import check_training_policy

__all__ = ["check_batching_policy", "check_provisioning_policy", "check_reason", "check_training_policy"]
