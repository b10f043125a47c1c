"""What it takes to lend devices to the trainer and to get them back: memory, seconds, and whether gradients stay the same.

    uv run python tools/bench/hand_over.py [--engine NAME] [--hidden H] [--layers L] [--level 1|2] [--rounds N]
                                           [--device cpu|cuda] [--json FILE]

An engine and a trainer are a process each. In every round the engine generates a batch, which fills its KV cache; it sleeps;
the trainer brings its state back, adds the gradients of half of a batch, and moves everything away; the engine wakes, loads the
weights and generates again; and the trainer steps. A third process makes the same steps without any loan.

lend_s                 seconds until the engine has left, and the trainer's state is there: median, least, most
return_s               seconds until the trainer has left, and the engine is awake and has weights
freed_over_expected    memory that the engine gave back, over that of its weights (level 2) and of the cache in use: 1
gradients_relative     largest difference of a gradient with and without loans, over the largest gradient: 0
memory_mib             resident memory of engine and trainer, on CUDA that of the device, at each stage of the last round
pcie                   seconds of a pinned copy of what the trainer moved away, over those that it took (CUDA): 1

On a CPU the trainer's memory is the host's already, so it moves nothing, and its resident memory stays.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

VOCABULARY, BATCH, LENGTH, PROMPT = 4096, 16, 96, 4
GROUPS, SAMPLES = 4, 4
PARTS = ("parameters", "gradients", "optimizer")
DEADLINE_S = 600.0
RELATIVE_LIMIT, FREED_LIMIT = 1e-6, 0.8


class Owner:
    """A process that owns memory, and carries out what it is told.

    Args:
        work: runs in the process, with its end of a pipe.
        arguments: what `work` gets besides.
    """

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    def __call__(self, command: str, *arguments: Any) -> Any:
        """Have a command carried out. Returns its answer.

        Raises:
            SystemExit: the process ended, or did not answer in time.
        """
        self._pipe.send((command, *arguments))
        if not self._pipe.poll(DEADLINE_S):
            raise SystemExit(f"found no answer to {command!r} within {DEADLINE_S:.0f} s, expected one")
        try:
            return self._pipe.recv()
        except EOFError:
            raise SystemExit(f"the process that was to {command!r} ended: {self._process.exitcode}") from None

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(30.0)
        if self._process.is_alive():
            self._process.kill()


def serve(pipe: Connection, commands: dict[str, Callable[..., Any]]) -> None:
    """Answer commands until the other end is closed."""
    while True:
        try:
            name, *arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(commands[name](*arguments))


def own_engine(pipe: Connection, name: str, model: Path, options: dict[str, Any], level: int) -> None:
    """Own an engine."""
    from tailrace.contracts import Request, Sampling
    from tailrace.rollout import build_engine
    from tailrace.rollout.memory import memory_bytes
    from tailrace.trainer import load_weights_file

    engine = build_engine(name, str(model), {**options, "sleep_level": level})
    engine.load_weights(load_weights_file(model))

    def generate(seed: int) -> float:
        """The largest share of the cache that was in use while a batch was generated."""
        prompts = [tuple(range(1 + seed + row, 1 + seed + row + PROMPT)) for row in range(BATCH)]
        engine.submit([Request(str(row), prompt, Sampling(max_tokens=LENGTH)) for row, prompt in enumerate(prompts)])
        left, used, deadline = {str(row) for row in range(BATCH)}, 0.0, time.monotonic() + DEADLINE_S
        while left and time.monotonic() < deadline:
            left -= {delta.id for delta in engine.step() if delta.finish is not None}
            used = max(used, engine.stats().kv)
        return used

    def sleep() -> tuple[float, int, int]:
        awake, began = memory_bytes(), time.perf_counter()
        engine.sleep(level)
        return time.perf_counter() - began, awake, memory_bytes()

    def wake() -> float:
        began = time.perf_counter()
        engine.wake()
        if level > 1:
            engine.load_weights(load_weights_file(model))
        return time.perf_counter() - began

    try:
        serve(pipe, {"generate": generate, "sleep": sleep, "wake": wake, "memory": memory_bytes})
    finally:
        engine.close()


def own_trainer(pipe: Connection, model: Path, device: str, file: Path) -> None:
    """Own a trainer of one rank."""
    import torch

    from tailrace.rollout.memory import memory_bytes
    from tailrace.trainer import TrainerConfig
    from tailrace.trainer.testing import inside, make_experiences
    from tailrace.trainer.worker import TrainerWorker

    config = TrainerConfig(lr=1e-4, device=device, threads=1)
    with TrainerWorker(model, config) as worker:

        def batch(number: int) -> list[Any]:
            return make_experiences(GROUPS, SAMPLES, vocab_size=VOCABULARY, seed=number, max_response=LENGTH)

        def offload() -> tuple[float, int]:
            began = time.perf_counter()
            moved = worker.offload(PARTS)
            return time.perf_counter() - began, moved

        def onload() -> float:
            began = time.perf_counter()
            worker.onload(PARTS)
            return time.perf_counter() - began

        def add(number: int) -> float:
            began = time.perf_counter()
            worker.accumulate([one for one in batch(number) if one.group < GROUPS // 2])
            return time.perf_counter() - began

        def step(number: int) -> float:
            return worker.apply([one for one in batch(number) if one.group >= GROUPS // 2])["grad_norm"]

        def save() -> None:
            """Write the first moments, which are a mean of all gradients so far."""
            moments = {key: tensor.clone() for key, tensor in inside(worker).state() if key.startswith("exp_avg/")}
            torch.save(moments, file)

        def pinned_copy(nbytes: int) -> float:
            """Seconds of a plain copy of so many bytes from the device into pinned memory."""
            source = torch.empty(nbytes, dtype=torch.uint8, device=device)
            target = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
            torch.cuda.synchronize()
            began = time.perf_counter()
            target.copy_(source)
            torch.cuda.synchronize()
            return time.perf_counter() - began

        serve(
            pipe,
            {
                "offload": offload, "onload": onload, "add": add, "step": step, "save": save, "memory": memory_bytes,
                "pinned_copy": pinned_copy,
            },
        )  # fmt: skip


def measure(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures."""
    from tailrace.trainer.small_model import build_model
    from tailrace.trainer.weights_file import tensor_shapes

    heads = asked.hidden // 64
    model = build_model(
        folder / "model", vocab_size=VOCABULARY, hidden=asked.hidden, layers=asked.layers, heads=heads, kv_heads=heads,
        head_dim=64, mlp=3 * asked.hidden, embedding_std=0.1,
    )  # fmt: skip
    elements = 0
    for shape in tensor_shapes(model).values():
        size = 1
        for length in shape:
            size *= length
        elements += size
    wide = 2 if asked.device == "cuda" else 4  # bytes of an element in the engine
    kv_bytes = 2 * asked.layers * asked.hidden * wide * BATCH * (PROMPT + LENGTH + 16)
    options = {
        "dtype": "bfloat16" if wide == 2 else "float32", "device": asked.device, "threads": 1, "max_num_seqs": BATCH,
        "max_model_len": PROMPT + LENGTH + 1, "kv_cache_bytes": kv_bytes,
    }  # fmt: skip
    engine = Owner(own_engine, asked.engine, model, options, asked.level)
    trainer = Owner(own_trainer, model, asked.device, folder / "with.pt")
    lends, returns, freed, stages, speeds = [], [], [], {}, []

    def look(stage: str) -> None:
        stages[stage] = [round(owner("memory") / 2**20) for owner in (engine, trainer)]

    try:
        trainer("offload")
        for number in range(asked.rounds + 1):  # the first one warms up
            used = engine("generate", number)
            look("engine generates")
            slept_s, awake, asleep = engine("sleep")
            lent_s = slept_s + trainer("onload")
            look("engine sleeps, trainer is back")
            trainer("add", number)
            look("trainer has gradients")
            away_s, moved = trainer("offload")
            look("trainer is away")
            back_s = away_s + engine("wake")
            engine("generate", number)
            look("engine generates again")
            trainer("onload")
            trainer("step", number)
            trainer("offload")
            if number:
                lends.append(lent_s)
                returns.append(back_s)
                expected = kv_bytes * used + (elements * wide if asked.level > 1 else 0)
                freed.append((awake - asleep) / expected)
                if moved:
                    speeds.append(trainer("pinned_copy", moved) / away_s)
        trainer("onload")
        trainer("save")
    finally:
        engine.close()
        trainer.close()
    alone = Owner(own_trainer, model, asked.device, folder / "without.pt")
    try:
        for number in range(asked.rounds + 1):
            alone("add", number)
            alone("step", number)
        alone("save")
    finally:
        alone.close()
    return {
        "engine": asked.engine,
        "device": asked.device,
        "level": asked.level,
        "parameters": elements,
        "lend_s": spread(lends),
        "return_s": spread(returns),
        "freed_over_expected": spread(freed),
        "gradients_relative": difference(folder / "with.pt", folder / "without.pt"),
        "memory_mib": stages,
        **({"pcie": spread(speeds)} if speeds else {}),
    }


