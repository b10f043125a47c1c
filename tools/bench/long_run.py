"""A run of many trajectories: does anything grow that should not, and how long do status, report and resume take then?

    uv run python tools/bench/long_run.py [--trajectories N] [--tokens MEAN] [--rate TOKENS_PER_S] [--run-dir DIR] [--json FILE]

`tailrace run` with every role real (executor, store, scorer, relay, a trainer of a tiny model, checkpoints at each step) but
the engine, which draws tokens at the rate of a GPU without a model; this file is its plugin. The memory of each role's
process (anonymous, and shared memory that it maps) is read at each twentieth of the run; what it grows per trajectory is
the slope of a line through the second half. On Ray each role is a process, with --executor local all are one. Beside it:
bytes of log, store and archive per trajectory, `tailrace status` while it runs and afterwards, `tailrace report`, and a run
that goes on for two steps.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace.contracts import Delta, Engine, EngineAbilities, EnginePlugin, EngineStats, FinishReason, Request

STEP_S = 600.0  # a run that does no step for so long stands still

# ---- the engine -------------------------------------------------------------------------------------------------------

STEP_TOKENS = 8  # of each request: one step stands for so many of a real engine
VOCABULARY = 32
SPREAD = 0.8  # of the logarithm of lengths: the longest of a hundred is 4.7 times their mean
MAX_TOKENS = 512


class PacedEngine:
    """Tokens at random, lengths log-normal by request, as many requests at once as a decode batch has.

    Args:
        tokens_per_s: of all requests together.
        mean_tokens: of a response.
    """

    def __init__(self, tokens_per_s: float, mean_tokens: int, most: int = 256) -> None:
        self._rate, self._most = tokens_per_s, most
        self._median = mean_tokens / math.exp(SPREAD**2 / 2)
        self._left: dict[str, int] = {}
        self._draws = random.Random(0)
        self._free_s = 0.0

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            drawn = random.Random(zlib.crc32(request.id.encode())).lognormvariate(math.log(self._median), SPREAD)
            wanted = max(1, min(request.sampling.max_tokens, round(drawn)))
            self._left[request.id] = max(1, wanted - len(request.kept))

    def step(self) -> Sequence[Delta]:
        deltas, count = [], 0
        for id_ in list(self._left)[: self._most]:
            size = min(STEP_TOKENS, self._left[id_])
            self._left[id_] -= size
            count += size
            finish = None if self._left[id_] else FinishReason.STOP
            if finish is not None:
                del self._left[id_]
            tokens = tuple(self._draws.choices(range(4, VOCABULARY), k=size))
            deltas.append(Delta(id_, tokens, (-math.log(VOCABULARY - 4),) * size, finish))
        now = time.monotonic()
        self._free_s = max(now, self._free_s) + count / self._rate
        time.sleep(max(0.0, self._free_s - now))
        return deltas

    def abort(self, ids: Sequence[str]) -> Sequence[Delta]:
        for id_ in ids:
            self._left.pop(id_, None)
        return []

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        for _ in weights:
            pass

    def stats(self) -> EngineStats:
        running = min(len(self._left), self._most)
        waiting = len(self._left) - running
        return EngineStats(running / self._most, running, waiting, self._most * MAX_TOKENS, max_running=self._most)

    def close(self) -> None:
        self._left.clear()


class _Build(EnginePlugin):
    abilities = EngineAbilities()

    def __call__(self, model_path: str, options: Mapping[str, Any]) -> Engine:  # noqa: ARG002 - it has no model
        return PacedEngine(float(os.environ["PACED_TOKENS_PER_S"]), int(os.environ["PACED_MEAN_TOKENS"]))


build = _Build()

# ---- the run ----------------------------------------------------------------------------------------------------------

PROMPTS, SAMPLES = 64, 8  # of a step
CONFIG = f"""
app = "laminar"

[task]
train = "train.jsonl"
verifier = "exact"

[model]
path = "model"

[pipeline]
prompts_per_step = {PROMPTS}
samples_per_prompt = {SAMPLES}
prompts_per_replica = {PROMPTS}
buffer_prompts = {4 * PROMPTS}

[rollout]
engine = "paced"
replicas = 2
max_tokens = {MAX_TOKENS}

[trainer]
options = {{ threads = 1, micro_batch_tokens = 16384 }}

