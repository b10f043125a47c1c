"""Tokens per second of the stream generation service, in process and over HTTP, over those of the bare engines, taking turns.

    uv run python tools/bench/service.py [--engine transformers vllm] [--replicas N] [--repeats N] [--json FILE]

A side generates the same prompts, with as many engines of the same options, each in a process of its own:

    bare         every request is given to an engine at once, and the engine is stepped until the last one ends
    in process   `StreamGenerationService.generate`, which starts a sample when a slot is free
    over HTTP    the same service behind ``POST /v1/generate``, read line by line by a client in another process

The model is a Qwen3 of random weights. Some tokens end a response, so lengths differ (`--max-tokens` at most). The sides
take turns, in another order each time; a ratio is that of one turn. `front_cpu` is the CPU time of the process that hosts the
service, as a share of one core while it generates.

Wall clock compares them on a quiet machine alone: where others compute too, a side of more processes gets more of the cores.
`cpu_ratio` holds there, too: it is the CPU time for each token of the bare engines over the side's, with all its processes.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tailrace.contracts import Request, Sampling
from tailrace.rollout import StreamGenerationService, build_engine
from tailrace.rollout.serving import listen, serve

VOCABULARY = 149
PROMPT_TOKENS = 16
AIMS = {"in process": 0.95, "over HTTP": 0.9}
Work = tuple[list[tuple[int, ...]], int, int]
"""Prompts, samples of each, most response tokens."""


def small_model(directory: Path, options: argparse.Namespace) -> Path:
    from tailrace.trainer.small_model import build_model

    build_model(
        directory,
        vocab_size=VOCABULARY,
        hidden=options.hidden,
        layers=options.layers,
        heads=options.hidden // 16,
        kv_heads=options.hidden // 32,
        head_dim=32,
        mlp=3 * options.hidden,
    )
    ends = list(range(options.end_tokens))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return directory


def bare(pipe: Connection, engine: str, model: str, options: dict[str, Any], ends: tuple[int, ...]) -> None:
    """An engine in a process of its own, without anything around it."""
    built = build_engine(engine, model, options)
    pipe.send("up")
    while (work := pipe.recv()) is not None:
        prompts, samples, most = work
        sampling = Sampling(1.0, most, ends)
        names = [(index, sample) for index in range(len(prompts)) for sample in range(samples)]
        built.submit([Request(f"{index}.{sample}", prompts[index], sampling) for index, sample in names])
        tokens, left = 0, len(names)
        while left:
            for delta in built.step():
                tokens += len(delta.tokens)
                left -= delta.finish is not None
        pipe.send(tokens)
    built.close()


def client(pipe: Connection, url: str, token: str) -> None:
    """Reads samples over HTTP."""
    at = urlsplit(url)
    while (work := pipe.recv()) is not None:
        prompts, samples, most = work
        connection = http.client.HTTPConnection(str(at.hostname), at.port)
        body = json.dumps({"prompts": prompts, "samples": samples, "max_tokens": most})
        connection.request("POST", "/v1/generate", body, {"Authorization": f"Bearer {token}"})
        lines = [json.loads(line) for line in connection.getresponse()]
        assert len(lines) == samples * len(prompts), lines[-1]
        pipe.send(sum(len(line["tokens"]) for line in lines))
        connection.close()


class Processes:
    """Children that do a part of the work each."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._all: list[tuple[Any, Connection]] = []

    def start(self, target: Callable[..., None], *arguments: Any) -> Connection:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=target, args=(theirs, *arguments), daemon=True)
        process.start()
        theirs.close()
        self._all.append((process, ours))
        return ours

    def close(self) -> None:
        for process, pipe in self._all:
            pipe.send(None)
            process.join(30)


