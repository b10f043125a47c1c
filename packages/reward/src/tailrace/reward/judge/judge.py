"""A judge: a causal language model that answers yes or no at the end of a template, in one forward pass.

Consumes: prompts, responses, answers. Gives: for each the probability of yes against no, or why there is none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tailrace.contracts import extra
from tailrace.reward.errors import JudgeError
from tailrace.reward.items import JudgeItem, Judgement, Unjudged
from tailrace.reward.judge.config import JudgeConfig, names_a_file

if TYPE_CHECKING:
    import torch

    from tailrace.reward.judge.loading import JudgeModel


FIELDS = ("prompt", "response", "answer", "rubric")
_FIELD = re.compile("{(" + "|".join(FIELDS) + ")}")


class JudgeTemplate:
    r"""A text with ``{response}`` in it and, if it likes, ``{prompt}``, ``{answer}`` and ``{rubric}``.

    Other braces stand for themselves, so that ``\boxed{}`` and JSON need no escaping.

    Args:
        source: the text; or a file with it, if it is a path or a line that ends in ``.txt`` or ``.md``. A newline at the
            file's end does not count, since the judge answers right behind the text.

    Raises:
        JudgeError: there is no such file, or no ``{response}`` in the text.
    """

    def __init__(self, source: str | Path) -> None:
        name = str(source)
        if isinstance(source, Path) or names_a_file(name):
            try:
                self.text = Path(source).read_text(encoding="utf-8").removesuffix("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise JudgeError(f"found no readable judge template {name}, expected a text file: {error}") from error
        else:
            self.text = name
        self.fields = frozenset(_FIELD.findall(self.text))
        if "response" not in self.fields:
            found = ", ".join(f"{{{field}}}" for field in FIELDS if field in self.fields) or "no field"
            raise JudgeError(f"found {found} in the judge's template, expected {{response}} among them")

    def missing(self, item: JudgeItem) -> str | None:
        """The first field that the template shows and the item leaves empty, other than the response, or None."""
        return next((field for field in FIELDS if field in self.fields and not _filled(item, field)), None)

    def render(self, item: JudgeItem, guarded: Callable[[str], str] = str) -> str:
        """The text with its fields filled in, each passed through `guarded`. What a field says is never filled in again."""
        return _FIELD.sub(lambda found: guarded(getattr(item, found[1])), self.text)


def _filled(item: JudgeItem, field: str) -> bool:
    return field == "response" or bool(getattr(item, field))


class Judge:
    """A judge in this process. `JudgeProcess` has one in a process of its own. Not thread-safe.

    Args:
        config: its model, template, tokens and limits.

    Raises:
        JudgeError: the model, template or a token is not as it should be.
        JudgeMemoryError: the memory budget is too small; the message has the bytes needed.
        MissingExtraError: torch or transformers is not installed.
    """

    def __init__(self, config: JudgeConfig) -> None:
        self.config = config
        self._template = JudgeTemplate(config.template)
        with extra("tailrace-reward", "judge"):
            from tailrace.reward.judge.loading import answer_tokens, load_model, read_tokenizer
        self._tokenizer: Any = read_tokenizer(config)
        # Some models' marks of turns are no special tokens to their tokenizer (DeepSeek-R1's); their chat template has them.
        marks = str(self._tokenizer.chat_template) if config.chat else ""
        self._special = [
            token.content
            for token in self._tokenizer.added_tokens_decoder.values()
            if token.content.strip() and (token.special or token.content in marks)
        ]
        self._yes, self._no = answer_tokens(self._tokenizer, config)
        self._loaded: JudgeModel = load_model(config)
        self._last: torch.Tensor | None = None
        self._loaded.model.get_output_embeddings().register_forward_pre_hook(self._only_last)

    @property
    def device(self) -> str:
        """The device on which it computes."""
        return str(self._loaded.device)

    @property
    def max_tokens(self) -> int:
        """Longest input in tokens, template included."""
        return self._loaded.max_tokens

    @property
    def resident_layers(self) -> int:
        """Layers that stayed on the device in the last pass."""
        streamer = self._loaded.streamer
        return int(self._loaded.model.config.num_hidden_layers) if streamer is None else streamer.resident

    @property
    def peak_weight_bytes(self) -> int:
        """Most bytes of weights that were on the device at once, buffers of streamed layers included."""
        streamer = self._loaded.streamer
        if streamer is not None:
            return streamer.peak_bytes
        from tailrace.reward.judge.streaming import tensor_bytes

        model = self._loaded.model
        return tensor_bytes([*model.parameters(), *model.buffers()])

    def activation_bytes(self, items: int, tokens: int) -> int:
        """What the budget sets aside for activations of `items` inputs of `tokens` tokens; 0 without a budget."""
        return 0 if self._loaded.shape is None else self._loaded.shape.activation_bytes(items, tokens)

    def budget_bytes(self, resident_layers: int, items: int, tokens: int) -> int:
        """The `memory_bytes` with which this many layers stay on the device in a pass of `items` inputs of `tokens` tokens.

        Raises:
            JudgeError: this judge was made without a budget and has not measured its layers.
        """
        if self._loaded.streamer is None:
            raise JudgeError("found a judge without memory_bytes, expected one with any that it fits in")
        return self._loaded.streamer.sizes.device_bytes(resident_layers) + self.activation_bytes(items, tokens)

    def tokens(self, item: JudgeItem) -> list[int]:
        """An item in the judge's template, as token ids. Special tokens of the model in a field's text, and those of its chat
        template, are broken up, so that a response cannot end its own message and speak for the judge."""
        text = self._template.render(item, self._guarded)
        if not self.config.chat:
            return list(self._tokenizer.encode(text))
        message = [{"role": "user", "content": text}]
        text = self._tokenizer.apply_chat_template(
            message, tokenize=False, add_generation_prompt=True, **self.config.chat_options
        )
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def score(self, items: Sequence[JudgeItem]) -> list[Judgement]:
        """One outcome for each item, in order. Items of like length share a forward pass."""
        outcomes: dict[int, Judgement] = {}
        inputs: dict[int, list[int]] = {}
        for index, item in enumerate(items):
            found = self._input(item)
            if isinstance(found, Unjudged):
                outcomes[index] = found
            else:
                inputs[index] = found
        for batch in self._batches({index: len(ids) for index, ids in inputs.items()}):
            scores = self._pass([inputs[index] for index in batch])
            outcomes.update(zip(batch, scores, strict=True))
        return [outcomes[index] for index in range(len(items))]

    def close(self) -> None:
        """Drop the model. Its memory is free for others once the process is told so, or ends."""
        if self._loaded.streamer is not None:
            self._loaded.streamer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _input(self, item: JudgeItem) -> list[int] | Unjudged:
        """An item's token ids, or why this judge cannot read it: a fault of the item, which must not cost others theirs."""
        if missing := self._template.missing(item):
            reason = f"the judge's template shows {{{missing}}}, which this item leaves empty"
            return Unjudged(reason, permanent=True)
        try:
            ids = self.tokens(item)
        except Exception as error:
            return Unjudged(f"the judge's tokenizer failed: {type(error).__name__}: {error}", permanent=True)
        if not 0 < len(ids) <= self.max_tokens:
            reason = f"the judge's input has {len(ids)} tokens, expected at least 1 and at most {self.max_tokens}"
            return Unjudged(reason, permanent=True)
        return ids

    def _batches(self, lengths: dict[int, int]) -> Iterator[list[int]]:
        """Groups of items of rising length that keep a pass's limits and fit the budget, if need be with no layer resident."""
        batch: list[int] = []
        for index in sorted(lengths, key=lambda index: lengths[index]):
            if batch and not self._fits(len(batch) + 1, lengths[index]):
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def _fits(self, items: int, tokens: int) -> bool:
        config = self.config
        if items > config.batch_items or items * tokens > config.batch_tokens:
            return False
        return self._resident(items, tokens) is not None

    def _resident(self, items: int, tokens: int) -> int | None:
        """Layers that can stay on the device in a pass; 0 if nothing is streamed, None if the pass does not fit."""
        streamer, budget = self._loaded.streamer, self.config.memory_bytes
        if streamer is None or budget is None:
            return 0
        return streamer.sizes.resident(budget, self.activation_bytes(items, tokens))

    def _pass(self, batch: Sequence[Sequence[int]]) -> list[Judgement]:
        import torch

        longest = max(len(ids) for ids in batch)
        device, streamer = self._loaded.device, self._loaded.streamer
        try:
            if streamer is not None:
                resident = self._resident(len(batch), longest)
                assert (
                    resident is not None
                )  # `_batches` saw to it, and one longest item fits since the budget was checked
                streamer.arrange(resident)
            # Padding stands behind the text, where causal attention never looks: no mask, which could take quadratic memory.
            padded = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in batch], device=device)
            self._last = torch.tensor([len(ids) - 1 for ids in batch], device=device)
            with torch.no_grad(), streamer if streamer is not None else nullcontext():
                logits = self._loaded.model(input_ids=padded, use_cache=False).logits
                pair = logits[:, 0, [self._no, self._yes]].float().softmax(-1)[:, 1].tolist()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            size = f"{len(batch)} inputs of up to {longest} tokens"
            return [Unjudged(f"the judge ran out of device memory in a pass of {size}", permanent=False)] * len(batch)
        finally:
            self._last = None
        return [self._read(probability) for probability in pair]

    def _read(self, probability: float) -> Judgement:
        if math.isnan(probability):
            return Unjudged("the judge's logits are not finite", permanent=True)
        threshold = self.config.threshold
        return probability if threshold is None else float(probability >= threshold)

    def _only_last(self, module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:  # noqa: ARG002 (a hook's signature)
        """Give the output layer each input's last position alone; all positions' logits would take gigabytes."""
        hidden, last = arguments[0], self._last
        assert last is not None  # set by `_pass`, the only caller of the model
        return (hidden.gather(1, last.view(-1, 1, 1).expand(-1, 1, hidden.shape[2])),)

    def _guarded(self, text: str) -> str:
        text = text.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be tokenized
        for token in self._special:
            text = text.replace(token, f"{token[0]} {token[1:]}")
        return text
