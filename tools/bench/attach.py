"""How long a run is without a controller: from the SIGKILL of one to the next command of another that attaches.

    uv run tools/bench/attach.py [--kills 10] [--steps-between 3] [--json FILE]

Trains a small model on Ray with an engine of transformers. Prints each time, their median, how many members restarted, and the
seconds that the run takes to end after SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOOK_S = 0.02
PATIENCE_S = 900.0
CONFIG = """
app = "laminar"
[task]
name = "brief-chain-sum"
held_out_size = 16
[model.small]
hidden = 32
layers = 2
[warm_start]
steps = 2
[pipeline]
steps = 100000
prompts_per_step = 4
samples_per_prompt = 4
prompts_per_replica = 4
[rollout]
engine = "transformers"
replicas = 2
max_tokens = 24
options = { threads = 1, max_num_seqs = 16 }
[trainer.options]
threads = 1
[evaluation]
every = 0
controls = false
"""


class Log:
    """The event log of a run, read as it grows; another file may take its place."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def instants(self) -> list[dict[str, Any]]:
        """All complete instants so far."""
        lines = self._path.read_bytes().splitlines(keepends=True)[1:] if self._path.exists() else []
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def count(self, kind: str) -> int:
        """Events of a kind."""
        return sum(one["is"] == kind for instant in self.instants() for one in instant["events"])

    def restarts(self) -> int:
        """Members that were restarted."""
        return sum(one["is"] == "Restart" for instant in self.instants() for one in instant["commands"])

    def commands_since(self, attaches: int) -> int:
        """Commands since the n-th controller attached; 0 before."""
        seen = commands = 0
        for instant in self.instants():
            seen += sum(one["is"] == "Attached" for one in instant["events"])
            commands += len(instant["commands"]) if seen >= attaches else 0
        return commands


class Run:
    """A run, whose controllers come one after the other."""

    def __init__(self, root: Path) -> None:
        self.directory, self._said = root / "run", root / "said.txt"
        self.log = Log(self.directory / "events.jsonl")
        self._watcher = self._tailrace("run", root / "config.toml", "--run-dir", self.directory)

    def _tailrace(self, *arguments: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tailrace.cli.main", *map(str, arguments), "--plain"]
        with self._said.open("ab") as said:
            return subprocess.Popen(command, stdout=said, stderr=said)

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Wait for something, at most `PATIENCE_S` seconds."""
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            if self._watcher.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{self._said.read_text()}\nthe run ended, or took too long, before {what}")
            time.sleep(LOOK_S)

    def kill(self, attaches: int) -> float:
        """Kill the controller, whose watcher lets another attach, the n-th. Returns seconds until that has given a command."""
        began = time.monotonic()
        os.kill(json.loads((self.directory / "status.json").read_text())["pid"], signal.SIGKILL)
        self.until(lambda: self.log.commands_since(attaches) > 0, "the next command")
        return time.monotonic() - began

    def end(self) -> tuple[float, int]:
        """Send SIGTERM. Returns seconds until the end, and the exit status."""
        began = time.monotonic()
        self._watcher.send_signal(signal.SIGTERM)
        status = self._watcher.wait()
        return time.monotonic() - began, status


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps-between", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="attach-"))
    (root / "config.toml").write_text(CONFIG)
    run, seconds = Run(root), list[float]()
    for kill in range(1, options.kills + 1):
        steps = run.log.count("Stepped") + options.steps_between
        run.until(lambda steps=steps: run.log.count("Stepped") >= steps, f"step {steps}")  # type: ignore[misc]
        seconds.append(run.kill(kill))
        print(f"kill {kill}: {seconds[-1]:.2f} s to the next command, load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"median {statistics.median(seconds):.2f} s, from {min(seconds):.2f} to {max(seconds):.2f} s")
    print(f"{run.log.count('Down')} members went down, {run.log.restarts()} restarts")
    took_s, status = run.end()
    print(f"ended {took_s:.1f} s after SIGTERM, exit status {status}")
    if options.json is not None:
        found = {"seconds": seconds, "median_s": statistics.median(seconds), "ended_s": took_s, "exit_status": status}
        options.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
