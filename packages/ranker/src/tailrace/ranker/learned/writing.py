"""Fine-tunes the model of ``sft``, and reads lengths off it: decimal digits with leading zeros.

Digits of equal number sort as the numbers do. So the probability of more than a given number is a sum over the first digit that
is greater, and a quantile is found by walking down: at each place the digit at which the probabilities pass it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from tailrace.ranker.censoring import all_samples
from tailrace.ranker.errors import DamagedRankerError, RankerError
from tailrace.ranker.example import Example
from tailrace.ranker.learned.fitting import UPDATE_EPOCHS, UPDATE_RATE, by_parts, fit_network
from tailrace.ranker.learned.network import SHARES, load_weights, padded, predictions_by, saved_weights
from tailrace.ranker.learned.options import SftOptions
from tailrace.ranker.learned.pretrained import (
    Tuning,
    build_causal_lm,
    check_time,
    configuration,
    copied,
    described,
    device_of_pretrained,
    is_base,
    plan_of,
)
from tailrace.ranker.learned.text import TextCodec
from tailrace.ranker.methods import Setting
from tailrace.ranker.prediction import Prediction
from tailrace.ranker.saved import file_of, from_json, to_json

NextDigit = Callable[[Tensor], Tensor]
"""Digits [n, places so far] that were chosen, to log-probabilities [n, 10] of the next."""


def as_digits(numbers: Tensor, places: int) -> Tensor:
    """Digits [n, places] of whole numbers [n], which have at most so many."""
    powers = 10 ** torch.arange(places - 1, -1, -1)
    return numbers[:, None] // powers % 10


def log_likelihood(logprobs: Tensor, digits: Tensor, cut: Tensor) -> Tensor:
    """ln P(number), or ln P(at least number) where it was cut.

    Args:
        logprobs: [n, places, 10] of each place's digit, given those before it in `digits`.
        digits: [n, places].
        cut: [n] booleans.

    Returns:
        [n].
    """
    own = logprobs.gather(2, digits[..., None])[..., 0]
    before = own.cumsum(1) - own
    greater = torch.arange(10) > digits[..., None]
    # A digit 9 has none above it: the smallest finite number, since the gradient of -inf is no number.
    above = logprobs.masked_fill(~greater, torch.finfo(logprobs.dtype).min).logsumexp(2)
    exactly = own.sum(1)
    at_least = torch.cat([before + above, exactly[:, None]], dim=1).logsumexp(1)
    return torch.where(cut, at_least, exactly)


def quantile(next_digit: NextDigit, shares: Tensor, places: int) -> Tensor:
    """The numbers that a given share of the probability does not exceed, [n] float64, between whole ones by the share within.

    Args:
        next_digit: the model.
        shares: [n] in (0, 1).
        places: of the number.
    """
    left = shares.double().clone()
    digits = torch.zeros(len(shares), 0, dtype=torch.long)
    for _ in range(places):
        passed = next_digit(digits).double().softmax(1).cumsum(1)
        chosen = (passed < left[:, None]).sum(1).clamp(max=9)
        below = torch.where(chosen > 0, passed.gather(1, (chosen - 1).clamp(min=0)[:, None])[:, 0], 0.0)
        within = passed.gather(1, chosen[:, None])[:, 0] - below
        left = ((left - below) / within.clamp(min=1e-12)).clamp(0.0, 1.0)
        digits = torch.cat([digits, chosen[:, None]], dim=1)
    powers = 10 ** torch.arange(places - 1, -1, -1)
    return (digits * powers).sum(1).double() + left


ABOUT, _TOKENIZER, _WEIGHTS = "sft.json", "tokenizer.json", "weights.safetensors"
_ASKS = "\nTokens of the response: "
_ROOM = 32  # positions behind the longest prompt: the question and the digits


class SftPredictor:
    """Predicts by a model that writes lengths.

    Args:
        method: its options.
        model: the causal language model, in evaluation mode.
        codec: encodes prompts.
        places: digits of a length.
        most: tokens of the longest sample that was seen; no prediction exceeds it.
        tuning: how a given model learns; None for one of the method's shape.
    """

    def __init__(
        self, method: SftOptions, model: Any, codec: TextCodec, places: int, most: int, tuning: Tuning | None
    ) -> None:
        self._method, self._model, self._codec = method, model, codec
        self._places, self._most, self._tuning = places, most, tuning
        self._asks, self._digits = codec.ids(_ASKS), torch.tensor(codec.digits())

    def predict(self, prompts: Sequence[str]) -> list[Prediction]:
        """One prediction for each prompt."""
        rows = [row + self._asks for row in self._codec.encode(prompts)] if prompts else []

        def of_part(part: list[int]) -> list[Prediction]:
            return predictions_by(self._quantiles([rows[at] for at in part]), float(self._most))

        return by_parts(rows, self._method.batch_tokens, of_part)

    def _quantiles(self, rows: list[list[int]]) -> Tensor:
        """Lengths [n, shares]. The prompt is read once; digits follow it by its cache, once for each share."""
        ids, there = padded(rows)
        length = there.sum(1)
        states, cache = self._read(ids, there.long())
        first = self._digit_logprobs(states[torch.arange(len(rows)), length - 1])
        count = len(SHARES)
        cache.batch_repeat_interleave(count)
        mask = there.long().repeat_interleave(count, 0)
        positions = length.repeat_interleave(count)

        def next_digit(chosen: Tensor) -> Tensor:
            nonlocal mask
            if chosen.shape[1] == 0:
                return first.repeat_interleave(count, 0)
            mask = torch.cat([mask, torch.ones(len(mask), 1, dtype=mask.dtype)], dim=1)
            place = (positions + chosen.shape[1] - 1)[:, None].to(self._model.device)
            states, _ = self._read(self._digits[chosen[:, -1:]], mask, position_ids=place, past_key_values=cache)
            return self._digit_logprobs(states[:, -1])

        shares = torch.tensor(SHARES).repeat(len(rows))
        return quantile(next_digit, shares, self._places).reshape(len(rows), count)

    def update(self, examples: Sequence[Example], setting: Setting) -> SftPredictor:
        """A copy that was trained further, for a quarter of the epochs at 0.3 of the rate."""
        longest = max(length for length, _ in all_samples(examples))
        most = min(max(self._most, longest), 10**self._places - 1)
        newer = SftPredictor(self._method, copied(self._model), self._codec, self._places, most, self._tuning)
        newer.learn(examples, setting, epochs=UPDATE_EPOCHS, rate=UPDATE_RATE)
        return newer

    def learn(self, examples: Sequence[Example], setting: Setting, *, epochs: float = 1.0, rate: float = 1.0) -> None:
        """Train in place, before anybody uses it.

        Args:
            examples: to learn from.
            setting: seed and deadline.
            epochs, rate: parts of the method's.

        Raises:
            RankerOptionError: a given model is to be trained for the first time, and there is no time for one step.
        """
        rows = [row + self._asks for row in self._codec.encode([example.prompt for example in examples])]
        drawn = torch.Generator().manual_seed(setting.seed + 1)

        def loss_of(chosen: Tensor, learning: bool) -> Tensor:
            # Looks at the held-back loss draw the same samples each time.
            draws = drawn if learning else torch.Generator().manual_seed(setting.seed)
            picked = [_one(examples[at], draws) for at in chosen.tolist()]
            lengths = torch.tensor([length for length, _ in picked]).clamp(max=10**self._places - 1)
            digits = as_digits(lengths, self._places)
            likelihood = log_likelihood(
                self._logprobs([rows[at] for at in chosen.tolist()], digits),
                digits,
                torch.tensor([c for _, c in picked]),
            )
            return -likelihood.mean()

        plan = plan_of(self._method, self._tuning is not None, epochs, rate)
        sizes = [len(row) + self._places - 1 for row in rows]
        if self._tuning is not None and epochs == 1.0:
            check_time(self._model, sizes, loss_of, plan, setting)
        fit_network(self._model, sizes, loss_of, plan, setting)

    def _logprobs(self, rows: list[list[int]], digits: Tensor) -> Tensor:
        """Log-probabilities [n, places, 10] of each digit, given the prompt and the digits before."""
        written = self._digits[digits[:, :-1]].tolist()  # the last one is not followed by any
        ids, there = padded([row + more for row, more in zip(rows, written, strict=True)])
        states, _ = self._read(ids, there.long(), use_cache=False)
        ends = torch.tensor([len(row) - 1 for row in rows])
        places = ends[:, None] + torch.arange(self._places)
        return self._digit_logprobs(states[torch.arange(len(rows))[:, None], places])

    def _read(self, ids: Tensor, mask: Tensor, **more: Any) -> tuple[Tensor, Any]:
        """States of the last layer [n, T, hidden], and the cache."""
        device = self._model.device
        inputs = {"input_ids": ids.to(device), "attention_mask": mask.to(device), "use_cache": True, **more}
        with nullcontext() if self._tuning is None else self._tuning.computing():
            read = self._model.base_model(**inputs)
        return read.last_hidden_state, read.past_key_values

    def _digit_logprobs(self, states: Tensor) -> Tensor:
        """Log-probabilities [..., 10] of the digits among each other, on the CPU; no other token is computed."""
        head = self._model.get_output_embeddings()
        bias = getattr(head, "bias", None)
        weight = head.weight[self._digits].float()
        logits = F.linear(states.float(), weight, None if bias is None else bias[self._digits].float())
        return logits.cpu().log_softmax(-1)

    def files(self) -> dict[str, bytes]:
        """The weights, the tokenizer, and what they are; of adapters those alone."""
        own = {"model": configuration(self._model)} if self._tuning is None else {}
        about = {"places": self._places, "most": self._most, **described(self._tuning, self._model), **own}
        return {ABOUT: to_json(about), _TOKENIZER: self._codec.content(), _WEIGHTS: saved_weights(self._model)}


def fit_sft(method: SftOptions, examples: Sequence[Example], setting: Setting) -> SftPredictor:
    """Build or load a model and fine-tune it to write lengths.

    Raises:
        RankerModelError: `Setting.init` is no model directory, or its vocabulary lacks a digit.
        RankerOptionError: there is no time for one step of a given model.
        MissingExtraError: PEFT is not installed, and there are to be adapters.
    """
    tuning = None if setting.init is None else Tuning(method, setting.init, setting.seed)
    if tuning is None:
        prompts = [example.prompt for example in examples]
        codec = TextCodec.trained(prompts, vocabulary=method.vocabulary, most_tokens=method.most_tokens)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(setting.seed)
            model = build_causal_lm(_own(method, codec.size))
    else:
        codec = TextCodec.of_model(tuning.known_directory, method.most_tokens)
        codec.digits()  # before minutes of loading
        model = tuning.causal_lm()
    longest = max(length for length, _ in all_samples(examples))
    places = len(str(longest)) + (str(longest)[0] == "9")  # some room for longer ones of later versions
    predictor = SftPredictor(method, model, codec, places, longest, tuning)
    predictor.learn(examples, setting)
    return predictor


def restored(method: SftOptions, files: Mapping[str, bytes], setting: Setting) -> SftPredictor:
    """What `SftPredictor.files` wrote.

    Raises:
        DamagedRankerError: something else is there.
        RankerModelError: the model that its adapters are of is not at `Setting.init`.
    """
    about = from_json(files, ABOUT, "places", "most", "pretrained", "base")
    codec = TextCodec.restored(file_of(files, _TOKENIZER), method.most_tokens)
    given = Tuning(method, setting.init, setting.seed)
    tuning: Tuning | None = given
    try:
        if is_base(given, about["base"]):
            model = given.causal_lm()
        elif about["pretrained"] is not None:
            model = build_causal_lm(about["pretrained"]).to(device_of_pretrained())
        else:
            model, tuning = build_causal_lm(about["model"]), None
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, RankerError):
            raise
        raise DamagedRankerError(f"{ABOUT}: found no model ({error}), expected what was saved") from error
    load_weights(model, files, _WEIGHTS)
    try:
        return SftPredictor(method, model, codec, int(about["places"]), int(about["most"]), tuning)
    except (TypeError, ValueError) as error:
        raise DamagedRankerError(f"{ABOUT}: found no lengths ({error}), expected what was saved") from error


def _one(example: Example, draws: torch.Generator) -> tuple[int, bool]:
    return example.samples[int(torch.randint(len(example.lengths), (1,), generator=draws))]


def _own(method: SftOptions, vocabulary: int) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "vocab_size": vocabulary,
        "hidden_size": method.width,
        "num_hidden_layers": method.layers,
        "num_attention_heads": method.heads,
        "num_key_value_heads": method.heads // 2,
        "head_dim": method.width // method.heads,
        "intermediate_size": method.mlp,
        "max_position_embeddings": method.most_tokens + _ROOM,
        # The usual 0.02 is for widths of thousands. With it this one says the same of all prompts for a dozen epochs.
        "initializer_range": method.width**-0.5 * 2 / 3,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
