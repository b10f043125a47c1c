"""A model's directory with a tokenizer and a chat template, for environments that speak in token ids. No weights."""

import importlib
import json
from pathlib import Path
from typing import Any

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
    "</tool_response>",
)  # fmt: skip


def write_model(folder: Path, template: str = CHATML) -> Any:
    """Write ``tokenizer.json`` and its settings into a new folder; text of no special token has one token a byte, or two bytes.

    Returns:
        The tokenizer.
    """
    tokenizers = importlib.import_module("tokenizers")
    bytes_ = importlib.import_module("tokenizers.pre_tokenizers").ByteLevel
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = bytes_(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(SPECIAL), initial_alphabet=bytes_.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["user assistant Guess a number. more less 12 345"], trainer)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer
