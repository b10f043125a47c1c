"""The method ``encoder``: a transformer reads the prompt and puts out quantiles of its lengths, whose mean is the score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tailrace.contracts import extra
from tailrace.ranker.example import Example
from tailrace.ranker.learned.options import EncoderOptions
from tailrace.ranker.methods import Setting

if TYPE_CHECKING:
    from tailrace.ranker.learned.encoding import EncoderPredictor


@dataclass(frozen=True, slots=True)
class Encoder(EncoderOptions):
    """Ranks by the mean of five quantiles of the lengths; their order is learned from pairs or lists of samples, too.

    Truncated samples are censored in both.

    With `Setting.init` the transformer is that causal language model, whose shape is its own; otherwise a bidirectional one
    of this shape. The defaults give 1.0 to 1.2 million parameters, by the tokens
    of the encoding, which is trained on the prompts.

    Its options are those of `EncoderOptions`.
    """

    needs_samples: ClassVar[bool] = False
    quick: ClassVar[bool] = False

    def fit(self, examples: Sequence[Example], setting: Setting) -> EncoderPredictor:
        """Learn.

        Raises:
            RankerModelError: `Setting.init` is no model directory.
        """
        with extra("tailrace-ranker", "torch"):
            from tailrace.ranker.learned.encoding import fit_encoder
        return fit_encoder(self, examples, setting)

    def restore(self, files: Mapping[str, bytes], setting: Setting) -> EncoderPredictor:
        """Read what `fit` learned."""
        del setting
        with extra("tailrace-ranker", "torch"):
            from tailrace.ranker.learned.encoding import restored
        return restored(self, files)
