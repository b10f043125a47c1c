"""``tailrace rank``: trains a ranker of lengths, and shows every method on prompts held out."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from tailrace.cli.rank_data import read_examples
from tailrace.ranker import Comparison, compare

_LINE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class RankOptions:
    """The command line of ``tailrace rank``."""

    data: Path
    out: Path
    json_file: Path | None = None
    method: str = "auto"
    seed: int = 0
    budget_s: float = 300.0
    policy: Path | None = None
    init: Path | None = None


def rank(options: RankOptions) -> Comparison:
    """Compare the methods, print the table, write the chosen ranker and the figures.

    Raises:
        TailraceError: the data, an option or a model is wrong.
    """
    examples = read_examples(options.data)
    found = compare(
        examples,
        method=options.method,
        seed=options.seed,
        budget_s=options.budget_s,
        policy=options.policy,
        init=options.init,
        progress=_Lines(),
    )
    found.ranker.save(options.out)
    _show(found, options.out)
    if options.json_file is not None:
        options.json_file.write_text(json.dumps(found.as_json(), indent=1) + "\n", encoding="utf-8")
    return found


def _show(found: Comparison, out: Path) -> None:
    typer.echo(f"{'method':14} recall20 recall10  recall5    tau-b  seconds")
    for name, row in found.methods.items():
        figures = " ".join(f"{row[key]:8.3f}" for key in ("recall20", "recall10", "recall5", "tau_b"))
        typer.echo(f"{name:14} {figures} {row['train_s']:8.1f}")
    for name, why in found.left_out.items():
        typer.echo(f"{name:14} not tried: {why}")
    ceiling = "unknown: no prompt has two samples" if found.ceiling20 is None else f"{found.ceiling20:.3f}"
    typer.echo(f"on {found.held_out} prompts held out; recall20 by half of a prompt's own samples: {ceiling}")
    typer.echo(f"{out}: a ranker by {found.ranker.method}")


class _Lines:
    """Prints a line for each method, and of what takes long one every few seconds. On stderr: stdout has the results."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    def __call__(self, line: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if line["phase"] == "step":
            if now - self._last_s < _LINE_EVERY_S:
                return
            text = f"step {line['step']} of {line['steps']}, loss {line['loss']:.3f}"
        elif line["phase"] == "tried":
            text = f"recall20 {line['recall20']:.3f} on prompts held back, after {line['train_s']:.1f} s"
        else:
            text = line["phase"]
        self._last_s = now
        print(f"{line['method']}: {text}", file=sys.stderr, flush=True)
