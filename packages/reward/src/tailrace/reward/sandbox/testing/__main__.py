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

from tailrace.contracts import TailraceError
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


def made(reference: str) -> Sandbox:
    """The sandbox that a command line names."""
    module, colon, rest = reference.partition(":")
    if module in sandbox_names() or not (module and colon):
        return select_sandbox(reference)
    factory, *argument = rest.split(":", 1)
    found: Sandbox = getattr(importlib.import_module(module), factory)(*argument)
    return found


def main() -> None:
    """Examine the sandbox that the command line names; exit 1 if something broke out."""
    if len(sys.argv) < 2:
        sys.exit(f"found no sandbox, expected one of {', '.join(sandbox_names())}, or module:factory")
    reference, *names = sys.argv[1:]
    if unknown := [name for name in names if name not in HOSTILE]:
        sys.exit(f"found the programs {', '.join(unknown)}, expected some of {', '.join(HOSTILE)}")
    try:
        sandbox = made(reference)
    except (TailraceError, ImportError, AttributeError) as error:
        sys.exit(f"{reference}: {error}")
    found = asyncio.run(examine(sandbox, names))
    print(json.dumps(found))
    sys.exit(bool(found["contract"] or found["harms"] or any(outcome["faults"] for outcome in found["outcomes"])))


if __name__ == "__main__":
    main()
