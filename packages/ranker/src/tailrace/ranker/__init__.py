"""Which prompts will have the longest responses: a ranker that is trained, measured and updated (StreamRL, section 5.2).

Importing this loads neither torch nor numpy; the methods that need them import them when they learn.
"""

from tailrace.ranker.comparison import SPLIT, Comparison, compare
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
from tailrace.ranker.example import Example, check_lengths
from tailrace.ranker.learned.methods import Sft
from tailrace.ranker.methods import Method, Predictor, Setting, configured, method_names
from tailrace.ranker.prediction import Prediction, remaining_tokens
from tailrace.ranker.ranker import LengthRanker, Update, check_saved
from tailrace.ranker.recall import ceiling, ceiling20, recall, tau_b
from tailrace.ranker.saved import SavedNote, read_note

__version__ = "0.1.0"
__all__ = [
    "SPLIT",
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
    "SavedNote",
    "Setting",
    "Sft",
    "UnknownMethodError",
    "Update",
    "ceiling",
    "ceiling20",
    "check_lengths",
    "check_saved",
    "compare",
    "configured",
    "method_names",
    "read_note",
    "recall",
    "remaining_tokens",
    "tau_b",
]