[evaluation]
every = 0
controls = false
"""


def prepare(folder: Path) -> None:
    """Write the model, the prompts, the configuration, and the metadata that make this file a plugin."""
    from tailrace.reward.tasks import write_jsonl
    from tailrace.trainer.small_model import build_model
    from tailrace.trainer.tokenizer import train_tokenizer

    rows = [{"prompt": f"{a} + {b} = ", "answer": str(a + b)} for a in range(64) for b in range(64)]
    write_jsonl(folder / "train.jsonl", rows)
    size = train_tokenizer([row["prompt"] for row in rows], folder / "model", vocab_size=VOCABULARY)
    shape = {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "mlp": 32}
    build_model(folder / "model", vocab_size=max(size, VOCABULARY), seed=0, **shape)
    (folder / "run.toml").write_text(CONFIG)
    metadata = folder / "paced_engine-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: paced-engine\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[tailrace.engine]\npaced = long_run:build\n")


WHEN = ("at half", "near the end", "afterwards")


@dataclass
class Sample:
    """What was seen at one time: bytes of memory by role, bytes of files by name."""

    trajectories: int
    wall_s: float
    memory: dict[str, int] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)


def memory_of(pid: int, but: frozenset[int] = frozenset(), *, alone: bool = False) -> int | None:
    """Bytes of a process and its children that are its own; shared memory counts where it is mapped. None: it is gone.

    Args:
        but: processes that are left out, and their children.
        alone: leave out all children.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    found = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    own = sum(1024 * int(found[name].split()[0]) for name in ("RssAnon", "RssShmem") if name in found)
    return own + sum(memory_of(int(child), but) or 0 for child in children if int(child) not in but and not alone)


def seen(run: Path, wall_s: float) -> Sample | None:
    """What the run directory and its processes show now; None before there are any."""
    try:
        status = json.loads((run / "status.json").read_text())
    except (OSError, ValueError):
        return None
    sample = Sample(SAMPLES * PROMPTS * status.get("step", 0), wall_s)
    names: dict[int | None, list[str]] = {}
    for each in status.get("members", ()):
        names.setdefault(each["pid"], []).append(f"{each['role']} {each['id']}")
    names.setdefault(status.get("pid"), []).append("controller")
    members = frozenset(pid for pid in names if pid is not None)
    for pid, roles in names.items():
        driver = roles == ["controller"]
        if pid is not None and (found := memory_of(pid, members, alone=driver)) is not None:
            sample.memory[roles[0] if len(roles) == 1 else "all roles"] = found
            if driver:
                sample.memory["Ray itself"] = (memory_of(pid, members) or found) - found
    stores = ("store.sqlite", "store.sqlite-wal", "trained.packed")
    files = {"log": run / "events.jsonl", "metrics": run / "metrics.jsonl", "controller.log": run / "controller.log"}
    for name, path in {**files, **{name: run / "trajectories" / name for name in stores}}.items():
        sample.files[name] = path.stat().st_size if path.exists() else 0
    boards = (run / "tensorboard").glob("*")
    sample.files["tensorboard"] = sum(path.stat().st_size for path in boards)
    return sample


