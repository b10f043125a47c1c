"""A model directory that tests of prompts share."""

import json

import pytest


@pytest.fixture
def word_model(tmp_path):
    """Makes a model directory with a tokenizer of words, which has no weights.

    Args of what it returns:
        context: its context in tokens.
        template: a chat template; None for none.
    """

    def make(context, template=None):
        from tokenizers import Tokenizer, models, pre_tokenizers

        directory = tmp_path / "model"
        directory.mkdir()
        tokenizer = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.save(str(directory / "tokenizer.json"))
        (directory / "config.json").write_text(json.dumps({"max_position_embeddings": context}))
        if template is not None:
            settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
            (directory / "tokenizer_config.json").write_text(json.dumps(settings))
        return directory

    return make
