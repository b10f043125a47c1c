"""A small causal language model for all tests of this package."""

import pytest

from tailrace.ranker.testing import made_examples


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """The directory of a random Qwen3 of 30,000 parameters, with a tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.set_num_threads(1)  # on models as small as these more only wait for each other

    from tailrace.ranker.learned.text import TextCodec

    directory = tmp_path_factory.mktemp("model")
    codec = TextCodec.trained([example.prompt for example in made_examples(50)], vocabulary=300, most_tokens=64)
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