def slope(samples: Sequence[Sample], value: Any) -> float:
    """Bytes per trajectory of a line through the points of the second half, each as (trajectories, bytes)."""
    half = [(s.trajectories, value(s)) for s in samples[len(samples) // 2 :] if value(s) is not None]
    if len({at for at, _ in half}) < 2:
        return 0.0
    return statistics.linear_regression([at for at, _ in half], [size for _, size in half]).slope


@contextmanager
def command(environment: Mapping[str, str], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command of tailrace, ended with the context."""
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("tailrace")), *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=120)


def timed(environment: Mapping[str, str], *arguments: str) -> dict[str, float]:
    """Seconds of a command that must end well, and those of processor time."""
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with command(environment, *arguments) as process:
        said, _ = process.communicate(timeout=3600)
    if process.returncode:
        raise SystemExit(f"tailrace {' '.join(arguments)} ended with {process.returncode}: {said[-2000:]}")
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "wall_s": time.perf_counter() - began,
        "processor_s": now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime,
    }


def until_step(run: Path, step: int, process: subprocess.Popen[str], began: float) -> float:
    """Seconds until a run has done a step. It must do another one within `STEP_S`."""
    done, deadline = -1, time.monotonic() + STEP_S
    while process.poll() is None:
        status = run / "status.json"
        found = int(json.loads(status.read_text())["step"]) if status.exists() else 0
        if found >= step:
            return time.perf_counter() - began
        if found > done:
            done, deadline = found, time.monotonic() + STEP_S
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {STEP_S:.0f} s for step {found + 1} of the run in {run}")
        time.sleep(0.2)
    said, _ = process.communicate()
    raise SystemExit(f"the run ended with {process.returncode} before step {step}: {said[-2000:]}")


def measure(
    trajectories: int, folder: Path, run: Path, *, tokens: int = 64, rate: float = 20_000.0, executor: str = "ray"
) -> dict[str, Any]:
    """Do a run and read what it takes; see the module.

    Args:
        trajectories: at least so many are trained on.
        folder: for the model, the prompts and the configuration.
        run: the run directory.
        tokens: mean length of a response.
        rate: tokens per second of each of two replicas.
        executor: ray or local.
    """
    subprocess.run([sys.executable, __file__, "--prepare", str(folder)], check=True)  # torch's memory goes with it
    steps = max(4, -(-trajectories // (PROMPTS * SAMPLES)))
    environment = {
        "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parent)]),
        "PACED_TOKENS_PER_S": str(rate),
        "PACED_MEAN_TOKENS": str(tokens),
    }
    samples: list[Sample] = []
    status_s: list[dict[str, float]] = []
    every = max(1, steps // 20)
    looks = [step for step in range(every, steps + 1, every) if step < steps]
    status_at = (looks[len(looks) // 2], looks[-1])
    arguments = ["run", str(folder / "run.toml"), "--run-dir", str(run), "--plain", "--executor", executor]
    arguments += ["--set", f"pipeline.steps={steps}"]
    began = time.perf_counter()
    with command(environment, *arguments) as process:
        start_s = until_step(run, 1, process, began)
        for step in looks:
            wall_s = until_step(run, step, process, began)
            if (sample := seen(run, wall_s)) is not None and sample.memory:
                samples.append(sample)
                shown = " ".join(f"{role} {size / 2**20:.0f}" for role, size in sorted(sample.memory.items()))
                print(f"{sample.trajectories:>8,} trajectories, {wall_s:>6.0f} s, MiB: {shown}", flush=True)
            if step in status_at:
                status_s.append(timed(environment, "status", str(run)))
        said, _ = process.communicate(timeout=3600)
        if process.returncode:
            raise SystemExit(f"the run ended with {process.returncode}: {said[-2000:]}")
    wall_s = time.perf_counter() - began
    last = seen(run, wall_s)
    assert last is not None
    summary = json.loads((run / "summary.json").read_text())
    count = steps * PROMPTS * SAMPLES
    status_s.append(timed(environment, "status", str(run)))
    report_s = timed(environment, "report", str(run))
    began = time.perf_counter()
    with command(
        environment, "run", "--resume", str(run), "--plain", "--set", f"pipeline.steps={steps + 2}"
    ) as process:
        resume_s = until_step(run, steps + 1, process, began)
        process.communicate(timeout=3600)
    roles = sorted({role for sample in samples for role in sample.memory})
    return {
        "benchmark": "long_run",
        "trajectories": count,
        "lost": summary["lost_trajectories"],
        "wall_s": wall_s,
        "tokens_per_s": summary["tokens_per_s"],
        "memory_bytes": {role: [s.memory.get(role) for s in samples] for role in roles},
        "grown_bytes_per_trajectory": {role: slope(samples, lambda s, r=role: s.memory.get(r)) for role in roles},
        "file_bytes_per_trajectory": {name: size / count for name, size in last.files.items()},
        "file_slope": {name: slope(samples, lambda s, n=name: s.files.get(n)) for name in last.files},
        "status": status_s,
        "report": report_s,
        "start_s": start_s,
        "resume_s": resume_s,
        "samples": [vars(sample) for sample in samples],
    }


def show(report: Mapping[str, Any]) -> None:
    print(f"\n{report['trajectories']:,} trajectories in {report['wall_s']:.0f} s, {report['lost']} lost")
    print(f"  {'memory':<16} {'first MiB':>10} {'last MiB':>10} {'bytes per trajectory, second half':>36}")
    for role, values in report["memory_bytes"].items():
        known = [value for value in values if value is not None]
        grown = report["grown_bytes_per_trajectory"][role]
        print(f"  {role:<16} {known[0] / 2**20:>10.1f} {known[-1] / 2**20:>10.1f} {grown:>36,.1f}")
    print(f"  {'file':<16} {'bytes per trajectory':>22} {'second half':>14}")
    for name, size in report["file_bytes_per_trajectory"].items():
        print(f"  {name:<16} {size:>22,.1f} {report['file_slope'][name]:>14,.1f}")
    for name, took in [
        *((f"status {at}", took) for at, took in zip(WHEN, report["status"], strict=True)),
        ("report", report["report"]),
    ]:
        print(f"  {name:<28} {took['wall_s']:>10.2f} s, {took['processor_s']:.2f} of a processor")
    print(
        f"  {'first step of a new run':<28} {report['start_s']:>10.2f} s, of one that goes on {report['resume_s']:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory, files and commands of a long run.")
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=64, help="mean length of a response")
    parser.add_argument("--rate", type=float, default=20_000.0, help="tokens per second of each of two replicas")
    parser.add_argument("--run-dir", type=Path, help="kept there; default: removed afterwards")
    parser.add_argument("--executor", choices=("ray", "local"), default="ray")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--prepare", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.prepare:
        prepare(options.prepare)
        return
    with tempfile.TemporaryDirectory() as name:
        run = options.run_dir or Path(name) / "run"
        how = {"tokens": options.tokens, "rate": options.rate, "executor": options.executor}
        report = measure(options.trajectories, Path(name), run, **how)
    report |= {"load": os.getloadavg()[0], "cores": os.cpu_count()}
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    show(report)


if __name__ == "__main__":
    main()
