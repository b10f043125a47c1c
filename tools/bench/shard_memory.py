"""Host memory that publishing takes in each process of a trainer, beside its shard: measured, not counted.

    uv run python tools/bench/shard_memory.py [--processes N] [--hidden H] [--layers L] [--json FILE]

Each process holds its FSDP2 shard, publishes versions to a relay, and says how much its memory (resident, shared memory that it
wrote included) grew beyond what it was before the first one. The limit is 1.2 of its shard and one bucket: its largest tensor.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
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
    number: int, count: int, model: str, rendezvous: str, relay: str, token: str, versions: int, queue: Any
) -> None:
    from tailrace.pipeline.roles.rank_publisher import RankPublisher, Shards
    from tailrace.pipeline.roles.transfer import WeightTransfer
    from tailrace.trainer import TrainerConfig
    from tailrace.trainer.worker import TrainerWorker

    config = TrainerConfig(device="cpu", threads=1)
    with TrainerWorker(model, config, rank=number, world_size=count, rendezvous=rendezvous) as worker:
        transfer = WeightTransfer()
        shards = Shards(worker, transfer, number, 1) if count > 1 else None  # as the trainer role does
        publisher = RankPublisher(token, transfer, shards)
        publisher.retarget(relay)
        sizes = [tensor.nbytes for _, tensor in worker.shards()]
        forget()
        before = resident()
        for version in range(versions):
            publisher.publish(version, worker.weights() if shards is None else shards.weights(None))
            publisher.wait(version, 120.0)
        queue.put((number, sum(sizes), max(sizes), resident(peak=True) - before))
        publisher.close()


def measure(processes: int, hidden: int, layers: int, versions: int = 3) -> list[dict[str, float]]:
    """For each process: bytes of its shard and of its largest tensor, and by how much publishing made it grow."""
    from tailrace.paramserver import RelayProcess, new_token
    from tailrace.trainer.small import build_model

    context, token = multiprocessing.get_context("spawn"), new_token()
    with tempfile.TemporaryDirectory() as folder, RelayProcess.start(Path(folder).name, token=token) as relay:
        model = build_model(Path(folder) / "model", vocab_size=4096, hidden=hidden, layers=layers, mlp=4 * hidden)
        queue = context.Queue()
        ranks = [
            context.Process(
                target=rank,
                args=(number, processes, str(model), f"file://{folder}/meet", relay.address, token, versions, queue),
            )
            for number in range(processes)
        ]
        for process in ranks:
            process.start()
        found = sorted(queue.get(timeout=300) for _ in ranks)
        for process in ranks:
            process.join(60)
    names = ("rank", "shard_bytes", "bucket_bytes", "grown_bytes")
    return [dict(zip(names, row, strict=True)) for row in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = measure(options.processes, options.hidden, options.layers)
    print(f"{'rank':>4} {'shard MiB':>10} {'bucket MiB':>11} {'grown MiB':>10} {'limit MiB':>10}")
    for row in rows:
        limit = 1.2 * row["shard_bytes"] + row["bucket_bytes"]
        figures = (row["shard_bytes"], row["bucket_bytes"], row["grown_bytes"], limit)
        print(f"{row['rank']:>4} " + " ".join(f"{value / MIB:>10.1f}" for value in figures))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
