"""Memory of a whole run on a CPU: predicted by arithmetic (`tailrace.fleetsim.footprint`) beside what its processes have.

    uv run python tools/bench/run_memory.py [--only N] [--executor local|ray] [--json FILE]

Each configuration is a run of two steps with a small untrained model and the transformers engine. Measured, twice a second and
by owner, is what is no page of a file (`Pss_Anon` of /proc/PID/smaps_rollup: a library's pages are shared and given back) of
every process of the run; and shared memory, once. glibc gives back what is freed, as it does not by default for blocks below
32 MiB. The limit: 10 % of the whole.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

MIB = 2**20
RUN_S = 1800.0  # of a run of two steps
COMMON = (
    "pipeline.steps=2", "pipeline.prompts_per_step=4", "pipeline.samples_per_prompt=2", "evaluation.controls=false",
    "evaluation.every=0", "warm_start.steps=1", "warm_start.batch=2", "rollout.engine=transformers", "rollout.max_tokens=48",
    "task.held_out_size=4", "deadlines.start_s=1200.0",
    # what is predicted is the most: batches and KV caches are of a size that such a run fills
    "rollout.options={threads=1, max_model_len=128, max_num_seqs=4}", "trainer.options.micro_batch_tokens=256",
    "trainer.options.shared_prompt_tokens=0",
)  # fmt: skip
SHAPE = "model.small={hidden=%d, layers=%d, mlp=%d, heads=8, kv_heads=8, head_dim=64}"
CONFIGURATIONS: dict[str, tuple[str, ...]] = {
    "0.2 million parameters, two replicas": (),
    "26 million, two replicas": (SHAPE % (512, 8, 1536),),
    "62 million, one replica": (SHAPE % (768, 9, 2304), "rollout.replicas=1"),
}
# What a process of a run is, by words of its command line; the first that is found counts.
OWNERS = {
    "tailrace.paramserver": "relays",
    "tailrace.reward": "scorer",
    "warmstart": "warm start",
    "tailrace.cli": "controller",
    "bin/tailrace": "controller",
    "ray": "Ray",
}
PLURAL = {"replica": "replicas", "relay": "relays"}


def below(root: int) -> dict[int, str]:
    """Living processes below a process, itself included, with their command lines."""
    parents, lines = {}, {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                lines[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
    found, before = {root}, 0
    while len(found) > before:
        before = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return {pid: lines[pid] for pid in found if pid in lines}


def owner_of(line: str, executor: str) -> str:
    """Who a process that is no member belongs to."""
    if executor == "local" and "tailrace.cli" in line:
        return "members"
    return next((owner for words, owner in OWNERS.items() if words in line), "others")


def members(status: Path) -> dict[int, str]:
    """Owners of the processes of members, as a run's status names them."""
    try:
        found = json.loads(status.read_text()).get("members", ())
    except (OSError, ValueError):
        return {}  # it is not there yet
    return {one["pid"]: PLURAL.get(one["role"], one["role"]) for one in found if one.get("pid")}


def sample(root: int, executor: str, status: Path) -> dict[str, int]:
    """Bytes by owner now; `shared memory` once, whoever has it mapped."""
    found: dict[str, int] = {}
    roles = members(status) if executor == "ray" else {}
    for pid, line in below(root).items():
        try:
            rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        except OSError:
            continue  # it has just ended
        sizes = {row.split(":")[0]: 1024 * int(row.split()[1]) for row in rows}
        owner = roles.get(pid) or owner_of(line, executor)
        found[owner] = found.get(owner, 0) + sizes.get("Pss_Anon", 0)
        found["shared memory"] = found.get("shared memory", 0) + sizes.get("Pss_Shmem", 0)
    return found


def measured(settings: tuple[str, ...], executor: str, folder: Path) -> tuple[dict[str, int], int]:
    """The most of each owner, and the most of all at one time, of a run from when it trains."""
    command = [
        str(Path(sys.executable).with_name("tailrace")),
        "run",
        "laminar",
        "--plain",
        "--executor",
        executor,
        "--run-dir",
        str(folder),
    ]
    command += [word for one in settings for word in ("--set", one)]
    with (folder.parent / "run.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        most: dict[str, int] = {}
        peak = 0
        deadline = time.monotonic() + RUN_S
        try:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    raise SystemExit(f"waited {RUN_S:.0f} s for `{' '.join(command)}`, which did not end")
                now = sample(process.pid, executor, folder / "status.json")
                if (folder / "events.jsonl").exists() and "warm start" not in now:
                    for owner, size in now.items():
                        most[owner] = max(size, most.get(owner, 0))
                    peak = max(peak, sum(now.values()))
                time.sleep(0.5)
        finally:
            process.terminate()
            process.wait(60.0)
    if process.returncode:
        raise SystemExit((folder.parent / "run.log").read_text()[-2000:])
    return most, peak


def predicted(settings: tuple[str, ...], executor: str) -> tuple[dict[str, float], float]:
    """The same by arithmetic."""
    from tailrace.fleetsim.footprint import footprint
    from tailrace.pipeline.config.target import configuration

    found = footprint(configuration("laminar", settings=settings, executor=executor))
    host, shared = found.place("host memory"), found.place("/dev/shm").peak  # noqa: S108
    owners = host.owners()
    owners["relays"] = owners.get("relays", 0.0) - shared
    if executor == "local":  # threads of one process
        apart = {name: owners.pop(name, 0.0) for name in ("relays", "scorer", "controller")}
        owners = {"members": sum(owners.values()), **apart}
    return {**owners, "shared memory": shared}, host.peak


def measure(only: int | None = None, executor: str = "local") -> dict[str, Mapping[str, object]]:
    """All configurations, or one."""
    found: dict[str, Mapping[str, object]] = {}
    for place, (name, own) in enumerate(CONFIGURATIONS.items()):
        if only is not None and place != only:
            continue
        settings = (*COMMON, *own)
        with tempfile.TemporaryDirectory() as folder:
            owners, peak = measured(settings, executor, Path(folder) / "run")
        expected, whole = predicted(settings, executor)
        found[name] = {"owners": owners, "peak": peak, "predicted": expected, "predicted_peak": whole}
        print(
            f"{name}: {whole / MIB:,.0f} MiB predicted, {peak / MIB:,.0f} measured, {100 * (whole / peak - 1):+.1f} %",
            flush=True,
        )
        for owner in sorted({*owners, *expected}):
            print(f"    {owner:16}{expected.get(owner, 0) / MIB:10,.1f}{owners.get(owner, 0) / MIB:10,.1f}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, help="one configuration, from 0")
    parser.add_argument("--executor", choices=("ray", "local"), default="local")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": str(MIB), "MALLOC_TRIM_THRESHOLD_": str(MIB), "OMP_NUM_THREADS": "1"}
    found = measure(options.only, options.executor)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
