"""Held-out accuracy of saved models, the same code for both sides, outside of every clock.

    python -m trl_comparison.accuracy REQUEST.json OUT.json

The request holds the held-out file, how to draw, and one list of model directories for each run, in order; each run is
followed as far as the first model that reaches the target.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SHRINK_EVERY = 8  # tokens between looks at which responses have ended


def main() -> None:
    import torch

    torch.set_num_threads(2)
    request = json.loads(Path(sys.argv[1]).read_text())
    rows = [json.loads(line) for line in Path(request["held_out"]).read_text().splitlines()]
    drawing = {name: int(request[name]) for name in ("draws", "max_tokens", "seed")}
    found: dict[str, float] = {}
    for models in request["runs"]:
        for model in models:
            if model not in found:
                found[model] = accuracy(model, rows, **drawing)
            if found[model] >= request["target"]:
                break
    Path(sys.argv[2]).write_text(json.dumps(found, indent=1))


def accuracy(model_dir: str, rows: list[dict[str, Any]], *, draws: int, max_tokens: int, seed: int) -> float:
    """Share of right answers, `draws` responses to every problem, at temperature 1."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    from tailrace.reward import load_verifier, read_verdict

    tokenizer = Tokenizer.from_file(str(Path(model_dir) / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    torch.manual_seed(seed)
    prompts = [tokenizer.encode(row["prompt"], add_special_tokens=False).ids for row in rows for _ in range(draws)]
    responses = sample(model, prompts, max_tokens)
    verifiers = {name: load_verifier(name) for name in {row["verifier"] for row in rows}}
    right = 0.0
    for number, tokens in enumerate(responses):
        row = rows[number // draws]
        text = tokenizer.decode(tokens, skip_special_tokens=False)
        right += read_verdict(verifiers[row["verifier"]](text, row["answer"], row["metadata"]))[0]
    return right / len(responses)


def sample(model: Any, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Responses drawn from the model, end token included. Those that have ended leave the batch."""
    import torch
    from transformers import DynamicCache

    end, width = model.generation_config.eos_token_id, max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    alive = torch.arange(len(prompts))
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    responses: list[list[int]] = [[] for _ in prompts]
    cache = DynamicCache()
    with torch.no_grad():
        for count in range(1, max_tokens + 1):
            logits = model(
                input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1
            ).logits[:, -1]
            drawn = torch.multinomial(logits.softmax(-1), 1)
            for row, token, over in zip(alive.tolist(), drawn[:, 0].tolist(), ended.tolist(), strict=True):
                if not over:
                    responses[row].append(token)
            ended |= drawn[:, 0] == end
            if ended.all():
                break
            mask = torch.cat([mask, torch.ones(len(mask), 1, dtype=mask.dtype)], dim=1)
            ids, positions = drawn, positions[:, -1:] + 1
            if count % SHRINK_EVERY == 0 and ended.any():
                keep = (~ended).nonzero()[:, 0]
                cache.batch_select_indices(keep)
                ids, mask, positions, alive, ended = ids[keep], mask[keep], positions[keep], alive[keep], ended[keep]
    return responses


if __name__ == "__main__":
    main()
