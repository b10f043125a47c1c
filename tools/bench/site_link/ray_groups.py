"""A real run over two groups of Ray nodes: trainer in one datacenter, all replicas in the other, and a cut of the link.

Each group is a Ray node in a network namespace of its own; the far one has the label `tailrace-site=west`. Ray's control,
samples and weights cross the limited link. It is the quick start of StreamRL with `[[rollout.pools]]` at the other site.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weight_transfer.hosts import Hosts

HOME, FAR = 0, 1
_BIN = Path(sys.executable).parent
_PORT = 6390
_UP_S, _TRIES = 180.0, 4
_RUN_S = 900.0
_ENVIRONMENT = {
    "RAY_worker_niceness": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # nobody else reaches these namespaces
}


@dataclass(frozen=True)
class Run:
    """A run over two groups of nodes.

    Args:
        steps: batches that it trained on.
        replicas: all of them beyond the link.
        lost: trajectories that were lost.
        staleness: most versions by which a trajectory was older than the trainer.
        exposed_s: seconds that generation or training stood still for weights.
        step_s: seconds of the run over its steps.
        link_bytes: into the far datacenter, all that crossed: weights, Ray's control, prompts.
        cut_s: how long the link was cut; 0: not at all.
        wall_s: from its start to its end, preparation included.
        beyond: replicas that came up on the far node, restarts included, of all that came up.
    """

    steps: int
    replicas: int
    lost: int
    staleness: int
    exposed_s: float
    step_s: float
    link_bytes: int
    cut_s: float
    wall_s: float
    beyond: tuple[int, int]


def run(*, rate: float, replicas: int, steps: int, cut_s: float, folder: Path) -> Run:
    """Train for some steps, with a cut of the link after the first.

    Args:
        rate: of the link, bytes per second.
        replicas: beyond the link.
        steps: batches.
        cut_s: 0 for no cut.
        folder: the run directory to create.
    """
    with Hosts(2, rate) as hosts, _nodes(hosts) as address:
        settings = {
            "pipeline.steps": steps,
            "evaluation.every": 0,
            "evaluation.controls": False,
            "relay.host": "node",
            "relay.codec": "delta",  # on connections, since these namespaces share /dev/shm
            "relay.sites.west": 1,
            "rollout.engine": "transformers",  # which starts soonest
            "rollout.replicas": replicas,
            "rollout.pools": [{"name": "far", "count": replicas, "site": "west"}],
            "executor.ray_address": address,
        }
        command = [str(_BIN / "tailrace"), "run", "streamrl", "--run-dir", str(folder)]
        for key, value in settings.items():
            command += ["--set", f"{key}={_toml(value)}"]
        crossed, began = hosts.received_bytes(FAR), time.monotonic()
        with hosts.inside(HOME):
            process = subprocess.Popen(command, env={**os.environ, **_ENVIRONMENT}, stdout=sys.stderr)
        cutter = threading.Thread(target=_cut, args=(hosts, folder, process, cut_s))
        cutter.start()
        status = process.wait(_RUN_S)
        cutter.join()
        if status != 0:
            raise RuntimeError(f"the run ended with status {status}; see {folder}")
        crossed = hosts.received_bytes(FAR) - crossed
        took = time.monotonic() - began
    summary = json.loads((folder / "summary.json").read_text())
    return Run(
        summary["steps"],
        replicas,
        summary["lost_trajectories"],
        summary["staleness_max"],
        summary["exposed_weight_s"],
        _step_s(folder),
        crossed,
        cut_s,
        took,
        _beyond(folder),
    )


def _cut(hosts: Hosts, folder: Path, process: subprocess.Popen[bytes], cut_s: float) -> None:
    """Cut the link once a batch has been trained on."""
    while cut_s and process.poll() is None:
        if '"is":"Stepped"' in _log(folder).replace(" ", ""):
            hosts.cut(FAR)
            time.sleep(cut_s)
            hosts.heal(FAR)
            return
        time.sleep(0.2)


def _log(folder: Path) -> str:
    path = folder / "events.jsonl"
    return path.read_text() if path.exists() else ""


def _beyond(folder: Path) -> tuple[int, int]:
    """How many of the replicas that came up did so on another machine than the trainer, and how many there were."""
    from tailrace import contracts as c
    from tailrace.pipeline.run.eventlog import read_log

    ups = [
        event for instant in read_log(folder / "events.jsonl") for event in instant.events if isinstance(event, c.Up)
    ]
    home = {event.machine for event in ups if event.role == "trainer"}
    replicas = [event.machine for event in ups if event.role == "replica"]
    return sum(machine not in home for machine in replicas), len(replicas)


def _step_s(folder: Path) -> float:
    """Mean seconds between the ends of two training steps."""
    from tailrace import contracts as c
    from tailrace.pipeline.run.eventlog import read_log

    ends = [
        each.now for each in read_log(folder / "events.jsonl") for event in each.events if isinstance(event, c.Stepped)
    ]
    return (ends[-1] - ends[0]) / max(1, len(ends) - 1)


@contextlib.contextmanager
def _nodes(hosts: Hosts) -> Iterator[str]:
    """A Ray node in each namespace; the address of the first."""
    address = f"{hosts.addresses[HOME]}:{_PORT}"
    ray = str(_BIN / "ray")
    common = ["--num-cpus=32", "--num-gpus=0", "--disable-usage-stats", "--block"]
    head = [ray, "start", "--head", f"--port={_PORT}", f"--node-ip-address={hosts.addresses[HOME]}"]
    head += ["--include-dashboard=false"]
    far = [
        ray,
        "start",
        f"--address={address}",
        f"--node-ip-address={hosts.addresses[FAR]}",
        "--labels=tailrace-site=west",
    ]
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="sites-ray-") as root:
        try:
            for count, (place, command) in enumerate(((HOME, [*head, f"--temp-dir={root}"]), (FAR, far)), start=1):
                started.append(_started(hosts, place, [*command, *common], address, count))
            yield address
        finally:
            for process in reversed(started):
                process.terminate()  # with --block it ends what it started
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30.0)
                process.kill()


def _started(hosts: Hosts, place: int, command: list[str], address: str, count: int) -> subprocess.Popen[bytes]:
    """Start a node, after which the cluster has so many. Ray gives one 30 s, which a busy machine may not keep."""
    for _ in range(_TRIES):
        with hosts.inside(place):
            process = subprocess.Popen(
                command, env={**os.environ, **_ENVIRONMENT}, stdout=subprocess.DEVNULL, start_new_session=True
            )
        if _has_nodes(hosts, address, count, process):
            return process
        process.kill()
        process.wait()
    raise RuntimeError(f"Ray did not start a node in {_TRIES} tries: the machine is too busy")


def _has_nodes(hosts: Hosts, address: str, count: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a cluster has so many nodes. False if a node ends meanwhile."""
    script = (
        f"import ray; ray.init({address!r}, log_to_driver=False, logging_level='ERROR'); "
        "print(len([node for node in ray.nodes() if node['Alive']]))"
    )
    deadline = time.monotonic() + _UP_S
    while time.monotonic() < deadline and process.poll() is None:
        with hosts.inside(HOME):
            environment = {**os.environ, **_ENVIRONMENT}
            command = [sys.executable, "-c", script]
            asked = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if asked.stdout.strip().endswith(str(count)):
            return True
        time.sleep(1.0)
    return False


def _toml(value: Any) -> str:
    if isinstance(value, list):
        tables = [", ".join(f"{key} = {_toml(each)}" for key, each in table.items()) for table in value]
        return f"[{', '.join('{' + table + '}' for table in tables)}]"
    return json.dumps(value)
