"""The data role at the size of a GPU node: appends of fake engines, a batch for 8 ranks, heartbeats meanwhile, and the archive.

    uv run python tools/bench/data_plane.py [--responses N] [--tokens N] [--ranks N] [--replicas N] [--flush N] [--json FILE]

The data role is an actor on Ray, as in a run. Fake engines append as fast as it answers, since one machine has few cores:
figures are tokens per second of processor time, and what eight replicas at 20,000 tokens/s need follows from them. Then ranks
fetch the batch at once, each as the trainer role does: `before` is every rank that takes whole responses as Python objects,
`after` every rank that takes its own rows as packed arrays, in the same run. Then the batch is consumed and archived.
All the while a heartbeat is asked for every 50 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import tempfile
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tailrace.contracts import FinishReason, PartialDelta, Place, TrajectoryRef
from tailrace.pipeline.roles.data import DataRole, DataSettings
from tailrace.pipeline.roles.prompts import PromptSettings
from tailrace.runtime.executor.seam import RoleSpec
from tailrace.runtime.hosts.ray import RayHost
from tailrace.trainer import TrainerConfig
from tailrace.trainer.batch import grpo_samples
from tailrace.trainer.layout import EMPTY, plan
from tailrace.trainer.packed import PackedBatch, load_tokens

GROUP = 8  # responses to a prompt
PROMPT = 64  # tokens
BEAT_S = 0.05
FLEET = 8 * 20_000  # tokens a second of eight replicas
TICKS = os.sysconf("SC_CLK_TCK")


def processor_s(pid: int) -> float:
    """Processor time of a process until now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Heartbeats:
    """Asks the data role for events, as a controller does."""

    def __init__(self, member: Any) -> None:
        self._member, self._ended = member, threading.Event()
        self.slowest_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(BEAT_S):
            started = time.perf_counter()
            self._member.call("events", 0.0, 0, 0).result(600)
            self.slowest_s = max(self.slowest_s, time.perf_counter() - started)

    def take(self) -> float:
        """The slowest since the last call, in seconds."""
        found, self.slowest_s = self.slowest_s, 0.0
        return found

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Do work in so many threads at once."""
    found: list[Any] = [None] * count
    errors: list[BaseException] = []

    def one(number: int) -> None:
        try:
            found[number] = work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found


def settings(folder: Path) -> DataSettings:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({str(number): number for number in range(1000)}, unk_token="0"))  # noqa: S106 - no password
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    numbers = random.Random(0)
    lines = (" ".join(str(numbers.randrange(1000)) for _ in range(PROMPT)) for _ in range(64))
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text, "answer": "1"}) + "\n" for text in lines))
    prompts = PromptSettings(folder / "tokenizer.json", folder / "prompts.jsonl")
    return DataSettings(folder / "store", prompts, "exact", mixed_versions=True, archive=folder / "trained")


def generate(caller: Any, batch: list[str], options: argparse.Namespace, flush: int) -> None:
    """Have fake replicas write the batch: each flush has one delta of each response of the replica's."""
    numbers = random.Random(1)
    # what engines return: single precision, in Python's floats
    values = tuple(array("f", [-numbers.random() for _ in range(flush)]))
    ids = tuple(numbers.randrange(150_000) for _ in range(flush))

    def replica(number: int) -> None:
        mine, owner = batch[number :: options.replicas], f"{number}#1"
        refs = [TrajectoryRef(name, int(name.split(".")[0]), 0, prompt=int(name.split(".")[0])) for name in mine]
        caller.call("begin", owner, 0, refs, 0, timeout_s=600)
        for start in range(0, options.tokens, flush):
            size = min(flush, options.tokens - start)
            finish = FinishReason.STOP if start + size == options.tokens else None
            version = 0 if start < options.tokens // 2 else 1
            deltas = [PartialDelta(name, start, version, ids[:size], values[:size], finish) for name in mine]
            caller.call("append", owner, deltas, timeout_s=600)
        caller.call("set_rewards", {name: float(sum(map(ord, name)) % 2) for name in mine}, timeout_s=600)

    together(options.replicas, replica)


def fetch_whole(caller: Any, batch: list[str], ranks: int) -> tuple[int, float]:
    """Every rank takes the whole batch as Python objects. Returns tokens, and most bytes of a rank over its share."""

    def rank(_: int) -> tuple[int, int]:
        found = caller.call("experiences", batch, timeout_s=600)
        tokens = sum(len(segment.tokens) for one in found for segment in one.segments)
        return tokens, len(pickle.dumps(found[0], protocol=5)) * len(found)

    found = together(ranks, rank)
    share = found[0][0] * 8 / ranks
    return sum(tokens for tokens, _ in found), max(size for _, size in found) / share


