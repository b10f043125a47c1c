"""Contract suite for methods of prediction: run ``check_method(Mine())`` on your own."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from pathlib import Path

from tailrace.ranker.errors import RankerOptionError
from tailrace.ranker.example import Example
from tailrace.ranker.methods import Deadline, Method, Predictor, Setting
from tailrace.ranker.prediction import Prediction


def made_examples(prompts: int, samples: int = 4, *, seed: int = 0, cap: int = 400, version: int = 0) -> list[Example]:
    """Different prompts of families ``sums`` and ``words``, with log-normal lengths.

    A sum's length grows with its terms, that of a list of words with their number and with "sort" instead of "copy". The
    characters of a prompt say something of it, but not all: the spread within a prompt is 0.3 of ln tokens.

    Args:
        prompts: how many.
        samples: of each.
        seed: of all.
        cap: tokens at which a response is truncated.
        version: of the examples.
    """
    drawn = random.Random(seed)
    made: dict[str, tuple[float, str]] = {}
    while len(made) < prompts:
        if drawn.random() < 0.5:
            terms = drawn.randint(2, 12)
            prompt = "Sum up: " + " + ".join(str(drawn.randint(1, 10 ** drawn.randint(1, 4))) for _ in range(terms))
            made[prompt] = (6.0 * terms, "sums")
        else:
            count, verb = drawn.randint(2, 10), drawn.choice(("sort", "copy"))
            words = ("".join(drawn.choices("abcdefgh", k=drawn.randint(2, 9))) for _ in range(count))
            made[f"Please {verb} these words: {', '.join(words)}"] = (
                count * (14.0 if verb == "sort" else 3.0),
                "words",
            )
    examples = []
    for prompt, (middle, family) in made.items():
        lengths = [max(1, round(middle * math.exp(drawn.gauss(0, 0.3)))) for _ in range(samples)]
        truncated = tuple(length > cap for length in lengths)
        examples.append(Example(prompt, tuple(min(length, cap) for length in lengths), truncated, family, version))
    return examples


def language_model(directory: Path) -> Path:
    """Write a random Qwen3 of 30,000 parameters with a tokenizer that knows `made_examples`; returns its directory."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from tailrace.ranker.learned.text import TextCodec

    codec = TextCodec.trained([example.prompt for example in made_examples(50)], vocabulary=300, most_tokens=64)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_bytes(codec.content())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=codec.size, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            head_dim=16, intermediate_size=48, max_position_embeddings=256, tie_word_embeddings=True, bos_token_id=None,
            eos_token_id=None, pad_token_id=None,
        )  # fmt: skip
        Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


ODD_PROMPTS = ("", " \n\t", "7" * 400, "\x00", "\ud800", "\N{ARABIC-INDIC DIGIT THREE}", "z" * 3000, "Sum up: 1 + 2")


def check_method(
    method: Method, *, policy: Path | None = None, init: Path | None = None, prompts: int = 24, seed: int = 0
) -> None:
    """Check the rules of `Method` and `Predictor` on which a ranker relies.

    Args:
        method: the method to check, with options that make it quick.
        policy: a model directory, if it needs a policy.
        init: a model directory to begin with, if it needs one.
        prompts: how many to learn from, at least 10.
        seed: of the examples and of the method.

    Raises:
        AssertionError: the method breaks the contract; the message says how.
    """
    examples = made_examples(prompts, seed=seed, cap=60)
    asked = [example.prompt for example in made_examples(8, seed=seed + 1)] + [examples[0].prompt]
    setting = Setting(seed, Deadline(600.0), policy, init)
    before = [dataclasses.asdict(example) for example in examples]
    predictor = method.fit(examples, setting)
    first = _predicted(predictor, asked)
    _expect(first == _predicted(predictor, asked), "the same prompts got other predictions the second time")
    _expect(predictor.predict([]) == [], "no prompts got predictions")
    _check_order(predictor, asked, first)
    _check_odd(predictor)
    again = _predicted(method.fit(examples, setting), asked)
    _expect(_close(first, again), f"the same examples and the same seed {seed} gave another predictor")
    _check_files(method, predictor, setting, asked, first)
    _check_update(predictor, setting, asked, first, seed)
    _check_extremes(method, setting, asked, examples)
    _expect(before == [dataclasses.asdict(example) for example in examples], "an example was changed")


def _check_order(predictor: Predictor, asked: list[str], first: list[Prediction]) -> None:
    backwards = _predicted(predictor, asked[::-1])[::-1]
    _expect(_close(first, backwards), "a prediction depends on the order of the prompts")
    alone = [_predicted(predictor, [prompt])[0] for prompt in asked]
    _expect(_close(first, alone), "a prediction depends on the prompts beside it")


def _check_odd(predictor: Predictor) -> None:
    for prompt in ODD_PROMPTS:
        try:
            _predicted(predictor, [prompt])
        except Exception as error:
            raise AssertionError(f"the prompt {prompt[:20]!r} raised {type(error).__name__}: {error}") from error


def _check_files(
    method: Method, predictor: Predictor, setting: Setting, asked: list[str], first: list[Prediction]
) -> None:
    files = predictor.files()
    odd = [name for name in files if not name.endswith((".json", ".safetensors"))]
    _expect(not odd, f"found the files {odd}, expected .json and .safetensors: others may run code when they are read")
    restored = method.restore(files, setting)
    _expect(_close(first, _predicted(restored, asked)), "what was restored predicts something else")
    _expect(files == predictor.files(), "the files of one predictor differ from call to call")


def _check_update(predictor: Predictor, setting: Setting, asked: list[str], first: list[Prediction], seed: int) -> None:
    newer = made_examples(12, seed=seed + 2, cap=60, version=1)
    updated = predictor.update(newer, setting)
    _expect(updated is not predictor, "an update gave the same object, which others may be using")
    _expect(first == _predicted(predictor, asked), "an update changed the old predictor")
    _predicted(updated, asked)
    updated.update(newer, setting)


def _check_extremes(method: Method, setting: Setting, asked: list[str], examples: Sequence[Example]) -> None:
    """One example, only truncated samples, equal lengths, and no time: a predictor all the same.

    A method may refuse a budget that is shorter than one of its steps.
    """
    flat = [dataclasses.replace(example, lengths=(7,) * len(example.lengths), truncated=()) for example in examples]
    cut = [dataclasses.replace(each, truncated=(True,) * len(each.lengths)) for each in flat]
    for few in (examples[:1], cut, flat):
        _predicted(method.fit(few, setting), asked)
    over = dataclasses.replace(setting, deadline=Deadline(1.0, _Passing()))
    try:
        hurried = method.fit(examples, over)
    except RankerOptionError:
        return
    _predicted(hurried, asked)


class _Passing:
    """A clock on which a minute passes between two looks."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += 60.0
        return self._now


def _predicted(predictor: Predictor, prompts: Sequence[str]) -> list[Prediction]:
    found = predictor.predict(prompts)
    _expect(len(found) == len(prompts), f"{len(prompts)} prompts got {len(found)} predictions")
    for prediction in found:  # that its values are in range is its own check
        _expect(isinstance(prediction, Prediction), f"found {type(prediction).__name__}, expected a Prediction")
    return list(found)


def _close(some: Sequence[Prediction], others: Sequence[Prediction]) -> bool:
    """Up to the rounding of sums in another order."""
    return all(
        math.isclose(getattr(one, name), getattr(other, name), rel_tol=1e-3, abs_tol=1e-4)
        for one, other in zip(some, others, strict=True)
        for name in ("p50", "p90", "score")
    )


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
