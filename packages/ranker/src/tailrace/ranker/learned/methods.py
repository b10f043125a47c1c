"""The methods ``encoder``, ``hidden`` and ``sft``. What trains them is imported when it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tailrace.contracts import extra
from tailrace.ranker.errors import RankerOptionError
from tailrace.ranker.example import Example
from tailrace.ranker.learned.options import EncoderOptions, HiddenOptions, SftOptions
from tailrace.ranker.methods import Setting

if TYPE_CHECKING:
    from tailrace.ranker.learned.encoding import EncoderPredictor
    from tailrace.ranker.learned.hidden_states import HiddenPredictor
    from tailrace.ranker.learned.writing import SftPredictor


@dataclass(frozen=True, slots=True)
class Encoder(EncoderOptions):
    """A transformer reads the prompt and puts out five quantiles of its lengths, whose mean is the score.

    Their order is learned from pairs or lists of samples, too. Truncated samples are censored in both.

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


@dataclass(frozen=True, slots=True)
class Hidden(HiddenOptions):
    """A small network on the last layer's state of the policy at the last token of the prompt.

    The policy, `Setting.policy`, is not changed. It is not part of what is saved: a saved ranker remembers where it was.

    Its options are those of `HiddenOptions`.
    """

    needs_samples: ClassVar[bool] = False
    quick: ClassVar[bool] = False

    def fit(self, examples: Sequence[Example], setting: Setting) -> HiddenPredictor:
        """Learn.

        Raises:
            RankerOptionError: there is no `Setting.policy`.
            RankerModelError: it is no model directory.
        """
        if setting.policy is None:
            raise RankerOptionError("found no policy, expected the directory of the model that generates the responses")
        with extra("tailrace-ranker", "torch"):
            from tailrace.ranker.learned.hidden_states import fit_hidden
        return fit_hidden(self, examples, setting)

    def restore(self, files: Mapping[str, bytes], setting: Setting) -> HiddenPredictor:
        """Read what `fit` learned. The policy is read when something is predicted."""
        with extra("tailrace-ranker", "torch"):
            from tailrace.ranker.learned.hidden_states import restored
        return restored(self, files, setting)


@dataclass(frozen=True, slots=True)
class Sft(SftOptions):
    """A causal language model learns to write the length behind the prompt (StreamRL, section 5.2).

    The score is the mean of the lengths that it would write, up to the longest seen. The length stands behind the prompt in
    decimal digits, as many for each, so that digit by digit the model gives the whole distribution: its quantiles are read off
    exactly, where the paper decodes one number, and the mean is that of five of them. The median alone would not tell prompts
    apart of which most responses are truncated. A truncated sample is learned as "at least so many", whose probability the
    same digits give.

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
