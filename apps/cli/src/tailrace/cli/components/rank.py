"""``tailrace rank``: trains a ranker of lengths, and shows every method on prompts held out."""

from __future__ import annotations

import json
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import typer

from tailrace.cli.errors import CommandError
from tailrace.cli.outputs import check_file, write_file
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.roles.prompts import Prompts, PromptSettings
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import read_log
from tailrace.pipeline.run.figures.stages import LaunchedGroup, LaunchedGroups
from tailrace.pipeline.run.prepare import prepare
from tailrace.pipeline.run.prompts.chat import Chat, has_template
from tailrace.pipeline.run.ranker_setup import SFT, fine_tuning_memory
from tailrace.ranker import Comparison, Example, ExampleError, Sft, compare, configured
from tailrace.trajstore import MixOrder, PromptFileError
from tailrace.trajstore.prompt_files import DATASET, read_rows

_LINE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class RankOptions:
    """The command line of ``tailrace rank``."""

    data: str
    out: Path
    json_file: Path | None = None
    method: str = "auto"
    seed: int = 0
    budget_s: float = 300.0
    policy: Path | None = None
    init: Path | None = None
    objective: str = "auto"
    options: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    transfer: str | None = None
    split: str = "7:2:1"
    by_family: bool = False
    columns: Columns = field(default_factory=lambda: Columns())


def rank(options: RankOptions) -> Comparison:
    """Compare the methods, print the table, write the chosen ranker and the figures.

    Raises:
        TailraceError: the data, an option or a model is wrong.
    """
    check_file("--json", options.json_file)
    if options.out.exists() and not options.out.is_dir():
        raise CommandError(f"--out {options.out}: found a file, expected a folder")
    chosen = _method_options(options)
    split = _split(options.split)
    if options.init is not None:
        _show_memory(options.init, chosen if options.method == SFT else {})
    examples = read_examples(options.data, options.columns, options.policy)
    others = None if options.transfer is None else read_examples(options.transfer, options.columns, options.policy)
    found = compare(
        examples,
        method=options.method,
        options=chosen,
        names=options.only or None,
        transfer=others,
        split=split,
        by_family=options.by_family,
        seed=options.seed,
        budget_s=options.budget_s,
        policy=options.policy,
        init=options.init,
        progress=_Lines(),
    )
    found.ranker.save(options.out)
    _show(found, options.out)
    if options.json_file is not None:
        write_file(options.json_file, json.dumps(found.as_json(), indent=1) + "\n")
    return found


def _method_options(options: RankOptions) -> dict[str, Any]:
    """The options of the method that is named.

    Raises:
        CommandError: one is no ``KEY=VALUE``, or an objective is given to another method than ``sft``, or without a model.
    """
    found: dict[str, Any] = {}
    for each in options.options:
        key, equals, text = each.partition("=")
        if not equals or not key:
            raise CommandError(f"--option: found {each!r}, expected KEY=VALUE, such as lora_rank=8")
        try:
            found[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            found[key] = text
    if options.objective != "auto":
        if options.method != SFT:
            raise CommandError(f"--objective: found one beside the method {options.method!r}, expected --method {SFT}")
        if options.init is None:
            raise CommandError(
                "--objective: found one without a model, expected --init with it: from scratch sft learns to write"
            )
        found["objective"] = options.objective
    return found


def _split(text: str) -> tuple[int, int, int]:
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isdecimal() and int(part) for part in parts):
        raise CommandError(f"--split: found {text!r}, expected three parts above 0, such as 7:2:1")
    learn, held_back, held_out = map(int, parts)
    return learn, held_back, held_out


def _show_memory(init: Path, options: Mapping[str, Any]) -> None:
    """Say what fine-tuning takes, before anything is loaded."""
    method = configured(SFT, options)
    assert isinstance(method, Sft)
    method.check(init)
    import torch

    needed = fine_tuning_memory(init, method, gpu=torch.cuda.is_available())
    typer.echo(f"{init}: {'of an architecture whose memory is not counted' if needed is None else needed}", err=True)


_FIGURES = ("recall20", "recall10", "recall5", "tau_b")


