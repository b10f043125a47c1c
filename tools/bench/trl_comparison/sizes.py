"""Models of other sizes that answer as the quick start's does: the same policy, and so the same lengths, at another cost.

The warm-started model is widened and deepened without a change of its function (Net2Net, arXiv 1511.05641, in spirit): new
dimensions of the residual stream are zero, new heads and units of MLPs are multiplied by zero, and so are new layers. What
reads the new dimensions is random, so that all of the new weights have gradients from the first step or the second on.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPREAD = 0.02  # standard deviation of new weights that are not zero
TOLERANCE = 1e-3  # nats, most that log-probabilities may differ in


@dataclass(frozen=True, slots=True)
class Size:
    """A size, and what both sides do with it.

    Args:
        shape: its fields of ``config.json``; none: the quick start's model as it is. Heads are 32 wide.
        lr: learning rate.
        steps, quick_steps: optimizer steps of a run, and of a short one.
        prompts: prompts of a batch.
        trl_rows: completions in one of TRL's forward passes: what was fastest, or fits the memory.
    """

    shape: Mapping[str, int]
    lr: float
    steps: int
    quick_steps: int
    prompts: int
    trl_rows: int


def _shape(hidden: int, heads: int, mlp: int, layers: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
    }


SIZES = {
    "0.2": Size({}, 7e-4, 20, 12, 32, 256),
    "3": Size(_shape(256, 8, 768, 4), 3e-4, 14, 8, 32, 64),
    "30": Size(_shape(640, 20, 1920, 6), 1e-4, 8, 6, 8, 32),
}
"""Sizes by millions of parameters."""


def sized(source: Path, directory: Path, size: Size, seed: int) -> Path:
    """The model of a size, made from a model directory; the same directory where there is nothing to change.

    Raises:
        ValueError: the model's answers would change.
    """
    if not size.shape:
        return source
    if directory.exists():
        return directory
    from safetensors.torch import load_file, save_file

    config = json.loads((source / "config.json").read_text())
    ratio = size.shape["hidden_size"] / config["hidden_size"]
    old = load_file(str(source / "model.safetensors"))
    new = grown(config, old, size.shape, seed)
    # RMSNorm divides by the mean square, which zeros make smaller: exact with a smaller epsilon and smaller weights.
    config |= {**size.shape, "rms_norm_eps": config["rms_norm_eps"] / ratio}
    config["layer_types"] = ["full_attention"] * size.shape["num_hidden_layers"]
    directory.mkdir(parents=True)
    for path in source.iterdir():
        if path.suffix == ".json" and path.name not in ("config.json", "trainer.json"):
            shutil.copyfile(path, directory / path.name)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(new, str(directory / "model.safetensors"), metadata={"format": "pt"})
    difference = farthest(source, directory)
    if not difference < TOLERANCE:
        shutil.rmtree(directory)
        raise ValueError(f"found log-probabilities of {source} changed by {difference:.2g} nats, expected none")
    count = sum(tensor.numel() for tensor in new.values())
    print(f"{count / 1e6:.1f} million parameters, log-probabilities as before within {difference:.1e} nats", flush=True)
    return directory


def grown(config: Mapping[str, Any], old: Mapping[str, Any], shape: Mapping[str, int], seed: int) -> dict[str, Any]:
    """Tensors of the larger model.

    Args:
        config: of the small model, which is a Qwen3 with tied embeddings.
        old: its tensors.
        shape: see `Size`.
    """
    import torch

    random = torch.Generator().manual_seed(seed)
    width = config["head_dim"]
    sizes = {
        "hidden": (config["hidden_size"], shape["hidden_size"]),
        "heads": (config["num_attention_heads"] * width, shape["num_attention_heads"] * width),
        "keys": (config["num_key_value_heads"] * width, shape["num_key_value_heads"] * width),
        "mlp": (config["intermediate_size"], shape["intermediate_size"]),
    }
    scale = (sizes["hidden"][0] / sizes["hidden"][1]) ** 0.5
    # name: rows, columns, whether new entries are zero
    matrices = {
        "self_attn.q_proj": ("heads", "hidden", False),
        "self_attn.k_proj": ("keys", "hidden", False),
        "self_attn.v_proj": ("keys", "hidden", False),
        "self_attn.o_proj": ("hidden", "heads", True),
        "mlp.gate_proj": ("mlp", "hidden", False),
        "mlp.up_proj": ("mlp", "hidden", False),
        "mlp.down_proj": ("hidden", "mlp", True),
    }

    def norm(weight: Any) -> Any:
        return scale * torch.cat([weight, torch.ones(sizes["hidden"][1] - len(weight))])

    embeddings = old["model.embed_tokens.weight"]
    more = torch.zeros(len(embeddings), sizes["hidden"][1] - embeddings.shape[1])
    new = {
        "model.embed_tokens.weight": torch.cat([embeddings, more], 1),
        "model.norm.weight": norm(old["model.norm.weight"]),
    }
    for layer in range(shape["num_hidden_layers"]):
        at, there = f"model.layers.{layer}.", layer < config["num_hidden_layers"]
        for name, (rows, columns, zero) in matrices.items():
            full = torch.zeros(sizes[rows][1], sizes[columns][1])
            if not zero:
                full.normal_(0.0, SPREAD, generator=random)
            if there:
                small = old[f"{at}{name}.weight"]
                full[: small.shape[0], : small.shape[1]] = small
            new[f"{at}{name}.weight"] = full
        for name in ("input_layernorm", "post_attention_layernorm"):
            weight = old[f"{at}{name}.weight"] if there else torch.ones(0)
            new[f"{at}{name}.weight"] = norm(weight)
        for name in ("self_attn.q_norm", "self_attn.k_norm"):
            weight = old[f"{at}{name}.weight"] if there else torch.ones(width)
            new[f"{at}{name}.weight"] = weight.clone()
    return new


def farthest(one: Path, other: Path) -> float:
    """Greatest difference of two models' log-probabilities on random tokens, by plain transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    found = []
    for directory in (one, other):
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        tokens = torch.randint(model.config.vocab_size, (8, 48), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            found.append(model(input_ids=tokens).logits.log_softmax(-1))
    return float((found[0] - found[1]).abs().max())
