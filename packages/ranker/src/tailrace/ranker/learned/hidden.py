"""The method ``hidden``: a head on what the policy itself thinks of the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tailrace.contracts import extra
from tailrace.ranker.errors import RankerOptionError
from tailrace.ranker.example import Example
from tailrace.ranker.learned.options import HiddenOptions
from tailrace.ranker.methods import Setting

if TYPE_CHECKING:
    from tailrace.ranker.learned.hidden_states import HiddenPredictor


@dataclass(frozen=True, slots=True)
class Hidden(HiddenOptions):
    """Ranks by a small network on the last layer's state of the policy at the last token of the prompt.

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
