"""The task for the Python tool and the small model's tokenizer: what is learned is what a conversation consists of."""

import pytest
from tokenizers import Tokenizer

from tailrace.reward.tasks.tool_sums import TOOL_SUMS
from tailrace.trainer.demonstrations import encode, texts_of
from tailrace.trainer.tokenizer import EOS, UNKNOWN, train_tokenizer


@pytest.fixture(
    scope="module", params=[{"words": True, "vocab_size": 600}, {"vocab_size": 300}], ids=["words", "bytes"]
)
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    pairs = TOOL_SUMS.warm_start(6000, 1)
    train_tokenizer([text for pair in pairs for text in texts_of(pair)], folder, **request.param)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def ids(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.cases(1)
def test_what_is_learned_is_each_turn_and_its_end_behind_what_a_rollout_reads(folder, tokenizer):
    rows = TOOL_SUMS.generate("heldout", 100, 2)
    end = tokenizer.token_to_id(EOS)
    examples = encode(folder, TOOL_SUMS.demonstrations(rows, 2))
    for transcript, (prompt, response, *masks) in zip(TOOL_SUMS.transcripts(rows, 2), examples, strict=True):
        assert list(prompt) == ids(tokenizer, transcript.prompt)
        said, learned = [], []
        for turn, observation in transcript.turns:
            for tokens, is_turn in (([*ids(tokenizer, turn), end], True), (ids(tokenizer, observation), False)):
                said += tokens
                learned += [is_turn] * len(tokens)
        assert list(response) == said
        assert all(learned) if not masks else list(masks[0]) == learned


def test_the_tool_reads_what_the_model_wrote(tokenizer):
    rows = TOOL_SUMS.generate("heldout", 100, 2)
    unknown = tokenizer.token_to_id(UNKNOWN)
    for transcript in TOOL_SUMS.transcripts(rows, 2):
        for turn, observation in transcript.turns:
            for text in (turn, observation):
                assert unknown not in ids(tokenizer, text)
                assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=False) == text