def children_s() -> float:
    """CPU time of the processes that this one has started and that live."""
    ticks = 0
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            ticks += sum(map(int, Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


async def timed(generate: Awaitable[int]) -> dict[str, float]:
    """Tokens per second, and CPU time."""
    wall, own, others = time.perf_counter(), time.process_time(), children_s()
    tokens = await generate
    wall_s, own_s, cpu_s = time.perf_counter() - wall, time.process_time() - own, children_s() - others
    return {
        "tokens": tokens,
        "seconds": wall_s,
        "tokens_per_s": tokens / wall_s,
        "front_cpu": own_s / wall_s,
        "front_us_per_token": 1e6 * own_s / tokens,
        "us_per_token": 1e6 * (own_s + cpu_s) / tokens,
    }


async def answers(pipes: list[Connection], works: list[Work]) -> int:
    for pipe, work in zip(pipes, works, strict=True):
        pipe.send(work)
    return sum(await asyncio.gather(*(asyncio.to_thread(pipe.recv) for pipe in pipes)))


async def in_process(service: StreamGenerationService, work: Work) -> int:
    prompts, samples, most = work
    async with aclosing(service.generate(prompts, samples, max_tokens=most)) as found:
        return sum([len(sample.tokens) async for sample in found])


async def measure(engine: str, model: Path, options: argparse.Namespace) -> dict[str, Any]:
    engine_options = {"device": options.device, "max_num_seqs": options.max_num_seqs, "seed": 1}
    if options.threads:
        engine_options["threads"] = options.threads
    draw = random.Random(0)
    prompts = [
        tuple(draw.randrange(options.end_tokens, VOCABULARY) for _ in range(PROMPT_TOKENS))
        for _ in range(options.prompts)
    ]
    whole: Work = (prompts, options.samples, options.max_tokens)
    parts: list[Work] = [
        (prompts[number :: options.replicas], options.samples, options.max_tokens) for number in range(options.replicas)
    ]
    processes = Processes()
    ends = tuple(range(options.end_tokens))
    bares = [processes.start(bare, engine, str(model), engine_options, ends) for _ in range(options.replicas)]
    for pipe in bares:
        await asyncio.to_thread(pipe.recv)
    service = StreamGenerationService(model, options.replicas, engine=engine, options=engine_options)
    told = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(service, listen("127.0.0.1", 0), lambda url, token_file: told.set_result((url, token_file.read_text())))
    )
    await asyncio.wait({told, serving}, return_when=asyncio.FIRST_COMPLETED)
    if not told.done():
        await serving
    reading = processes.start(client, *told.result())
    sides: dict[str, Callable[[], Awaitable[int]]] = {
        "bare": lambda: answers(bares, parts),
        "in process": lambda: in_process(service, whole),
        "over HTTP": lambda: answers([reading], [whole]),
    }
    turns = []
    for turn in range(options.repeats + 1):  # the first one warms up
        names = list(sides)
        random.Random(turn).shuffle(names)
        found = {name: await timed(sides[name]()) for name in names}
        turns.append(found)
        say = ", ".join(f"{name} {one['tokens_per_s']:,.0f}" for name, one in found.items())
        print(f"{engine}, turn {turn}: tokens per second {say}", flush=True)
    await asyncio.to_thread(processes.close)
    os.kill(os.getpid(), signal.SIGTERM)
    await serving
    return {"engine": engine, "options": engine_options, **figures(turns[1:]), "turns": turns}


def figures(turns: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    def median(side: str, figure: str) -> float:
        return statistics.median(turn[side][figure] for turn in turns)

    found: dict[str, Any] = {
        "bare_tokens_per_s": median("bare", "tokens_per_s"),
        "bare_us_per_token": median("bare", "us_per_token"),
    }
    for name, aim in AIMS.items():
        ratios = [turn[name]["tokens_per_s"] / turn["bare"]["tokens_per_s"] for turn in turns]
        cpu_ratios = [turn["bare"]["us_per_token"] / turn[name]["us_per_token"] for turn in turns]
        found[name] = {
            "ratio": statistics.median(ratios),
            "ratios": sorted(ratios),
            "cpu_ratio": statistics.median(cpu_ratios),
            "cpu_ratios": sorted(cpu_ratios),
            "aim": aim,
            "front_cpu": median(name, "front_cpu"),
            "front_us_per_token": median(name, "front_us_per_token"),
        }
    return found


def main() -> None:
    installed = [name for name in ("transformers", "vllm") if find_spec(name) is not None]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", nargs="+", default=installed)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of an engine; 0 leaves the engine's own number")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--end-tokens", type=int, default=2, help="of the vocabulary, that end a response")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as directory:
        model = small_model(Path(directory) / "model", options)
        for engine in options.engine:
            found.append(asyncio.run(measure(engine, model, options)))
            for name in AIMS:
                one = found[-1][name]
                spread, cpu = one["ratios"], one["cpu_ratios"]
                print(
                    f"{engine} {name}: {one['ratio']:.3f} ({spread[0]:.3f} to {spread[-1]:.3f}) of the bare engines' "
                    f"{found[-1]['bare_tokens_per_s']:,.0f} tokens per second, aim {one['aim']}; in CPU time "
                    f"{one['cpu_ratio']:.3f} ({cpu[0]:.3f} to {cpu[-1]:.3f}); the service's own process takes "
                    f"{one['front_cpu']:.1%} of a core, {one['front_us_per_token']:.0f} us a token"
                )
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
