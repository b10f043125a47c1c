"""A dry run says what the trainer needs of its GPUs; the shipped 7B configurations fit on 80 GB."""

from pathlib import Path

import pytest

from tailrace.cli.errors import NotHereError
from tailrace.cli.runs.trainer_memory import trainer_memory_in_words
from tailrace.pipeline.config.target import configuration
from tailrace.trainer.memory import shape_of

CONFIGS = sorted((Path(__file__).parents[3] / "configs").glob("*/gsm8k-7b.toml"))
QWEN_7B = shape_of(
    {"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
     "intermediate_size": 18944, "vocab_size": 152064, "tie_word_embeddings": False}
)  # fmt: skip
assert QWEN_7B is not None


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.parent.name)
def test_the_shipped_7b_fits_on_80_gb(path):
    words = trainer_memory_in_words(configuration(str(path)), QWEN_7B)
    assert "of 80.0 on each of the trainer's GPUs" in words
    assert "30.5 GB of parameters, gradients and moments" in words


def test_what_does_not_fit_says_which_setting_to_change():
    config = configuration(str(CONFIGS[0]))
    options = config.trainer.options | {"activation_checkpointing": "off", "micro_batch_tokens": 8192}
    trainer = config.trainer.model_copy(update={"options": options})
    with pytest.raises(NotHereError, match="found a trainer that needs about") as caught:
        trainer_memory_in_words(config.model_copy(update={"trainer": trainer}), QWEN_7B)
    line = str(caught.value)
    assert 'expected at most 80.0: set trainer.options.activation_checkpointing = "on"' in line
    assert "\n" not in line


def test_nothing_is_said_without_gpus_or_of_what_is_not_counted():
    config = configuration(str(CONFIGS[0]))
    without = config.executor.model_copy(update={"trainer_gpus": 0.0})
    assert trainer_memory_in_words(config.model_copy(update={"executor": without}), QWEN_7B) is None
    other = config.trainer.model_copy(update={"backend": "megatron"})
    assert trainer_memory_in_words(config.model_copy(update={"trainer": other}), QWEN_7B) is None