def _show(found: Comparison, out: Path) -> None:
    typer.echo(f"{'method':14} recall20 recall10  recall5    tau-b  seconds")
    for name, row in found.methods.items():
        typer.echo(f"{name:14} {_cells(row)} {row['train_s']:8.1f}")
    for name, why in found.left_out.items():
        typer.echo(f"{name:14} not tried: {why}")
    values = [found.ceilings[name] for name in ("ceiling20", "ceiling10", "ceiling5")]
    if None in values:
        typer.echo(f"{'ceiling':14} unknown: no prompt has two samples")
    else:
        typer.echo(f"{'ceiling':14} {' '.join(f'{value:8.3f}' for value in values)}")
    typer.echo(f"on {found.held_out} prompts held out; the ceiling is recall by half of a prompt's own samples")
    if "transfer_ceiling20" in found.ceilings:
        most = found.ceilings["transfer_ceiling20"]
        typer.echo(
            f"on the other data, where the ceiling of recall20 is {'unknown' if most is None else f'{most:.3f}'}:"
        )
        for name, row in found.methods.items():
            typer.echo(f"{name:14} {_cells({key: row[f'transfer_{key}'] for key in _FIGURES})}")
    objective = "" if found.ranker.objective is None else f", which learned the objective {found.ranker.objective}"
    typer.echo(f"{out}: a ranker by {found.ranker.method}{objective}")


