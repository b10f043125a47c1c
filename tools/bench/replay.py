"""How fast the controller is replayed over a run's log, which all who look at a run afterwards wait for.

    uv run python tools/bench/replay.py [RUN] [--json FILE]

Without a run directory, Laminar's fleet is simulated first: 15 steps, 122,880 trajectories. Beside it stands reading the log
alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from tailrace.fleetsim.results.run_directory import simulate_into
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import read_log
from tailrace.pipeline.run.replay import controller_of, replayed
from tailrace.report import read_record

FLEET = Path(__file__).parents[2] / "configs" / "fleet" / "laminar.toml"


def measure(directory: RunDirectory) -> dict[str, float]:
    """Seconds of this process."""
    began = time.process_time()
    instants = sum(1 for _ in read_log(directory.events))
    read = time.process_time()
    controller = controller_of(directory)
    for _ in replayed(controller, directory.events):
        pass
    done = time.process_time()
    read_record(directory)
    return {
        "trajectories": controller.view.counts.trained_trajectories,
        "instants": instants,
        "log_mb": directory.events.stat().st_size / 1e6,
        "read_s": read - began,
        "replay_s": done - read,
        "report_s": time.process_time() - done,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = options.run
        if root is None:
            root = Path(folder, "run")
            simulate_into(root, configuration(str(FLEET)), name="laminar")
        found = measure(RunDirectory.open(root))
    per = found["trajectories"] / found["replay_s"]
    print(f"{found['trajectories']:,} trajectories, {found['instants']:,} instants, {found['log_mb']:.1f} MB of log")
    print(f"reading {found['read_s']:.2f} s; with the replay {found['replay_s']:.2f} s ({per:,.0f} trajectories/s)")
    print(f"everything that the report is drawn from {found['report_s']:.2f} s")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
