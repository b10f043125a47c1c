"""Cost models of decoding, prefill, training and moving weights on a device, in seconds."""

from tailrace.fleetsim.cost.capacity import kv_capacity_tokens
from tailrace.fleetsim.cost.decode import DecodeCost, PrefillCost, fit_coefficients, profile_samples, throughput_error
from tailrace.fleetsim.cost.training import TrainingCost
from tailrace.fleetsim.cost.weights import TENSOR_S, HandOverCost, WeightCost

__all__ = [
    "DecodeCost",
    "HandOverCost",
    "PrefillCost",
    "TENSOR_S",
    "TrainingCost",
    "WeightCost",
    "fit_coefficients",
    "kv_capacity_tokens",
    "profile_samples",
    "throughput_error",
]
