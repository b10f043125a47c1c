"""What ends a response is the model's, or what the configuration says; other ends that the model's files name are told."""

import json

import pytest

from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.prompts.stop_tokens import stop_tokens, stops_in_words

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|turn|>\n{% endfor %}"


@pytest.fixture
def model(word_model):
    """A model whose tokens 2, 3 and 4 are special ones."""
    from tokenizers import Tokenizer

    directory = word_model(context=60, template=TEMPLATE)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|end|>", "<|turn|>", "<|other|>"])
    tokenizer.save(str(directory / "tokenizer.json"))

    def make(config=None, generation=None, tokenizer=None, template=True):
        content = {"max_position_embeddings": 60} | ({} if config is None else {"eos_token_id": config})
        (directory / "config.json").write_text(json.dumps(content))
        if generation is not None:
            (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokenizer}
        settings |= {"chat_template": TEMPLATE} if template else {}
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
        return directory

    return make


def configured(*tokens):
    table = {"rollout": {"stop_tokens": list(tokens)}} if tokens else {}
    return validate([("mine", {"app": "laminar", **table})])


@pytest.mark.parametrize(
    ("config", "generation", "given", "stops"),
    [
        (2, None, (), (2,)),
        (2, [3, 2], (), (3, 2)),
        ([2, 4], None, (), (2, 4)),
        (2, 3, ("<|end|>", 4), (2, 4)),
        (None, None, ("<|turn|>", 3), (3,)),
    ],
)
def test_what_ends_a_response(model, config, generation, given, stops):
    assert stop_tokens(configured(*given), model(config, generation)) == stops


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), "found no eos_token_id in its configuration, expected one, or key 'rollout.stop_tokens'"),
        (
            ("<|trun|>",),
            r"found '<\|trun\|>', which is no token of the model, expected one of .*; did you mean '<\|turn\|>'",
        ),
        ((5,), "found 5, expected 0 to 4"),
        ((-1,), "found -1, expected 0 to 4"),
    ],
)
def test_what_is_no_token_is_told(model, given, words):
    with pytest.raises(ConfigError, match=words):
        stop_tokens(configured(*given), model())


def test_an_end_that_is_no_number_is_told(model):
    with pytest.raises(ConfigError, match=r"found eos_token_id = \['x'\], expected token ids"):
        stop_tokens(configured(), model("x"))


def test_other_ends_are_told(model):
    pytest.importorskip("transformers")
    ends = "responses end at <|end|> (2)"
    assert stops_in_words(configured(), model(2, tokenizer="<|end|>", template=False)) == [ends]
    assert stops_in_words(configured(), model(2, tokenizer={"__type": "AddedToken", "content": "<|other|>"})) == [
        ends,
        "the tokenizer's end token, <|other|> (4), does not end a response; rollout.stop_tokens = [2, 4] would",
        "the chat template's end of a turn, <|turn|> (3), does not end a response; rollout.stop_tokens = [2, 3] would",
    ]
    assert stops_in_words(configured("<|turn|>", 4, 2), model(2, tokenizer="<|other|>")) == [
        "responses end at <|turn|> (3), <|other|> (4), <|end|> (2)"
    ]
