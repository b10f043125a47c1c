"""Errors of predicting lengths."""

from tailrace.contracts import TailraceError


class RankerError(TailraceError):
    """Root of this package's errors."""


class ExampleError(RankerError, ValueError):
    """There are no examples, too few of them, or one of them is malformed."""


class MeasureError(RankerError, ValueError):
    """A measure got scores and lengths that do not belong together, or a share that is none."""


class RankerOptionError(RankerError, ValueError):
    """An option is outside its range, or a method lacks the model that it needs."""


class UnknownMethodError(RankerError, LookupError):
    """No method has this name."""


class PredictionError(RankerError, ValueError):
    """A prediction is not one: a value is not finite, below one token, or its quantiles are the wrong way round."""


class DamagedRankerError(RankerError, ValueError):
    """A directory holds no ranker, or one that is incomplete or damaged."""


class RankerModelError(RankerError, ValueError):
    """A model directory does not hold a causal language model with a tokenizer that can be used here."""
