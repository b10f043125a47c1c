"""A small Qwen3 from a configuration, for machines without a download."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tailrace.contracts import extra


@dataclass(frozen=True, slots=True)
class SmallModel:
    """A small Qwen3 with tied embeddings. Sizes are in elements; the defaults give 0.2 million parameters.

    Args:
        hidden, layers, heads, kv_heads, head_dim, mlp, max_positions, rope_theta: its shape.
        embedding_std: standard deviation of the embeddings' first values; transformers' own is 0.02. At a learning rate of
            0.004 AdamW has moved them further than that within tens of steps, and tokens that stand in the same places, such
            as ``+`` and ``-``, the same way, since tied embeddings are the output layer too. Their cosine comes to 0.99, and
            some seeds do not learn to tell them apart. With 0.2 they stay apart.
    """

    hidden: int = 64
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    mlp: int = 192
    max_positions: int = 1024
    rope_theta: float = 10_000.0
    embedding_std: float = 0.02


def build_model(
    directory: str | Path,
    *,
    vocab_size: int,
    hidden: int = 64,
    layers: int = 3,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    mlp: int = 192,
    max_positions: int = 1024,
    rope_theta: float = 10_000.0,
    embedding_std: float = 0.02,
    seed: int = 0,
    eos_token_id: int | None = None,
    pad_token_id: int | None = None,
) -> Path:
    """Write a randomly initialised Qwen3 as a Hugging Face model directory.

    Args:
        directory: directory to create. A tokenizer in it is kept, and supplies the end and padding tokens if they are None.
        vocab_size: tokens of the tokenizer.
        hidden, layers, heads, kv_heads, head_dim, mlp, max_positions, rope_theta, embedding_std: see `SmallModel`.
        seed: seed of the weights; torch's own generator is not changed.
        eos_token_id: token that ends a response.
        pad_token_id: token for padding.

    Returns:
        The directory.
    """
    with extra("tailrace-trainer", "torch"):
        import torch
        from safetensors.torch import save_file
        from transformers import Qwen3Config, Qwen3ForCausalLM

    root = Path(directory)
    root.mkdir(parents=True, exist_ok=True)
    special = _special_tokens(root)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=mlp,
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
        bos_token_id=None,
        eos_token_id=special.get("eos_token") if eos_token_id is None else eos_token_id,
        pad_token_id=special.get("pad_token") if pad_token_id is None else pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(embedding_std / config.initializer_range)
    # As `model.save_pretrained` does, which imports every parallel framework that is installed.
    config.architectures = [type(model).__name__]
    config.save_pretrained(root)
    model.generation_config.save_pretrained(root)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save_file(parameters, str(root / "model.safetensors"), metadata={"format": "pt"})
    return root


def build_small(directory: str | Path, shape: SmallModel, *, vocab_size: int, seed: int) -> Path:
    """Call `build_model` with the shape as one value."""
    return build_model(directory, vocab_size=vocab_size, seed=seed, **asdict(shape))


def _special_tokens(root: Path) -> dict[str, int]:
    settings, vocabulary = root / "tokenizer_config.json", root / "tokenizer.json"
    if not (settings.is_file() and vocabulary.is_file()):
        return {}
    names = json.loads(settings.read_text(encoding="utf-8"))
    ids = {
        token["content"]: token["id"] for token in json.loads(vocabulary.read_text(encoding="utf-8"))["added_tokens"]
    }
    return {key: ids[names[key]] for key in ("eos_token", "pad_token") if names.get(key) in ids}
