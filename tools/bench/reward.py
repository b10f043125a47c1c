"""What scoring costs: what a step waits for its rewards, and programs per second in a sandbox beside bare processes.

    uv run python tools/bench/reward.py [--json [FILE]] [--repeats N] [--turns N]

`reward_exposed_s`: seconds between a step's last response and its last reward, with the scheduler, with scoring at the step's
end, and with a fixed timeout; the same programs in all three, taking turns (`reward_figures/exposed.py` has more options).
`sandbox_over_bare`: programs per second per core in the chosen sandbox over those of `subprocess.run`, at 50 ms programs
(`reward_figures/sandbox_over_bare.py` has every backend).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from reward_figures.exposed import VARIANTS, measure, options_of
from reward_figures.sandbox_over_bare import figures

from tailrace.reward.sandbox import select_sandbox


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="steps of each variant")
    parser.add_argument("--turns", type=int, default=5, help="turns of the sandbox and of bare processes")
    parser.add_argument("--json", nargs="?", const="-", help="write the figures to this file, or print them")
    options = parser.parse_args()
    steps = measure(options_of(["--repeats", str(options.repeats)]))
    sandbox = select_sandbox().name
    rates = asyncio.run(figures(options.turns))
    found = {
        "reward_exposed_s": {variant: steps[variant]["reward_exposed_s"] for variant in VARIANTS},
        "sandbox": sandbox,
        "sandbox_over_bare": rates["sandbox_over_bare"][sandbox]["over_bare"]["median"],
        "steps": steps,
        "programs": rates,
    }
    if options.json == "-":
        json.dump(found, sys.stdout, indent=1)
        return
    for variant, seconds in found["reward_exposed_s"].items():
        one = steps[variant]
        print(
            f"{variant:>10}: a step waits {seconds:.2f} s ({one['least_s']:.2f} to {one['most_s']:.2f}) for its rewards"
        )
    over = rates["sandbox_over_bare"][sandbox]["over_bare"]
    print(
        f"{sandbox}: {over['median']:.2f} ({over['least']:.2f} to {over['most']:.2f}) of the bare programs per second"
    )
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
