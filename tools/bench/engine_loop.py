"""What Tailrace adds to each step of vLLM, and its loop beside `LLM.generate` with the same requests.

    uv run python tools/bench/engine_loop.py [--running 256,512,1024] [--tokens N] [--turns N] [--async] [--json FILE]

Three loops take turns with the same requests, each of a prompt of 16 tokens and a response of so many:

    engine     `Engine.submit`, then `Engine.step` until all is done; nothing else
    replica    the same engine in a `ReplicaWorker`, its tokens in a trajectory store on disk, its events read by a third thread
    generate   `LLM.generate` of an engine of its own in this process, without text

A model of 30 M parameters is built from a configuration. `added` is the time of the replica's loop per step less the engine's,
as a share of the engine's: the median over turns of pairs that follow one another. `outside` is the share of the worker's time
that it spends outside of `Engine.step`; what other threads take from the step by Python's lock is in `added` alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailrace.contracts import Delta, Finished, Pull, Pulled, Request, Route, Sampling, TrajectoryRef
from tailrace.rollout import ReplicaWorker, build_engine
from tailrace.rollout.testing import MemoryWeights
from tailrace.trajstore import Assignment, TrajectoryStore

PROMPT_TOKENS, VOCABULARY = 16, 8_192
GROUP = 8
DEADLINE_S = 1_800.0


def save_model(path: Path) -> Any:
    """A random Qwen3 of 30 M parameters with tied embeddings."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = Qwen3ForCausalLM(config).eval()
    model.save_pretrained(path)
    return model


class TimedEngine:
    """An engine that outlives the workers that drive it, and says how long its steps took."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.forget()

    def forget(self) -> None:
        """Begin to measure."""
        self.steps, self.seconds, self.first, self.last = 0, 0.0, 0.0, 0.0

    def step(self) -> Sequence[Delta]:
        """One step of the engine."""
        start = time.perf_counter()
        deltas: Sequence[Delta] = self.engine.step()
        self.last = time.perf_counter()
        self.first = self.first or start
        self.steps, self.seconds = self.steps + 1, self.seconds + self.last - start
        return deltas

    def close(self) -> None:
        """Leave it open."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


class StoredPrompts:
    """A trajectory store as a replica's source, as the data role is one."""

    def __init__(self, store: TrajectoryStore, prompts: Sequence[tuple[int, ...]]) -> None:
        self._store, self._prompts = store, prompts

    def begin(self, replica: str, version: int, refs: Sequence[TrajectoryRef], seq: int) -> Any:
        """Give trajectories to a replica."""
        del seq
        given = [Assignment(ref.trajectory, ref.group, self._prompts[int(ref.trajectory)]) for ref in refs]
        return self._store.begin(replica, version, given)

    def append(self, replica: str, deltas: Any) -> Any:
        """Store tokens."""
        return self._store.append(replica, list(deltas))


def by_engine(engine: TimedEngine, prompts: Sequence[tuple[int, ...]], sampling: Sampling) -> float:
    """Seconds from the first step to the end."""
    engine.submit([Request(str(index), prompt, sampling) for index, prompt in enumerate(prompts)])
    left = len(prompts)
    engine.forget()
    while left:
        left -= sum(delta.finish is not None for delta in engine.step())
    return engine.last - engine.first


