"""Chaos where devices change hands: loans, standbys and peers on a Ray cluster of three machines that the runs join.

    uv run tools/bench/chaos_cluster.py --kills 200 --out DIR [--mtbf 20] [--seed 0] [--set KEY=VALUE ...]

Each machine is a network namespace of this host with a Ray node of its own. On the first stands `tailrace chaos`, which kills
and hangs members at random until so many faults have struck: hybrids that lend their devices in each step, a trainer
that takes a standby's machine when it loses its own, replicas that pull from each other. It ends with what was lost, trained on
twice, or hung; its status is 0 if nothing was. Ctrl-C and SIGTERM end the campaign, then the cluster, with status 130; the same
command goes on with a campaign that was cut.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tailrace.cli.errors import INTERRUPTED
from tailrace.cli.runs.stopping import interrupts
from tailrace.pipeline.testing.ray_clusters import PORT, joined_cluster
from tailrace.processes.namespaces import why_not

MACHINES = 3
END_S = 90.0  # within which an interrupted campaign ends the run under way
CONFIG = """
app = "robustrl"
base = "quickstart"
faults = []

[task]
name = "brief-chain-sum"
held_out_size = 16

[model.small]
hidden = 32
layers = 2

[warm_start]
steps = 2
flawless_steps = 0

[pipeline]
mode = "semi-sync"
steps = 20
prompts_per_step = 16
recovery = { name = "role-based", standby = true }

[rollout]
engine = "transformers"
replicas = 4
max_tokens = 24

[relay]
mode = "peer"
count = 3
host = "node"

[executor]
machines = 1

[deadlines]
hand_over_s = 60  # a replica whose engine stands still as it is woken; it takes 0.2 s here

[evaluation]
every = 0
controls = false
"""


def main() -> int:
    """Start the cluster, and the campaign on its first machine. Returns the campaign's status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--mtbf", type=float, default=20.0, help="mean seconds between two faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    if lacks := why_not():
        raise SystemExit(f"found no network namespaces: {lacks}")
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "chaos.toml"
    file.write_text(CONFIG)
    with suppress(KeyboardInterrupt), interrupts(), joined_cluster(MACHINES, "--num-gpus=0") as (found, environment):
        settings = [f"executor.ray_address={found[0].address}:{PORT}", *options.set]
        words = ["chaos", file, "--kills", options.kills, "--mtbf", options.mtbf, "--seed", options.seed]
        words += ["--out", options.out / "campaign", "--json", options.out / "chaos.json"]
        words += [word for one in settings for word in ("--set", one)]
        command = [sys.executable, "-m", "tailrace.cli.main", *map(str, words)]
        campaign = found[0].start(command, env=environment, start_new_session=True)
        try:
            return campaign.wait()
        finally:
            if campaign.returncode is None:
                campaign.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    campaign.wait(END_S)
    return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
