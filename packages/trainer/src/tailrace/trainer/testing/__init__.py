"""For tests of a backend: its contract, random experiences, and a slow, simple reference of the loss.

class TestMyBackend(BackendContract):
    def build(self, model_path, config):
        return MyBackend(model_path, config, rank=0, world_size=1, rendezvous=None)

check_loss(MyLoss()), check_advantages(MyAdvantages())
"""

from tailrace.trainer.testing.contract import BackendContract, build_value_model, inside
from tailrace.trainer.testing.experiences import PackedData, make_experiences
from tailrace.trainer.testing.plugin_checks import check_advantages, check_loss
from tailrace.trainer.testing.reference import (
    ReferenceEstimates,
    reference_estimates,
    reference_loss,
    reference_objective,
    reference_value_loss,
)

__all__ = [
    "BackendContract",
    "PackedData",
    "ReferenceEstimates",
    "build_value_model",
    "check_advantages",
    "check_loss",
    "inside",
    "make_experiences",
    "reference_estimates",
    "reference_loss",
    "reference_objective",
    "reference_value_loss",
]