def fetch_packed(caller: Any, batch: list[str], ranks: int) -> tuple[int, float]:
    """Every rank plans as the others do and takes its own rows. Returns tokens, and most bytes of a rank over its share."""
    config = TrainerConfig()

    def rank(number: int) -> tuple[int, int, int]:
        outlines = caller.call("outlines", batch, timeout_s=600)
        packed = PackedBatch(outlines, lambda wanted: caller.call("packed", wanted, timeout_s=600))
        (samples,) = grpo_samples([packed.experiences], config)
        budget = {"token_budget": config.micro_batch_tokens, "shared_prompt_tokens": config.shared_prompt_tokens}
        rows = [row for rows in plan(samples, ranks=ranks, **budget)[number] for row in rows if row is not EMPTY]
        mine = [sample for row in rows for sample in row.samples]
        load_tokens(mine)
        tokens = sum(np.asarray(sample.response).shape[0] for sample in mine)
        return tokens, packed.fetched_bytes + len(pickle.dumps(outlines)), sum(outline.tokens for outline in outlines)

    found = together(ranks, rank)
    share = found[0][2] * 8 / ranks
    assert sum(tokens for tokens, _, _ in found) == found[0][2]
    return found[0][2], max(size for _, size, _ in found) / share


def main() -> None:
    parser = argparse.ArgumentParser(description="The data role at the size of a GPU node.")
    parser.add_argument("--responses", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=16_384, help="of a response")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument(
        "--flush", type=int, default=20, help="tokens of a response in one append: 512 at once make in 0.5 s"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    batch = [f"{number // GROUP}.{number % GROUP}" for number in range(options.responses)]
    tokens = options.responses * options.tokens
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        host = RayHost(cpus=4)
        try:
            member = host.spawn("data", "0", 1, RoleSpec.of(DataRole, settings(folder)), Place())
            member.call("ready").result(120)
            report = measure(host.caller("data"), member, batch, tokens, folder, options)
        finally:
            host.close()
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def measure(
    caller: Any, member: Any, batch: list[str], tokens: int, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    pid, beats = member.pid, Heartbeats(member)
    report: dict[str, Any] = {"benchmark": "data_plane", "responses": len(batch), "tokens": options.tokens}
    report |= {"ranks": options.ranks, "flush": options.flush}
    often = [
        f"{number // GROUP}.{number % GROUP}" for number in range(len(batch), len(batch) + max(GROUP, len(batch) // 8))
    ]
    cpu = processor_s(pid)
    generate(caller, often, options, max(1, options.flush // 5))
    report["often_tokens_per_s_per_core"] = len(often) * options.tokens / (processor_s(pid) - cpu)
    cpu, wall = processor_s(pid), time.perf_counter()
    generate(caller, batch, options, options.flush)
    report["data_role_tokens_per_s_per_core"] = tokens / (processor_s(pid) - cpu)
    report["append_wall_s"] = time.perf_counter() - wall
    report["store_bytes_per_token"] = sum(file.stat().st_size for file in folder.glob("store*")) / tokens
    report["heartbeat_append_s"] = beats.take()

    def fetched(how: Callable[[], tuple[int, float]]) -> dict[str, float]:
        role, own, wall = processor_s(pid), time.process_time(), time.perf_counter()
        came, over_share = how()
        return {
            "fetch_tokens_per_s_per_core": came / max(1e-3, time.process_time() - own),
            "fetch_bytes_over_share": over_share,
            "fetch_wall_s": time.perf_counter() - wall,
            "fetch_role_ns_per_batch_token": (processor_s(pid) - role) / tokens * 1e9,
            "heartbeat_max_s": beats.take(),
        }

    report["before"] = fetched(lambda: fetch_whole(caller, batch, options.ranks))
    report |= fetched(lambda: fetch_packed(caller, batch, options.ranks))
    report["heartbeat_fetch_s"] = report["heartbeat_max_s"]
    caller.call("consume", batch, 1, timeout_s=600)
    cpu, wall = processor_s(pid), time.perf_counter()
    caller.call("trim", 1, timeout_s=600)
    report["archive_ns_per_token"] = (processor_s(pid) - cpu) / tokens * 1e9
    report["archive_wall_s"] = time.perf_counter() - wall
    report["archive_bytes_per_token"] = (folder / "trained").stat().st_size / tokens
    report["heartbeat_archive_s"] = beats.take()
    report["heartbeat_max_s"] = max(report[f"heartbeat_{what}_s"] for what in ("append", "fetch", "archive"))
    beats.close()
    return report


def show(report: dict[str, Any]) -> None:
    print(f"{report['responses']} responses of {report['tokens']:,} tokens, {report['ranks']} ranks")
    for key, value in report.items():
        if isinstance(value, dict):
            for part, number in value.items():
                print(f"  {key + ' ' + part:<48} {number:>16,.3f}")
        elif isinstance(value, float):
            print(f"  {key:<48} {value:>16,.3f}")
    often, cores = (FLEET / report[f"{how}_tokens_per_s_per_core"] for how in ("often", "data_role"))
    print(f"eight replicas at 20,000 tokens/s need {cores:.2f} cores of the data role")
    print(f"  {often:.2f} if they append five times as often")


if __name__ == "__main__":
    main()
