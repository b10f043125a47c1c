"""The task for the Python tool and the small model's tokenizer: what is learned in pairs is what a conversation consists of."""

import pytest
from tokenizers import Tokenizer

from tailrace.reward.tasks.tool_sums import TOOL_SUMS, TURN_END
from tailrace.trainer.tokenizer import EOS, UNKNOWN, train_tokenizer


@pytest.fixture(
    scope="module", params=[{"words": True, "vocab_size": 600}, {"vocab_size": 300}], ids=["words", "bytes"]
)
def tokenizer(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    pairs = TOOL_SUMS.warm_start(6000, 1)
    train_tokenizer([text for pair in pairs for text in pair], folder, **request.param)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def ids(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def test_the_end_of_a_turn_is_the_end_token():
    assert TURN_END == EOS


def test_parts_that_are_encoded_one_by_one_are_the_whole(tokenizer):
    rows = TOOL_SUMS.generate("heldout", 100, 2)
    end = tokenizer.token_to_id(EOS)
    for transcript in TOOL_SUMS.transcripts(rows, 2):
        said = ids(tokenizer, transcript.prompt)
        for (before, _), (turn, observation) in zip(transcript.pairs(), transcript.turns, strict=True):
            assert ids(tokenizer, before) == said
            said += [*ids(tokenizer, turn), end, *ids(tokenizer, observation)]


def test_the_tool_reads_what_the_model_wrote(tokenizer):
    rows = TOOL_SUMS.generate("heldout", 100, 2)
    unknown = tokenizer.token_to_id(UNKNOWN)
    for transcript in TOOL_SUMS.transcripts(rows, 2):
        for turn, observation in transcript.turns:
            for text in (turn, observation):
                assert unknown not in ids(tokenizer, text)
                assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=False) == text