def difference(first: Path, second: Path) -> float:
    """The largest difference of two files' tensors, over their largest element."""
    import torch

    one, other = torch.load(first), torch.load(second)
    if one.keys() != other.keys() or not one:
        raise SystemExit("found gradients of other parameters, expected the same")
    largest = max(float(tensor.abs().max()) for tensor in other.values())
    if not largest:
        raise SystemExit("found gradients of 0, which show nothing")
    return max(float((one[name] - tensor).abs().max()) for name, tensor in other.items()) / largest


def spread(values: list[float]) -> list[float]:
    """Median, least and most."""
    return [round(value, 4) for value in (statistics.median(values), min(values), max(values))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="transformers")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--level", type=int, choices=(1, 2), default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(asked, Path(folder))
    print(json.dumps(found, indent=2))
    if asked.json is not None:
        asked.json.write_text(json.dumps(found) + "\n", encoding="utf-8")
    if found["gradients_relative"] > RELATIVE_LIMIT:
        raise SystemExit(
            f"found gradients that differ by {found['gradients_relative']}, expected {RELATIVE_LIMIT} at most"
        )
    if found["freed_over_expected"][0] < FREED_LIMIT:
        raise SystemExit(
            f"found {found['freed_over_expected'][0]} of the memory freed, expected {FREED_LIMIT} at least"
        )


if __name__ == "__main__":
    main()
