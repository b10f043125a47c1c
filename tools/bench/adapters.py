"""What an engine pays for an adapter that it applies, beside one merged into its weights at each pull; and what sleep frees.

    uv run python tools/bench/adapters.py [--engine NAME] [--hidden H] [--layers L] [--rank R] [--rounds N] [--json FILE]

Two engines of the same model take turns, so that what else the machine does meets both: `applied` is given each version of an
adapter, `merged` the whole weights with it, each tensor merged as a replica does it. One process; vLLM runs the second engine's
model in a worker process, and with --apart the first one's too.

bytes    into the engine at a pull, applied over merged
pull     seconds of a pull, applied over merged: limit 0.5
tokens   tokens a second of a batch, applied over merged: what applying costs a token
sleep    resident memory awake, asleep at level 1 and 2, and awake again, of an engine alone with its KV cache in use
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

PULL_LIMIT = 0.5
BATCH, LENGTH = 32, 64


def versions(directory: Path, rank: int, count: int) -> list[Any]:
    """Random adapters of a model directory, as a trainer publishes them."""
    import torch

    from tailrace.trainer import AdapterConfig
    from tailrace.trainer.adapters import QWEN_TARGETS, Adapter
    from tailrace.trainer.weights_file import tensor_shapes

    draw = torch.Generator().manual_seed(1)
    found = []
    for _ in range(count):
        named = {}
        for name, shape in tensor_shapes(directory).items():
            layer, _, kind = name.rpartition(".")
            if kind == "weight" and layer.rpartition(".")[2] in QWEN_TARGETS:
                named[f"base_model.model.{layer}.lora_A.weight"] = torch.randn(rank, shape[1], generator=draw) * 0.02
                named[f"base_model.model.{layer}.lora_B.weight"] = torch.randn(shape[0], rank, generator=draw) * 0.02
        found.append(Adapter(named, AdapterConfig(rank=rank)))
    return found


def tokens_per_s(engine: Any) -> float:
    """Tokens a second of one batch."""
    from tailrace.contracts import Request, Sampling
    from tailrace.rollout import generate

    asked = [Request(str(i), (1 + i, 2, 3), Sampling(max_tokens=LENGTH)) for i in range(BATCH)]
    began = time.perf_counter()
    made = sum(len(response.tokens) for response in generate(engine, asked, 600.0).values())
    return made / (time.perf_counter() - began)


def compare(engine: str, model: Path, rank: int, rounds: int, options: dict[str, Any]) -> dict[str, Any]:
    """The ratios of pulls and tokens, interleaved."""
    from tailrace.contracts import AdapterWeights
    from tailrace.rollout import build_engine
    from tailrace.trainer import load_weights_file

    adapters = versions(model, rank, rounds + 1)
    applying = build_engine(engine, str(model), {**options, "adapter_rank": rank})
    merging = build_engine(engine, str(model), options)
    pulls, speeds = [], []
    try:
        for number, adapter in enumerate(adapters):
            began = time.perf_counter()
            applying.load_adapter(AdapterWeights(adapter.layers, rank, adapter.scale, lambda: load_weights_file(model)))
            applied_s = time.perf_counter() - began
            began = time.perf_counter()
            merging.load_weights(adapter.merged(load_weights_file(model)))
            merged_s = time.perf_counter() - began
            speed = tokens_per_s(applying), tokens_per_s(merging)
            if number:  # the first round warms up
                pulls.append(applied_s / merged_s)
                speeds.append(speed[0] / speed[1])
    finally:
        applying.close()
        merging.close()
    small = sum(half.nbytes for pair in adapters[0].layers.values() for half in pair)
    whole = sum(tensor.nbytes for _, tensor in load_weights_file(model))
    return {"adapter_bytes": small, "whole_bytes": whole, "pull": spread(pulls), "tokens": spread(speeds)}


def spread(values: list[float]) -> list[float]:
    """Median, least and most."""
    return [round(value, 3) for value in (statistics.median(values), min(values), max(values))]


def slept(engine: str, model: Path, options: dict[str, Any]) -> dict[str, list[int]]:
    """MiB awake, asleep and awake again, for each level."""
    from tailrace.rollout import build_engine
    from tailrace.rollout.memory import memory_bytes
    from tailrace.trainer import load_weights_file

    found = {}
    one = build_engine(engine, str(model), {**options, "sleep_level": 2})
    try:
        for level in (1, 2):
            tokens_per_s(one)
            measured = [memory_bytes()]
            one.sleep(level)
            measured.append(memory_bytes())
            one.wake()
            one.load_weights(load_weights_file(model))
            tokens_per_s(one)
            measured.append(memory_bytes())
            found[f"level {level}"] = [round(value / 2**20) for value in measured]
    finally:
        one.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    from tailrace.trainer.small_model import build_model

    options: dict[str, Any] = {"dtype": "float32", "threads": 1, "max_num_seqs": BATCH, "kv_cache_bytes": 256 << 20}
    options |= {"apart": True} if asked.apart else {}
    with tempfile.TemporaryDirectory() as folder:
        model = build_model(
            Path(folder) / "model",
            vocab_size=4096,
            hidden=asked.hidden,
            layers=asked.layers,
            head_dim=64,
            mlp=3 * asked.hidden,
        )
        sleep = slept(asked.engine, model, options)
        found = {
            "engine": asked.engine,
            **compare(asked.engine, model, asked.rank, asked.rounds, options),
            "sleep_mib": sleep,
        }
    found["bytes"] = round(found["adapter_bytes"] / found["whole_bytes"], 4)
    print(json.dumps(found))
    if asked.json is not None:
        with asked.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
    if found["pull"][0] > PULL_LIMIT:
        raise SystemExit(f"found a pull of {found['pull'][0]} of a merged one, expected at most {PULL_LIMIT}")


if __name__ == "__main__":
    main()
