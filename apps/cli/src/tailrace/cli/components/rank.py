"""``tailrace rank``: trains a ranker of lengths, and shows every method on prompts held out."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from tailrace import contracts as c
from tailrace.cli.errors import CommandError
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.roles.prompts import Prompts, PromptSettings
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import read_log
from tailrace.pipeline.run.figures.stages import CompleteResponses
from tailrace.pipeline.run.prepare import prepare
from tailrace.ranker import Comparison, Example, ExampleError, compare
from tailrace.trajstore import MixOrder
from tailrace.trajstore.prompt_files import read_rows

_FILES = (".jsonl", ".ndjson")
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


# What a ranker learns from: rows of a file, or the responses of a run.


def read_examples(data: Path) -> list[Example]:
    """The examples of a JSONL file of their fields, or of a run's directory.

    Raises:
        ExampleError: a row is no example; the message has its line.
        CommandError: it is neither, or the run has no finished response.
        TailraceError: the file or the run cannot be read.
    """
    if data.is_dir():
        return list(_of_run(RunDirectory.open(data)))
    if data.suffix.lower() not in _FILES:
        raise CommandError(
            f"{data}: found the ending {data.suffix!r}, expected {' or '.join(_FILES)}, or a run's directory"
        )
    examples = []
    for where, row in read_rows(data):
        try:
            examples.append(Example.from_json(row))
        except ExampleError as error:
            raise ExampleError(f"{where}: {error}") from error
    return examples


def _of_run(directory: RunDirectory) -> Iterator[Example]:
    """An example for each group of a run, also of those that were not trained on: what is filtered has lengths, too."""
    if not directory.prepared.exists():
        raise CommandError(f"{directory.root}: found no prompts, expected a run that has begun, not a simulated one")
    config = validate([(str(directory.config), directory.read_config())])
    prepared = prepare(config, directory, lambda _: None)
    prompts = Prompts(
        PromptSettings(
            tokenizer=prepared.model / "tokenizer.json",
            train=prepared.train,
            shares=prepared.shares,
            held_out=None,
            modes={},
            shuffle_seed=config.seed,
        )
    )
    families = _Families(config)
    count = 0
    for ref, version, samples in _groups(directory):
        count += 1
        yield Example(
            prompts.prompt(ref).prompt,
            tuple(length for length, _ in samples),
            tuple(truncated for _, truncated in samples),
            families(ref.prompt),
            version,
        )
    if count == 0:
        raise CommandError(f"{directory.root}: found no finished response, expected a run that has generated some")


def _groups(directory: RunDirectory) -> Iterator[tuple[c.TrajectoryRef, int, list[tuple[int, bool]]]]:
    """Yield for each group a member, the version at which it was first routed, and its finished samples.

    Lengths are of generated tokens, without what environments answered.
    """
    serves: dict[str, int] = {}
    first: dict[int, tuple[c.TrajectoryRef, int]] = {}
    group_of: dict[str, int] = {}
    finished: dict[str, tuple[int, bool]] = {}  # the last time: after a crash a trajectory may finish again
    responses = CompleteResponses()
    for instant in read_log(directory.events):
        for event in instant.events:
            if isinstance(event, c.Pulled):
                serves[event.replica] = event.version
            complete = responses.heard(event)
            if complete is not None and complete[0] in group_of and complete[1] > 0:
                over = isinstance(event, c.Finished | c.Turned) and event.reason is c.FinishReason.LENGTH
                finished[complete[0]] = complete[1], over
        for command in instant.commands:
            if isinstance(command, c.Route):
                responses.routed(command.trajectories)
                for ref in command.trajectories:
                    if ref.purpose is c.Purpose.TRAIN:
                        group_of[ref.trajectory] = ref.group
                        first.setdefault(ref.group, (ref, serves.get(command.replica, 0)))
    samples: dict[int, list[tuple[int, bool]]] = {}
    for trajectory, sample in finished.items():
        samples.setdefault(group_of[trajectory], []).append(sample)
    for group, found in sorted(samples.items()):
        yield *first[group], found


class _Families:
    """The family of a prompt by its index: the task of a mix that it comes from."""

    def __init__(self, config: RunConfig) -> None:
        self._names = tuple(config.task.mix)
        self._order = MixOrder(config.task.shares, shuffle_seed=config.seed) if len(self._names) > 1 else None

    def __call__(self, index: int) -> str:
        return "" if self._order is None else self._names[self._order.pool(index)]
