"""The method ``sft``: a causal language model learns to write the length behind the prompt (StreamRL, section 5.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tailrace.contracts import extra
from tailrace.ranker.example import Example
from tailrace.ranker.learned.options import SftOptions
from tailrace.ranker.methods import Setting

if TYPE_CHECKING:
    from tailrace.ranker.learned.writing import SftPredictor


@dataclass(frozen=True, slots=True)
class Sft(SftOptions):
    """Ranks by the lengths that a fine-tuned causal language model would write: their mean, up to the longest seen.

    The length stands behind the prompt in decimal digits, as many for each, so that digit by digit the model gives the whole
    distribution: its quantiles are read off exactly, where the paper decodes one number, and the mean is that of five of
    them. The median alone would not tell prompts apart of which most responses are truncated. A truncated sample is learned as
    "at least so many", whose probability the same digits give.

    With `Setting.init` the model is that one, fine-tuned; otherwise a small Qwen3 of this shape, from scratch: the defaults
    give 0.9 to 1.1 million parameters, by the tokens of the encoding, which is trained on the prompts.

    Its options are those of `SftOptions`.
    """

    needs_samples: ClassVar[bool] = False
    quick: ClassVar[bool] = False

    def fit(self, examples: Sequence[Example], setting: Setting) -> SftPredictor:
        """Learn.

        Raises:
            RankerModelError: `Setting.init` is no model directory, or its vocabulary lacks a digit.
        """
        with extra("tailrace-ranker", "torch"):
            from tailrace.ranker.learned.writing import fit_sft
        return fit_sft(self, examples, setting)

    def restore(self, files: Mapping[str, bytes], setting: Setting) -> SftPredictor:
        """Read what `fit` learned."""
        del setting
        with extra("tailrace-ranker", "torch"):
            from tailrace.ranker.learned.writing import restored
        return restored(self, files)
