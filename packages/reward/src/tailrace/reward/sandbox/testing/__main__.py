"""``python -m tailrace.reward.sandbox.testing SANDBOX [PROGRAM ...]``: the contract and hostile programs, outcomes as JSON.

SANDBOX is a registered name, or ``module:factory`` or ``module:factory:argument`` for one that is not registered.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from dataclasses import asdict
from typing import Any

from tailrace.reward.sandbox.protocol import Sandbox
from tailrace.reward.sandbox.select import sandbox_names, select_sandbox
from tailrace.reward.sandbox.testing.contract import check_sandbox
from tailrace.reward.sandbox.testing.hostile import HOSTILE, run_hostile


async def examine(sandbox: Sandbox, names: list[str]) -> dict[str, Any]:
    """Run both parts of the suite; ``contract`` is empty if it holds."""
    try:
        try:
            await check_sandbox(sandbox)
            broken = ""
        except AssertionError as error:
            broken = str(error)
        outcomes, harms = await run_hostile(sandbox, names or list(HOSTILE))
        return {"contract": broken, "outcomes": [asdict(outcome) for outcome in outcomes], "harms": harms}
    finally:
        await sandbox.close()


def main() -> None:
    """Examine the sandbox that the command line names; exit 1 if something broke out."""
    reference, *names = sys.argv[1:]
    module, _, rest = reference.partition(":")
    if module in sandbox_names():
        sandbox = select_sandbox(reference)
    else:
        factory, *argument = rest.split(":", 1)
        sandbox = getattr(importlib.import_module(module), factory)(*argument)
    found = asyncio.run(examine(sandbox, names))
    print(json.dumps(found))
    sys.exit(bool(found["contract"] or found["harms"] or any(outcome["faults"] for outcome in found["outcomes"])))


if __name__ == "__main__":
    main()
