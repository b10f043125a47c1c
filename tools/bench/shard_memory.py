"""Host memory that loading and publishing take in each process of a trainer, beside its shard: measured, not counted.

    uv run python tools/bench/shard_memory.py [--backend deepspeed] [--processes N] [--hidden H] [--layers L]
        [--whole] [--json FILE]

Each process loads the model, so it holds its shard, by FSDP2 or by DeepSpeed's ZeRO 3, publishes versions to a relay, and
says how much its memory (resident, shared memory that it wrote included) grew at most while it loaded, and beyond that while it
published.
glibc gives back what is freed, as it does not by default for blocks below 32 MiB.

load      limit: 1.1 of its shard and one tensor. Then the model's shortcuts are looked for, as much as a forward pass needs
          beyond that: see `probe` in the table. --whole has each process load the whole model first, as models whose files are
          not safetensors do. ZeRO 3 opens the model after FSDP2 did so for the probe, and holds its part twice, as what passes
          compute with and as what the optimizer steps: see `probe`, too
publish   limit: 1.2 of its shard and one bucket: its largest tensor
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

MIB = 2**20


def resident(peak: bool = False) -> int:
    """Bytes; the peak since `forget`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:" if peak else "VmRSS:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("found no memory figures in /proc/self/status, expected Linux")


def forget() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def rank(
    number: int,
    count: int,
    model: str,
    rendezvous: str,
    relay: str,
    token: str,
    versions: int,
    backend: str,
    whole: bool,
    queue: Any,
) -> None:
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401 - modules are not the model's memory

    from tailrace.pipeline.roles.rank_publisher import RankPublisher, Shards
    from tailrace.pipeline.roles.transfer import WeightTransfer
    from tailrace.trainer import TrainerConfig
    from tailrace.trainer.backend import build_backend, import_backend
    from tailrace.trainer.policy_model import Policy

    config = TrainerConfig(device="cpu", threads=1, zero_stage=3 if backend == "deepspeed" else None)
    import_backend(backend)
    if whole:
        importlib.import_module(f"tailrace.trainer.{backend}").has_weights_file = lambda _: False  # type: ignore[attr-defined]
    probe, peaks = Policy.probe, list[int]()
    Policy.probe = lambda policy: (peaks.append(resident(peak=True)), probe(policy))  # type: ignore[assignment, return-value]
    forget()
    imported = resident()
    with closing(build_backend(backend, model, config, rank=number, world_size=count, rendezvous=rendezvous)) as worker:
        transfer = WeightTransfer()
        shards = Shards(worker, transfer, number, 1) if count > 1 else None  # as the trainer role does
        publisher = RankPublisher(token, transfer, shards)
        publisher.retarget(relay)
        sizes = [tensor.nbytes for _, tensor in worker.shards()]
        loaded, probed = peaks[0] - imported, resident(peak=True) - imported
        forget()
        before = resident()
        for version in range(versions):
            publisher.publish(version, worker.weights() if shards is None else shards.weights(None))
            publisher.wait(version, 120.0)
        grown = resident(peak=True) - before
        queue.put((number, sum(sizes), max(sizes), grown, loaded, probed))
        publisher.close()


def measure(
    processes: int, hidden: int, layers: int, versions: int = 3, *, backend: str = "fsdp2", whole: bool = False
) -> list[dict[str, float]]:
    """For each process: bytes of its shard and of its largest tensor, and by how much publishing and loading made it grow."""
    from tailrace.paramserver import RelayProcess, new_token
    from tailrace.trainer.small_model import build_model

    context, token = multiprocessing.get_context("spawn"), new_token()
    with tempfile.TemporaryDirectory() as folder, RelayProcess.start(Path(folder).name, token=token) as relay:
        model = build_model(Path(folder) / "model", vocab_size=4096, hidden=hidden, layers=layers, mlp=4 * hidden)
        queue = context.Queue()
        ranks = [
            context.Process(
                target=rank,
                args=(
                    number,
                    processes,
                    str(model),
                    f"file://{folder}/meet",
                    relay.address,
                    token,
                    versions,
                    backend,
                    whole,
                    queue,
                ),
            )
            for number in range(processes)
        ]
        os.environ |= {"MALLOC_MMAP_THRESHOLD_": str(MIB), "MALLOC_TRIM_THRESHOLD_": str(MIB)}
        for process in ranks:
            process.start()
        found = sorted(queue.get(timeout=300) for _ in ranks)
        for process in ranks:
            process.join(60)
    names = ("rank", "shard_bytes", "bucket_bytes", "grown_bytes", "load_bytes", "probe_bytes")
    return [dict(zip(names, row, strict=True)) for row in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--backend", choices=("fsdp2", "deepspeed"), default="fsdp2")
    parser.add_argument("--whole", action="store_true", help="load the whole model in each process, for comparison")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = measure(options.processes, options.hidden, options.layers, backend=options.backend, whole=options.whole)
    print("MiB  " + " ".join(f"{name:>10}" for name in ("shard", "load", "limit", "probe", "publish", "limit")))
    for row in rows:
        load_limit = 1.1 * row["shard_bytes"] + row["bucket_bytes"]
        limit = 1.2 * row["shard_bytes"] + row["bucket_bytes"]
        figures = (row["shard_bytes"], row["load_bytes"], load_limit, row["probe_bytes"], row["grown_bytes"], limit)
        print(f"{row['rank']:>4} " + " ".join(f"{value / MIB:>10.1f}" for value in figures))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
