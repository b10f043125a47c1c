"""What the page of `tailrace watch` costs: seconds until it shows a run, and processor time of its server while it follows.

    uv run python tools/bench/watch_cost.py [--apps NAME ...] [--steps N] [--replicas N] [--json FILE]

Each app's quick start runs, without evaluations and controls, and its page is open in a headless Chromium from the end of the
first step to the run's end. Then a simulated fleet of 1,024 replicas is replayed at its own speed for half a minute. Figures
are seconds from the request to the first lane or cell on the screen, processor seconds of the server until five seconds later,
and from then on processor seconds per second, beside those of the run; the browser's are a reader's, and not counted.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
from processor_time import ProcessorTime

from tailrace.fleetsim.results.run_directory import log_into
from tailrace.pipeline.config.loading import validate
from tailrace.report.testing import Browser

APPS = ("laminar", "staleflow", "streamrl", "rollpacker", "robustrl")
SHOWN = "document.querySelector('#lanes rect') !== null"
FLEET = {
    "app": "laminar",
    "task": {"name": "long-chain-sum", "held_out_size": 4},
    "pipeline": {"steps": 4, "prompts_per_step": 512, "samples_per_prompt": 16, "prompts_per_replica": 4},
    "rollout": {"max_tokens": 16384},
    "fleet": {
        "model": "Qwen2.5-7B",
        "trainer": {"gpus": 128},
        "rollout": {"gpus": 1},
        "workload": {"response": [{"median": 2000, "sigma": 1.0}]},
        "steady": False,
        "warm_up": 0,
    },
}
REPLAYED_S, TIMEOUT_S, LOOK_S = 30.0, 1200.0, 0.5
SETTLES_S = 5.0  # in which a page that was opened catches up with the log


class Page:
    """The server of a run's page, and a browser that shows it."""

    def __init__(self, run: Path, *words: str) -> None:
        command = [sys.executable, "-m", "tailrace.cli.main", "watch", str(run), *words]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.server.stdout is not None
        found = re.search(r"http://\S+", self.server.stdout.readline())
        if found is None:
            raise SystemExit(f"`{' '.join(command)}` printed no address")
        self.browser = Browser()
        began_s = time.monotonic()
        self.browser.open(found.group(0))
        self.browser.until(SHOWN)
        self.open_s = time.monotonic() - began_s
        self._process = psutil.Process(self.server.pid)
        time.sleep(SETTLES_S)
        self.opening = self._used()
        self._from = time.monotonic(), self.opening

    def _used(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def cores(self) -> float:
        """Processor seconds of the server per second since the page had caught up with the log."""
        began_s, used = self._from
        return (self._used() - used) / (time.monotonic() - began_s)

    def close(self) -> None:
        """End both."""
        self.browser.close()
        self.server.kill()
        self.server.wait(30.0)


def beside(app: str, steps: int, root: Path) -> dict[str, Any]:
    """An app's run with its page open."""
    run = root / app
    given = [f"pipeline.steps={steps}", "evaluation.every=0", "evaluation.controls=false"]
    command = [sys.executable, "-m", "tailrace.cli.main", "run", app, "--plain", "--run-dir", str(run)]
    command += [part for setting in given for part in ("--set", setting)]
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(command, stdout=said, stderr=said)
        times = ProcessorTime(child.pid)
        times.start()
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while not _trains(run):
                if child.poll() is not None or time.monotonic() > deadline:
                    said.seek(0)
                    raise SystemExit(f"the run of {app} made no step:\n{said.read()[-2000:]}")
                time.sleep(LOOK_S)
            page = Page(run)
            began_s = time.time()
            try:
                while child.poll() is None and time.monotonic() < deadline:
                    shown, ended_s = page.cores(), time.time()
                    time.sleep(LOOK_S)
            finally:
                page.close()
        finally:
            child.terminate()
            child.wait(60.0)
            times.stop()
    samples = [sample for sample in times.samples if began_s <= sample[0] <= ended_s]
    (first_s, first), (last_s, last) = samples[0], samples[-1]
    used = sum(last.values()) - last["machine"] - sum(first.values()) + first["machine"]
    return {
        "seconds": round(ended_s - began_s, 1),
        "open_s": round(page.open_s, 2),
        "opening_core_s": round(page.opening, 2),
        "watch_cores": round(shown, 4),
        "run_cores": round(used / (last_s - first_s), 3),
    }


def _trains(run: Path) -> bool:
    log = run / "events.jsonl"
    return log.exists() and '"Stepped"' in log.read_text()


def fleet(replicas: int, root: Path) -> dict[str, Any]:
    """A simulated fleet, replayed at its own speed."""
    directory = log_into(root / "fleet", validate([("bench", FLEET), ("bench", {"rollout": {"replicas": replicas}})]))
    page = Page(directory.root, "--speed", "1")
    try:
        time.sleep(REPLAYED_S)
        return {"replicas": replicas, "open_s": round(page.open_s, 2), "watch_cores": round(page.cores(), 4)}
    finally:
        page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="What the page of tailrace watch costs.")
    parser.add_argument("--apps", nargs="*", default=list(APPS))
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--replicas", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {"benchmark": "watch_cost", "apps": {}}
    with tempfile.TemporaryDirectory(prefix="watch-cost-") as name:
        for app in options.apps:
            report["apps"][app] = found = beside(app, options.steps, Path(name))
            print(
                f"{app:<12} opens in {found['open_s']:.2f} s ({found['opening_core_s']:.2f} s of a processor with its start); "
                f"then {found['watch_cores']:.2%} of a core beside "
                f"{found['run_cores']:.2f} cores of the run, for {found['seconds']:.0f} s",
                flush=True,
            )
        report["fleet"] = found = fleet(options.replicas, Path(name))
        print(f"{options.replicas:,} replicas opens in {found['open_s']:.2f} s; {found['watch_cores']:.2%} of a core")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
