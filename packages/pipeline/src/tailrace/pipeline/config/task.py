"""The table `task` of a configuration file: what is learned, and from which prompts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator

from tailrace.pipeline.config.fields import STRICT, FilePath, Positive, Share, as_tuple

_OF_THE_CALL = {
    *("conversation", "messages", "tokenize", "chat_template", "continue_final_message", "padding", "truncation"),
    *("max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
}
"""Arguments with which a template is rendered, and no variables of it."""


class _Strict(BaseModel):
    model_config = STRICT


def _of_templates(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a chat template, none of which is of the call that renders it."""
    for name in options:
        if name in _OF_THE_CALL:
            raise ValueError(f"variables of the chat template, not {name!r}, which is not the template's")
    return options


class SourceConfig(_Strict):
    """One of several sources of prompts, which are mixed."""

    path: FilePath
    """a file or dataset, like `task.train`"""
    share: Share = 1.0
    """its share of the prompts, relative to those of the others"""
    verifier: str | None = None
    """the verifier of its rows that name none; none: `task.verifier`"""
    prompt_column: str | None = None
    """the column with the prompt; none: `task.prompt_column`"""
    answer_column: str | None = None
    """the column with the answer; none: `task.answer_column`"""


class TaskConfig(_Strict):
    """The task to learn: a generated task by name, or prompt files with a verifier."""

    name: str | None = None
    """a generated task, such as long-chain-sum; not together with `train`"""
    mix: dict[str, Share] = {}
    """several generated tasks instead of `name`, each with its share of the prompts: { long-chain-sum = 2, programs = 1 }"""
    train: FilePath | None = None
    """prompts to train on: a JSON, CSV, Parquet or Arrow file, or a Hugging Face dataset as hf:NAME:SPLIT"""
    sources: Annotated[tuple[SourceConfig, ...], BeforeValidator(as_tuple)] = ()
    """several files or datasets to train on instead of `train`, each a table with `path`, `share` and what else is its own"""
    held_out: FilePath | None = None
    """prompts to evaluate on: a file like `train`; none: no evaluation"""
    verifier: str = "math"
    """the verifier of rows in a file that name none: a plugin of tailrace.verifier, module:function or file.py:function"""
    train_size: Positive = 20_000
    """prompts of a generated task, or of all that are mixed"""
    held_out_size: Positive = 256
    """held-out prompts of a generated task, or of all that are mixed; of a file, at most this many"""
    shuffle: bool = True
    """whether prompts come in an order drawn by `seed`; false: as their file has them, such as a curriculum"""
    prompt_column: str = "prompt"
    """the column of a file with the prompt; within another column with points: input.messages"""
    answer_column: str = "answer"
    """the column of a file with the answer, likewise: reward_model.ground_truth"""
    verifier_column: str = "verifier"
    """the column of a file with a row's own verifier; "": none, if that column says something else"""
    chat: bool = False
    """whether a prompt that is text is a user's message, with the model's chat template; lists of messages always have it"""
    chat_options: Annotated[dict[str, Any], AfterValidator(_of_templates)] = {}
    """variables of the chat template beside the messages, such as { enable_thinking = false }; add_generation_prompt is true"""
    overlong: Literal["refuse", "drop", "truncate-left"] = "refuse"
    """prompts of a file that leave no room for rollout.max_tokens: an error, left out, or cut off at their beginning"""

    unmatched: Literal["keep", "drop", "refuse"] = "keep"
    """rows whose answer their verifier can never match: counted and used all the same, left out, or an error"""

    @property
    def training(self) -> dict[str, SourceConfig]:
        """What a task of one's own trains on, each by its key in the table `task`."""
        if self.train is not None:
            return {"train": SourceConfig(path=self.train)}
        return {f"sources.{place}": source for place, source in enumerate(self.sources)}

    def columns(self, source: SourceConfig) -> dict[str, Any]:
        """A source's columns with prompt, answer and verifier, as arguments of `tailrace.trajstore.read_prompts`."""
        return {
            "prompt_column": source.prompt_column or self.prompt_column,
            "answer_column": source.answer_column or self.answer_column,
            "verifier_column": self.verifier_column,
        }

    @property
    def generated(self) -> dict[str, float]:
        """The generated tasks that are trained on, each with its share; empty for a task of one's own."""
        return dict(self.mix) if self.name is None else {self.name: 1.0}

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each source of prompts, generated or not, in their order."""
        return tuple(self.generated.values()) or tuple(source.share for source in self.training.values())

    def parts(self, count: int) -> dict[str, int]:
        """How many of `count` prompts are of each generated task, by the largest remainders."""
        shares = self.generated
        exact = {name: count * share / sum(shares.values()) for name, share in shares.items()}
        parts = {name: int(each) for name, each in exact.items()}
        short = sorted(exact, key=lambda name: parts[name] - exact[name])
        for name in short[: count - sum(parts.values())]:
            parts[name] += 1
        return parts

    def __str__(self) -> str:
        """The task in a few words."""
        named = list(self.generated) or [str(source.path) for source in self.training.values()]
        return " and ".join(named) or "not known"
