"""What a judge is made of: its model, its template, its two tokens and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tailrace.reward.errors import JudgeError

DTYPES = ("auto", "float32", "bfloat16", "float16")


def names_a_file(template: str) -> bool:
    """Whether a template is the name of a file with it: one line that ends in ``.txt`` or ``.md``."""
    return "\n" not in template and template.endswith((".txt", ".md"))


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    """A judge: one forward pass of a causal language model, read at the last position.

    Args:
        model: directory (or hub name) of a Hugging Face causal language model and its tokenizer.
        template: text with ``{response}``, or a file with it; see `JudgeTemplate`.
        chat: whether the text becomes a user's message in the tokenizer's chat template.
        chat_options: arguments of the chat template, such as ``{"enable_thinking": False}``.
        yes: text of the token that speaks for the response; exactly one token, a space before it included.
        no: text of the token that speaks against it.
        threshold: None: the score is the probability of `yes` against `no`; else 1.0 if that is at least this, or 0.0.
        memory_bytes: most bytes of device memory for weights and activations; layers beyond it stay in host memory and are
            streamed. None: the whole model stays on the device. A CUDA context, about half a gigabyte, comes on top.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``; ``"auto"`` takes CUDA if available.
        dtype: the weights' type; ``"auto"`` takes the model's own.
        max_tokens: longest input in tokens, template included; None: as many positions as the model has. A longer input is
            not judged. Under a budget, the longest input decides how much must be kept free for activations.
        batch_items: most items of one forward pass.
        batch_tokens: most tokens of one forward pass with its padding; a longer single item makes a pass of its own.
        pipelined: whether the next layer is copied to the device while one computes; false copies each when its turn comes.
        threads: CPU threads of the judge's own process; 0: torch's default.
    """

    model: str
    template: str
    chat: bool = False
    chat_options: Mapping[str, Any] = field(default_factory=dict)
    yes: str = " yes"
    no: str = " no"
    threshold: float | None = None
    memory_bytes: int | None = None
    device: str = "auto"
    dtype: str = "auto"
    max_tokens: int | None = None
    batch_items: int = 16
    batch_tokens: int = 16_384
    pipelined: bool = True
    threads: int = 0

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "max_tokens", "batch_items", "batch_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise JudgeError(f"found {name} = {value} of a judge, expected at least 1")
        if self.threshold is not None and not 0 < self.threshold <= 1:
            raise JudgeError(f"found threshold = {self.threshold} of a judge, expected more than 0 and at most 1")
        if self.dtype not in DTYPES:
            raise JudgeError(f"found dtype = {self.dtype!r} of a judge, expected one of {', '.join(DTYPES)}")
        if self.threads < 0:
            raise JudgeError(f"found threads = {self.threads} of a judge, expected 0 or more")

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return asdict(self) | {"chat_options": dict(self.chat_options)}
