"""The methods ``encoder``, ``hidden`` and ``sft``. What trains them is imported when it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tailrace.contracts import extra, need_extra
from tailrace.ranker.errors import RankerModelError, RankerOptionError
from tailrace.ranker.example import Example
from tailrace.ranker.learned.options import EncoderOptions, HiddenOptions, Objective, SftOptions
from tailrace.ranker.methods import Setting
from tailrace.ranker.saved import from_json

if TYPE_CHECKING:
    from tailrace.ranker.learned.encoding import EncoderPredictor
    from tailrace.ranker.learned.hidden_states import HiddenPredictor
    from tailrace.ranker.learned.writing import SftPredictor


@dataclass(frozen=True, slots=True)
class Encoder(EncoderOptions):
    """A transformer reads the prompt and puts out five quantiles of its lengths, whose mean is the score.

    Their order is learned from pairs or lists of samples, too. Truncated samples are censored in both.

    It is bidirectional, and trained from scratch: the defaults give 1.0 to 1.2 million parameters, by the tokens of the
    encoding, which is trained on the prompts. ``sft`` learns the same objectives with a given language model.

    Its options are those of `EncoderOptions`.
    """

    needs_samples: ClassVar[bool] = False
    quick: ClassVar[bool] = False

    def fit(self, examples: Sequence[Example], setting: Setting) -> EncoderPredictor:
        """Learn."""
        with extra("tailrace-ranker", "torch"):
            from tailrace.ranker.learned.encoding import fit_encoder
        return fit_encoder(self, examples, setting)

    def restore(self, files: Mapping[str, bytes], setting: Setting) -> EncoderPredictor:
        """Read what `fit` learned."""
        with extra("tailrace-ranker", "torch"):
            from tailrace.ranker.learned.encoding import restored
        return restored(self, files, setting)


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

    With `Setting.init` the model is that one, fine-tuned with LoRA; `objective` says what it learns. Otherwise a small Qwen3
    of this shape learns to write, from scratch: the defaults give 0.9 to 1.1 million parameters, by the tokens of the encoding,
    which is trained on the prompts.

    Its options are those of `SftOptions`.
    """

    needs_samples: ClassVar[bool] = False
    quick: ClassVar[bool] = False

    def alternatives(self, setting: Setting) -> Mapping[str, Sft]:
        """The objectives among which ``auto`` chooses, by name; none where there is nothing to choose.

        Raises: as `check`.
        """
        if setting.init is None or self.objective != "auto":
            return {}
        self.check(setting.init)
        return {objective: replace(self, objective=objective) for objective in self.objectives}

    def fit(self, examples: Sequence[Example], setting: Setting) -> SftPredictor | EncoderPredictor:
        """Learn.

        Raises:
            RankerModelError: `Setting.init` is no model directory, or its vocabulary lacks a digit.
            RankerOptionError: there is no time for a step of a given model, or no model for a head.
            MissingExtraError: PEFT is not installed, and a given model is to get adapters.
        """
        with extra("tailrace-ranker", "torch"):
            from tailrace.ranker.learned.encoding import fit_reader
            from tailrace.ranker.learned.writing import fit_sft
        return fit_sft(self, examples, setting) if self._writes else fit_reader(self, examples, setting)

    def restore(self, files: Mapping[str, bytes], setting: Setting) -> SftPredictor | EncoderPredictor:
        """Read what `fit` learned."""
        with extra("tailrace-ranker", "torch"):
            from tailrace.ranker.learned import encoding, writing
        return writing.restored(self, files, setting) if self._writes else encoding.restored(self, files, setting)

    def check(self, init: Path) -> None:
        """Check before anything is trained that a model can be fine-tuned.

        Raises:
            RankerModelError: the directory is no model's, or its vocabulary lacks a digit, and lengths are to be written.
            MissingExtraError: a library is not installed.
        """
        with extra("tailrace-ranker", "torch"):
            from tailrace.ranker.learned.text import TextCodec
        codec = TextCodec.of_model(init, self.most_tokens)
        if not (init / "config.json").is_file():
            raise RankerModelError(f"{init}: found no config.json, expected a model directory")
        if self._writes:
            codec.digits()
        if self.lora_rank:
            need_extra("tailrace-ranker", "adapters", "peft")

    def check_saved(self, files: Mapping[str, bytes], init: Path | None) -> None:
        """Check that `restore` would find the model that adapters are of, without loading it.

        Args:
            files: what `fit` learned.
            init: the model's directory; None if it is not known.

        Raises:
            DamagedRankerError: something else is there.
            RankerModelError: the directory holds another model.
            RankerOptionError: there are adapters, and no directory.
        """
        with extra("tailrace-ranker", "torch"):
            from tailrace.ranker.learned import encoding, writing
            from tailrace.ranker.learned.pretrained import Tuning, is_base
        about = from_json(files, writing.ABOUT if self._writes else encoding.ABOUT, "base")
        is_base(Tuning(self, init, 0), about["base"])

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives that a given model learns, one copy of it each: those among which ``auto`` chooses, or the one."""
        return _TRIED if self.objective == "auto" else (self.objective,)

    @property
    def learned(self) -> Objective:
        """The objective that `fit` learns."""
        return "write" if self.objective == "auto" else self.objective

    @property
    def _writes(self) -> bool:
        return self.learned == "write"


_TRIED: tuple[Objective, ...] = ("write", "quantiles", "pairwise")