def _cells(row: Mapping[str, float]) -> str:
    return " ".join(f"{row[key]:8.3f}" for key in _FIGURES)


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


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a file are what.

    Args:
        prompt: text, or chat messages; empty: ``prompt``, else ``conversation`` or ``messages`` as LMSYS-Chat-1M has them.
        lengths: a number or a list; empty: ``lengths``, or ``length``.
        response: texts of responses, one or a list, whose tokens are counted; empty: ``lengths`` are given, or a conversation's
            first answer is the response.
    """

    prompt: str = ""
    lengths: str = ""
    response: str = ""


def read_examples(data: str | Path, columns: Columns | None = None, policy: Path | None = None) -> list[Example]:
    """The examples of a file, of a dataset (``hf:NAME:SPLIT``) or of a run's directory.

    Rows with the same prompt, family and version are one example with all their lengths.

    Args:
        data: where they are.
        columns: which columns are what; None: the usual names.
        policy: the model that generated the responses: its chat template makes texts of prompts that are messages, its
            tokenizer counts the tokens of responses.

    Raises:
        ExampleError: a row is no example; the message has its line.
        CommandError: it is neither, or the run has no finished response, or a policy is needed and not given.
        TailraceError: the file or the run cannot be read.
    """
    if not str(data).startswith(DATASET) and Path(data).is_dir():
        return list(_of_run(RunDirectory.open(Path(data))))
    reader = _Rows(columns or Columns(), policy)
    found: dict[tuple[str, str, int], Example] = {}
    for where, row in read_rows(data):
        try:
            one = reader.example(row)
        except (ExampleError, PromptFileError) as error:
            raise ExampleError(f"{where}: {error}") from error
        key = (one.prompt, one.family, one.version)
        found[key] = one if key not in found else _joined(found[key], one)
    return list(found.values())


def _joined(one: Example, other: Example) -> Example:
    samples = (*one.samples, *other.samples)
    lengths, truncated = tuple(length for length, _ in samples), tuple(cut for _, cut in samples)
    return replace(one, lengths=lengths, truncated=truncated if any(truncated) else ())


_PROMPTS, _LENGTHS, _CONVERSATIONS = (
    ("prompt", "question"),
    ("lengths", "length", "tokens"),
    ("conversation", "messages"),
)


class _Rows:
    """Makes examples of rows."""

    def __init__(self, columns: Columns, policy: Path | None) -> None:
        self._columns, self._policy = columns, policy
        self._chat = Chat(policy, texts=True) if policy is not None and has_template(policy) else None

    def example(self, row: Mapping[str, Any]) -> Example:
        """One row.

        Raises:
            ExampleError: it is none.
            CommandError: there is no policy, and it is needed.
        """
        asked, answer = self._asked(row)
        response = row.get(self._columns.response, None) if self._columns.response else answer
        if self._columns.response and response is None:
            raise ExampleError(f"found no key {self._columns.response!r}, expected the responses")
        if response is None:
            lengths: Any = _read(self._value(row, self._columns.lengths, _LENGTHS))
        else:
            lengths = [self._tokens(text) for text in ([response] if isinstance(response, str) else response)]
        lengths = [lengths] if isinstance(lengths, int) else lengths
        truncated: Any = _read(row.get("truncated") or ())
        family, version = row.get("family") or "", _read(row.get("version") or 0)
        truncated = [truncated] if isinstance(truncated, bool) else truncated
        return Example(self._text(asked), lengths, truncated, family, version)

    def _asked(self, row: Mapping[str, Any]) -> tuple[Any, str | None]:
        """The prompt, text or messages, and the answer to it, if it is the first of a conversation."""
        name = self._columns.prompt or next((each for each in (*_PROMPTS, *_CONVERSATIONS) if each in row), "")
        if name not in row:
            wanted = repr(name) if name else " or ".join((*_PROMPTS, *_CONVERSATIONS))
            raise ExampleError(f"found no key {wanted}, expected the prompts, or --prompt-column")
        asked = row[name]
        if isinstance(asked, str):
            return asked, None
        if (
            not isinstance(asked, list)
            or not all(isinstance(each, dict) and "content" in each for each in asked)
            or not asked
        ):
            raise ExampleError(
                f"found {type(asked).__name__} in {name!r}, expected text, or chat messages with their content"
            )
        first = next((place for place, each in enumerate(asked) if each.get("role") == "assistant"), len(asked))
        return asked[:first], None if first == len(asked) else asked[first]["content"]

    def _value(self, row: Mapping[str, Any], name: str, usual: tuple[str, ...]) -> Any:
        name = name or next((each for each in usual if each in row), "")
        if name not in row:
            raise ExampleError(
                f"found no key {name or usual[0]!r}, expected the lengths of responses, or --length-column, or responses by "
                "--response-column"
            )
        return row[name]

    def _text(self, asked: Any) -> str:
        if self._chat is not None:
            return self._chat.text(asked)
        if not isinstance(asked, str):
            raise CommandError(
                "found prompts that are chat messages, expected --policy with the chat template they are sent by"
            )
        return asked

    def _tokens(self, text: Any) -> int:
        if not isinstance(text, str):
            raise ExampleError(f"found a response of type {type(text).__name__}, expected text")
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids) + 1  # and the token that ends it

    @cached_property
    def _tokenizer(self) -> Any:
        if self._policy is None:
            raise CommandError("found responses as text, expected --policy with the tokenizer that counts their tokens")
        file = self._policy / "tokenizer.json"
        if not file.is_file():
            raise CommandError(f"{self._policy}: found no tokenizer.json, expected that of the policy")
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(file))


def _read(cell: Any) -> Any:
    """A cell of CSV as what it says: a number, a truth, or a list of them; other text stays. pandas writes 3 as 3.0."""
    if isinstance(cell, str):
        try:
            cell = json.loads(cell.lower())
        except ValueError:
            return cell
    if isinstance(cell, list):
        return [_read(each) for each in cell]
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def _of_run(directory: RunDirectory) -> Iterator[Example]:
    """An example for each group of a run, also of those that were not trained on: what is filtered has lengths, too."""
    if not directory.prepared.exists():
        raise CommandError(f"{directory.root}: found no prompts, expected a run that has begun, not a simulated one")
    config = validate([(str(directory.config), directory.read_config())])
    prepared = prepare(config, directory, lambda _: None)
    tokenizer = prepared.model / "tokenizer.json"
    if not tokenizer.is_file():
        raise CommandError(
            f"{directory.root}: found no {tokenizer}, expected that of the model which the run began with"
        )
    prompts = Prompts(
        PromptSettings(
            tokenizer=tokenizer,
            train=prepared.train,
            shares=prepared.shares,
            held_out=None,
            modes={},
            shuffle_seed=config.shuffle_seed,
        )
    )
    families = _Families(config)
    count = 0
    for _, group in sorted(_groups(directory).items()):
        if group.responses:
            count += 1
            yield Example(
                prompts.prompt(group.first).prompt,
                tuple(length for length, _ in group.responses.values()),
                tuple(truncated for _, truncated in group.responses.values()),
                families(group.first.prompt),
                group.version,
            )
    if count == 0:
        raise CommandError(f"{directory.root}: found no finished response, expected a run that has generated some")


def _groups(directory: RunDirectory) -> dict[int, LaunchedGroup]:
    """The groups of a run. Lengths are of generated tokens, without what environments answered."""
    groups = LaunchedGroups()
    for instant in read_log(directory.events):
        groups.observe(instant.events, instant.commands)
    return groups.of


class _Families:
    """The family of a prompt by its index: the task of a mix that it comes from."""

    def __init__(self, config: RunConfig) -> None:
        self._names = tuple(config.task.mix)
        self._order = MixOrder(config.task.shares, shuffle_seed=config.shuffle_seed) if len(self._names) > 1 else None

    def __call__(self, index: int) -> str:
        return "" if self._order is None else self._names[self._order.pool(index)]
