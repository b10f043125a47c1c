"""Which prompts will have the longest responses: a ranker that is trained, measured and updated (StreamRL, section 5.2).

Importing this loads neither torch nor numpy; the methods that need them import them when they learn.
"""

from tailrace.ranker.comparison import Comparison, compare
from tailrace.ranker.errors import (
    DamagedRankerError,
    ExampleError,
    MeasureError,
    PredictionError,
    RankerError,
    RankerModelError,
    RankerOptionError,
    UnknownMethodError,
)
from tailrace.ranker.example import Example
from tailrace.ranker.methods import Method, Predictor, Setting, method_names
from tailrace.ranker.prediction import Prediction, remaining_tokens
from tailrace.ranker.ranker import LengthRanker, Update
from tailrace.ranker.recall import ceiling20, recall, tau_b

__version__ = "0.1.0"
__all__ = [
    "Comparison",
    "DamagedRankerError",
    "Example",
    "ExampleError",
    "LengthRanker",
    "MeasureError",
    "Method",
    "RankerModelError",
    "RankerOptionError",
    "Prediction",
    "PredictionError",
    "Predictor",
    "RankerError",
    "Setting",
    "UnknownMethodError",
    "Update",
    "ceiling20",
    "compare",
    "method_names",
    "recall",
    "remaining_tokens",
    "tau_b",
]
