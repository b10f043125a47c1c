"""A tiny random Qwen3 with tied embeddings, and its reference results from plain transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

VOCABULARY = 149


def save_tiny_model(path: Path, seed: int, *, layers: int = 3) -> Any:
    """Build the model from a config, save it as a Hugging Face model directory and return it (float32, CPU).

    The weights are large enough that the token distribution is far from uniform, so that a wrong weight shows.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            initializer_range=0.15,
            bos_token_id=None,
            eos_token_id=None,
        )
        model = Qwen3ForCausalLM(config).eval()
    model.save_pretrained(path)
    return model


def log_probabilities(
    model: Any, prompt: tuple[int, ...], response: tuple[int, ...], temperature: float
) -> list[float]:
    """Log-probability of each response token, from one plain forward pass; temperature 0 leaves the logits unscaled."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        scores = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
        picked: list[float] = scores.gather(1, torch.tensor(response)[:, None])[:, 0].tolist()
    return picked


def greedy(model: Any, prompt: tuple[int, ...], length: int) -> tuple[int, ...]:
    """The greedy response, one full forward pass for each token."""
    import torch

    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(length):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tuple(tokens[len(prompt) :])


def next_token_distribution(model: Any, prompt: tuple[int, ...], temperature: float) -> list[float]:
    """Probability of every token after the prompt."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, -1]
        distribution: list[float] = torch.softmax(logits / temperature, dim=-1).tolist()
    return distribution
