"""What it costs to compare what an engine has with what was published, beside the load and the responses of one step.

    uv run python tools/bench/served_weights.py [--engine transformers vllm] [--hidden H] [--layers L] [--repeats N] [--json F]

Each turn an engine in this process loads a version from a relay, then it is compared (`WeightComparison`'s default, and all
of the weights), then it generates the responses of a step. A ratio is that of one turn, in processor time of this process, so
that it holds on a busy machine. Generating is the part of a step that no pipeline hides: the step itself takes longer.

sample/step   aim: at most 0.01
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tailrace.contracts import DigestingEngine, Request, Sampling, weight_slices
from tailrace.paramserver import Publisher, RelayProcess, RelayReader, new_token
from tailrace.paramserver.bridges.torch_module import publish_module
from tailrace.paramserver.clients.lease_view import LeasedWeights
from tailrace.rollout import WeightsError, build_engine, generate
from tailrace.rollout.served_weights import DIGEST_BYTES, WeightSample

RESPONSES, TOKENS, PROMPT = 128, 64, 16
ALL = 1 << 40


def compared(engine: DigestingEngine, reader: RelayReader, version: int, nbytes: int) -> tuple[float, float]:
    """Processor seconds of one comparison, and the share of the weights that it covers."""
    with reader.lease(version, timeout_s=30, verify=False) as lease:
        begun = time.process_time()
        sample = WeightSample(version, nbytes, f"bench {version}")
        for piece in weight_slices(LeasedWeights(lease), WeightsError):
            sample.take(piece)
        share = sample.check(engine.digests(sample.boxes()))
        return time.process_time() - begun, share


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    from tailrace.trainer.small_model import build_model

    sizes = {"hidden": options.hidden, "layers": options.layers, "mlp": 3 * options.hidden}
    heads = options.hidden // 64
    rows: dict[str, list[float]] = {"load_s": [], "sample_s": [], "all_s": [], "step_s": []}
    token = new_token()
    with tempfile.TemporaryDirectory() as folder:
        path = build_model(
            Path(folder) / "model", vocab_size=4096, heads=heads, kv_heads=heads // 2, head_dim=64, **sizes
        )
        model = AutoModelForCausalLM.from_pretrained(str(path), dtype=torch.float32)
        engine = build_engine(
            name, str(path), {"dtype": "bfloat16", "threads": 1, "max_num_seqs": 64, "max_model_len": 256}
        )
        assert isinstance(engine, DigestingEngine)
        asked = [
            Request(str(i), tuple(range(i, i + PROMPT)), Sampling(max_tokens=TOKENS, seed=i)) for i in range(RESPONSES)
        ]
        with (
            RelayProcess.start("served", token=token) as relay,
            Publisher(relay.address, token=token) as publisher,
            RelayReader(relay.address, token=token) as reader,
        ):
            for version in range(options.repeats + 1):
                publish_module(publisher, version, model)
                publisher.wait(version, 60.0)
                with reader.lease(version, timeout_s=30) as lease:
                    begun = time.process_time()
                    engine.load_weights(LeasedWeights(lease))
                    load_s = time.process_time() - begun
                sample_s, share = compared(engine, reader, version, DIGEST_BYTES)
                all_s, whole = compared(engine, reader, version, ALL)
                begun = time.process_time()
                generate(engine, asked, 600.0)
                step_s = time.process_time() - begun
                if version:  # the first one fills caches
                    for row, seconds in zip(rows.values(), (load_s, sample_s, all_s, step_s), strict=True):
                        row.append(seconds)
        engine.close()
    ratios = {
        "sample/step": [a / b for a, b in zip(rows["sample_s"], rows["step_s"], strict=True)],
        "sample/load": [a / b for a, b in zip(rows["sample_s"], rows["load_s"], strict=True)],
        "all/step": [a / b for a, b in zip(rows["all_s"], rows["step_s"], strict=True)],
    }
    found = {what: [statistics.median(values), min(values), max(values)] for what, values in {**rows, **ratios}.items()}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"engine": name, "parameters": parameters, "share": share, "whole": whole, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", nargs="+", default=["transformers", "vllm"])
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = [measure(name, options) for name in options.engine]
    for row in found:
        print(f"{row['engine']}: {row['parameters'] / 1e6:.1f} M parameters, {row['share']:.1%} compared")
        for what, value in row.items():
            if isinstance(value, list):
                print(f"  {what:<12} {value[0]:.4f} ({value[1]:.4f} to {value[2]:.4f})")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