def by_replica(engine: TimedEngine, prompts: Sequence[tuple[int, ...]], sampling: Sampling, folder: Path) -> float:
    """Seconds from the first step to the end."""
    with TrajectoryStore(folder / "store.db") as store:
        weights = MemoryWeights({0: {}})
        worker = ReplicaWorker(
            "r0",
            _Loaded(engine),
            StoredPrompts(store, prompts),
            weights,
            sampling=lambda _: sampling,
            partial_s=0.5,
        )
        ended, pulled = threading.Event(), threading.Event()
        left = [len(prompts)]

        def read() -> None:
            while left[0]:
                for event in worker.events(0.5):
                    left[0] -= isinstance(event, Finished)
                    if isinstance(event, Pulled):
                        pulled.set()
            ended.set()

        threading.Thread(target=read, daemon=True).start()
        worker.submit(Pull(1, "r0", 0))
        if not pulled.wait(60):
            raise SystemExit("the replica pulled nothing")
        engine.forget()
        refs = tuple(TrajectoryRef(str(index), index // GROUP, index // GROUP) for index in range(len(prompts)))
        worker.submit(Route(2, "r0", refs))
        if not ended.wait(DEADLINE_S):
            raise SystemExit("the replica did not end")
        worker.close(60)
        return engine.last - engine.first


class _Loaded:
    """An engine that keeps its weights, whatever it is given: pulls are not measured."""

    def __init__(self, engine: TimedEngine) -> None:
        self._engine = engine

    def load_weights(self, weights: Any) -> None:
        for _ in weights:
            pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def peer(path: Path, running: int, kv_bytes: int) -> Any:
    """vLLM's own `LLM`, with what our engine has."""
    import torch
    from vllm import LLM

    set_num_threads = torch.set_num_threads  # which vLLM replaces by a function that does nothing
    llm = LLM(
        model=str(path),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=512,
        max_num_seqs=running,
        max_num_batched_tokens=max(2048, running),
        kv_cache_memory_bytes=kv_bytes,
        enforce_eager=True,
        distributed_executor_backend="uni",
        logprobs_mode="processed_logprobs",
        block_size=32,
    )
    torch.set_num_threads = set_num_threads
    return llm


def by_generate(llm: Any, prompts: Sequence[tuple[int, ...]], tokens: int) -> float:
    """Seconds of `LLM.generate`."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False)
    given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    start = time.perf_counter()
    made = llm.generate(given, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    if any(len(one.outputs[0].token_ids) != tokens for one in made):
        raise SystemExit("LLM.generate ended a response early")
    return seconds


def measure(path: Path, running: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures for so many requests that run at once."""
    draw = random.Random(running)
    prompts = [tuple(draw.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)) for _ in range(running)]
    sampling = Sampling(temperature=1.0, max_tokens=options.tokens)
    blocks = -(-(PROMPT_TOKENS + options.tokens) // 32) + 1
    kv_bytes = running * blocks * 32 * 2 * 8 * 4 * 64 * 4
    given = {"max_num_seqs": running, "max_model_len": 512, "kv_cache_bytes": kv_bytes, "block_tokens": 32}
    given |= {"dtype": "float32", "device": "cpu", "threads": options.threads, "async_scheduling": options.ahead}
    engine = TimedEngine(build_engine("vllm", str(path), given))
    llm = None if options.no_peer else peer(path, running, kv_bytes)
    seconds: dict[str, list[float]] = {"engine": [], "replica": [], "generate": []}
    outside: list[float] = []
    for turn in range(options.turns + 1):  # the first warms up
        found = {"engine": by_engine(engine, prompts, sampling) / engine.steps}
        with tempfile.TemporaryDirectory(dir=folder) as name:
            spent = by_replica(engine, prompts, sampling, Path(name))
        found["replica"] = spent / engine.steps
        if llm is not None:
            found["generate"] = by_generate(llm, prompts, options.tokens) / options.tokens
        if turn:
            for name, value in found.items():
                seconds[name].append(value)
            outside.append(1 - engine.seconds / spent)
    engine.engine.close()
    added = [replica / alone - 1 for alone, replica in zip(seconds["engine"], seconds["replica"], strict=True)]
    figures: dict[str, Any] = {
        "running": running,
        "ms_per_step": {name: 1000 * statistics.median(values) for name, values in seconds.items() if values},
        "added": statistics.median(added),
        "added_least": min(added),
        "added_most": max(added),
        "outside": statistics.median(outside),
    }
    if llm is not None:
        ratios = [one / other for one, other in zip(seconds["replica"], seconds["generate"], strict=True)]
        figures |= {"over_generate": statistics.median(ratios), "over_generate_range": [min(ratios), max(ratios)]}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="What Tailrace adds to each step of vLLM.")
    parser.add_argument("--running", default="256,512,1024", help="requests that run at once, one measurement for each")
    parser.add_argument("--tokens", type=int, default=24, help="of each response")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="for an operator of the engine")
    parser.add_argument("--async", dest="ahead", action="store_true", help="with asynchronous scheduling")
    parser.add_argument("--no-peer", action="store_true", help="without LLM.generate")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parameters = sum(each.numel() for each in save_model(folder / "model").parameters())
        print(f"{parameters / 1e6:.1f} M parameters, {options.tokens} tokens each, {options.turns} turns")
        heads = "".join(f" {name:>9}" for name in ("engine", "replica", "generate"))
        print(f"{'running':>7}{heads} ms a step {'added':>7} {'outside':>7} {'/generate':>9}")
        for running in map(int, options.running.split(",")):
            row = measure(folder / "model", running, options, folder)
            rows.append(row)
            took = row["ms_per_step"]
            print(
                f"{running:>7} {took['engine']:>9.2f} {took['replica']:>9.2f} {took.get('generate', float('nan')):>9.2f} "
                f"{'':>9} {row['added']:>7.1%} {row['outside']:>7.1%} {row.get('over_generate', float('nan')):>9.2f}",
                flush=True,
            )
    if options.json:
        options.json.write_text(
            json.dumps({"parameters": parameters, "tokens": options.tokens, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
