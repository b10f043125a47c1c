"""Reads a run's prompt files: checks every row, and treats prompts that leave no room for a response as the configuration says.

files ──rows──► form, chat template, verifier, metadata ──► length in tokens ──► what the run trains on and is evaluated on
                                        └─ faults, all told at once     └─ refuse (a fault), drop or truncate-left (counted)
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tailrace.contracts import expected_one_of, extra, plugins
from tailrace.environment import SessionError
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.task import SourceConfig
from tailrace.pipeline.errors import ConfigError, Gathered
from tailrace.pipeline.roles.observations import check_tokens
from tailrace.pipeline.roles.prompts import BEFORE, COLUMN, METADATA, Beginning, beginning_of, item_metadata
from tailrace.pipeline.run.model_check import readable_config
from tailrace.pipeline.run.prompts.chat import Chat
from tailrace.pipeline.run.scorer_setup import code_settings
from tailrace.reward import Kind, kind_of
from tailrace.reward.code import CodeRowError, read_tests
from tailrace.reward.verifiers import unmatched
from tailrace.rollout.model_files import begin_tokens
from tailrace.trajstore import Messages, Prompt, PromptFileError, read_prompts

TRAIN, HELD_OUT = "train", "held_out"
REFERENCES = 16
"""Number of a file's reference solutions that are run before a run starts."""

TRIED = 4
"""Number of a file's rows that are tried with right answers before a run starts."""

SHOWN = 5
"""Faults of one file that are listed one by one."""


@dataclass(frozen=True, slots=True)
class PromptCounts:
    """What became of a file's rows.

    Args:
        rows: rows of the file.
        dropped: those left out, since they are too long.
        truncated: those cut off at their beginning, since they are too long.
        unmatched: those whose answer their verifier can never match.
        left_out: those of them that are left out.
        why: where the first of them stands and why nothing can match it.
        most_tokens: most tokens of a prompt; None if it is not known yet, and so no length was looked at.
    """

    rows: int
    dropped: int = 0
    truncated: int = 0
    most_tokens: int | None = None
    unmatched: int = 0
    left_out: int = 0
    why: str = ""

    @property
    def used(self) -> int:
        """Rows that the run uses."""
        return self.rows - self.dropped - self.left_out

    def __str__(self) -> str:
        """The counts in words; empty if every row is used as it stands and none is known to be of no use."""
        return "; ".join(part for part in (self.lengths, self.answers) if part)

    @property
    def lengths(self) -> str:
        """What became of prompts that are too long, in words; empty if there are none."""
        done = [("dropped", self.dropped), ("cut off at their beginning", self.truncated)]
        parts = [f"{count:,} of {self.rows:,} {word}" for word, count in done if count]
        return f"{' and '.join(parts)}: longer than {self.most_tokens:,} tokens" if parts else ""

    @property
    def answers(self) -> str:
        """How many answers can never be matched, in words; empty if none is known."""
        if not self.unmatched:
            return ""
        done = "were left out" if self.left_out else 'stay in, and task.unmatched = "drop" leaves them out'
        return f"{self.unmatched:,} of {self.rows:,} have an answer that can never be matched ({self.why}) and {done}"


@dataclass(slots=True)
class FoundPrompts:
    """All prompts of a run.

    Args:
        counts: by key of the table `task`: ``train`` or ``sources.0`` and so on, and `HELD_OUT` if there is one.
        first: the first prompts of each of these whose answers can be matched, and where they stand; at most `TRIED`.
        references: where the first programs with a reference solution stand, and their prompts; at most `REFERENCES` of a file.
        verifiers: all verifiers that rows use, in order of their first row.
        faults: a line for each row that is wrong, for at most five rows of a file, and the number of others.
        notes: what to know before a run starts, a line each, that does not keep it from starting.
    """

    counts: dict[str, PromptCounts] = field(default_factory=dict)
    first: dict[str, list[tuple[str, Prompt]]] = field(default_factory=dict)
    references: list[tuple[str, Prompt]] = field(default_factory=list)
    verifiers: dict[str, None] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)


def sources_of(config: RunConfig) -> dict[str, SourceConfig]:
    """All prompt files of a configuration, each by its key in the table `task`."""
    held_out = config.task.held_out
    return config.task.training | ({} if held_out is None else {HELD_OUT: SourceConfig(path=held_out)})


def read_files(config: RunConfig, model: Path | None, *, into: Path | None = None, begun: bool = False) -> FoundPrompts:
    """Read and check every row of a configuration's prompt files.

    Args:
        config: the configuration.
        model: the directory of the model with its tokenizer; None if it does not exist yet. Then no length is looked at.
        into: where to write the prompts as the run uses them, each file by its key; None: nowhere.
        begun: whether the rows have a `Beginning`, which is the rest of their prompts.
    """
    gathered, found, chat = (
        Gathered(),
        FoundPrompts(),
        Chat(model, texts=config.task.chat, options=config.task.chat_options),
    )
    context = None
    with gathered.check():
        context = context_of(config, model)
    places: dict[str, dict[str, str]] = {}
    sources = sources_of(config)
    for name, source in sources.items():
        may_be_empty = into is None and config.environment.name is not None  # the environment may say it all
        reader = _Reader(config, source, context, chat, begun, may_be_empty)
        with gathered.check():
            _read(reader, None if into is None else prompts_file(into, name))
        gathered.add(*map(str, reader.faults[:SHOWN]))
        if len(reader.faults) > SHOWN:
            gathered.add(f"{source.path}: {len(reader.faults) - SHOWN:,} more rows are wrong")
        elif reader.dropped and reader.dropped == reader.rows:
            gathered.add(f"{source.path}: every prompt is longer than {context.most if context else 0:,} tokens")
        elif reader.unmatched and reader.unmatched == reader.rows:
            gathered.add(f"{source.path}: no row has an answer that can be matched; {reader.why}")
        found.counts[name], places[name] = reader.counts(), reader.places
        found.verifiers |= reader.verifiers
        found.references += reader.references
        found.first[name] = reader.first
    held_out = places.pop(HELD_OUT, {})
    for name, trained in places.items():
        both = [place for prompt, place in held_out.items() if prompt in trained]
        if both:
            gathered.add(_overlap(both, sources[name].path))
    found.faults = gathered.lines
    return found


def sized(config: RunConfig, found: FoundPrompts | None) -> RunConfig:
    """The configuration with as many held-out problems as there are, if it asks for more: none is to be asked twice."""
    counts = found.counts.get(HELD_OUT) if found is not None else None
    if counts is None or counts.used >= config.task.held_out_size:
        return config
    task = config.task.model_copy(update={"held_out_size": counts.used})
    return config.model_copy(update={"task": task})


def prompts_file(directory: Path, name: str) -> Path:
    """Where a run keeps the prompts of a key of the table `task`."""
    return (directory / f"{name}.jsonl").absolute()


def plain(counts: dict[str, PromptCounts]) -> dict[str, Any]:
    """Counts as plain data."""
    return {name: asdict(each) for name, each in counts.items()}


def treated_rows(summary: Mapping[str, Any]) -> list[str]:
    """A line for each prompt file of a finished run of which rows were dropped or cut, from the content of its summary."""
    counted = {name: PromptCounts(**each) for name, each in summary.get("prompt_rows", {}).items()}
    return [f"rows of task.{name}: {counts}" for name, counts in counted.items() if str(counts)]


class _Reader:
    """Reads one file, notes its faults and counts its rows."""

    def __init__(
        self,
        config: RunConfig,
        source: SourceConfig,
        context: PromptRoom | None,
        chat: Chat,
        begun: bool,
        may_be_empty: bool,
    ) -> None:
        task = config.task
        self._code = code_settings(config)
        self._begun, self._may_be_empty = begun, may_be_empty
        self._overlong, self._path, self._context, self._chat = task.overlong, source.path, context, chat
        self._verifier, self._default = source.verifier, task.verifier
        self._columns = task.columns(source)
        self._known = set(plugins.names("tailrace.verifier"))
        self.verifiers: dict[str, None] = {}
        self.references: list[tuple[str, Prompt]] = []
        self.faults: list[PromptFileError] = []
        self.places: dict[str, str] = {}
        self.first: list[tuple[str, Prompt]] = []
        self._unmatched, self.unmatched, self.left_out, self.why = task.unmatched, 0, 0, ""
        self.rows = self.dropped = self.truncated = 0
        self._rendered = False  # whether the chat template made the text of the row under way

    def counts(self) -> PromptCounts:
        most = self._context.most if self._context else None
        return PromptCounts(self.rows, self.dropped, self.truncated, most, self.unmatched, self.left_out, self.why)

    def texts(self) -> Iterator[tuple[Prompt, str]]:
        """Each prompt that is used, with its text as it is used."""
        render = None if self._begun else self._render
        for place, row in read_prompts(self._path, render=render, faults=self.faults, **self._columns):
            self.rows += 1
            beginning = beginning_of(row) if self._begun else None
            row = dataclasses.replace(row, metadata=_metadata(row, () if beginning is None else (COLUMN,)))
            where = place if beginning is None else beginning.where
            try:
                said = row.prompt if beginning is None else self._with_beginning(beginning)
            except PromptFileError as fault:
                self.faults.append(PromptFileError(f"{where}: {fault}"))
                continue
            prompt = dataclasses.replace(row, prompt=said)
            wrong = self._wrong(prompt)
            prompt = dataclasses.replace(prompt, verifier=prompt.verifier or self._verifier)
            given = None if beginning is None else beginning.tokens
            before: tuple[int, ...] = ()
            if self._context is not None and given is None and not self._rendered:
                before = self._context.before(prompt.prompt)
                if before:
                    prompt = dataclasses.replace(prompt, metadata={**prompt.metadata, BEFORE: before})
            verifier = prompt.verifier or self._default
            self.verifiers.setdefault(verifier)
            if wrong is None and kind_of(verifier) is Kind.CODE:
                wrong = self._wrong_tests(prompt)
                if wrong is None and prompt.answer.strip() and len(self.references) < REFERENCES:
                    self.references.append((where, prompt))
            left_out = False
            if wrong is None and (why := unmatched(verifier, prompt.answer)):
                wrong, left_out = self._never_matched(where, verifier, why)
            elif len(self.first) < TRIED:
                self.first.append((where, prompt))
            if beginning is None:  # otherwise rows differ that have the same words, such as games that begin alike
                self.places.setdefault(prompt.prompt, where)
            text: str | None = None if left_out else prompt.prompt
            if wrong is None and text is not None and self._context is not None:
                tokens = len(given if given is not None else (*before, *self._context.tokens(prompt.prompt)))
                if tokens > self._context.most:
                    wrong, text = self._too_long(prompt.prompt, tokens, len(before), whole=given is not None)
            if wrong is not None:
                self.faults.append(PromptFileError(f"{where}: {wrong}"))
            elif text is not None:
                yield prompt, text

    def _never_matched(self, where: str, verifier: str, why: str) -> tuple[str | None, bool]:
        """Count a row whose answer can never be matched. Returns what is wrong, and whether the row is left out."""
        self.unmatched += 1
        self.why = self.why or f"{where}: {why}; verifier {verifier}"
        self.left_out += self._unmatched == "drop"
        said = f"found an answer that the verifier {verifier!r} can never match: {why}"
        refused = f'{said}; task.unmatched = "drop" leaves it out' if self._unmatched == "refuse" else None
        return refused, self._unmatched == "drop"

    def _render(self, prompt: str | Messages) -> str:
        self._rendered = self._chat.renders(prompt)
        return self._chat.text(prompt)

    def _wrong(self, prompt: Prompt) -> str | None:
        if not prompt.prompt.strip() and not self._may_be_empty:
            return "found an empty prompt, expected text"
        if prompt.verifier is not None and prompt.verifier not in self._known:
            known = expected_one_of(prompt.verifier, sorted(self._known))
            return (
                f'found the verifier {prompt.verifier!r}, {known}; task.verifier_column = "" makes the column metadata'
            )
        return None

    def _wrong_tests(self, prompt: Prompt) -> str | None:
        try:
            read_tests(item_metadata(prompt), self._code)
        except CodeRowError as error:
            return str(error)
        return None

    def _with_beginning(self, beginning: Beginning) -> str:
        """The text of a row's prompt.

        Raises:
            PromptFileError: the model's chat template refuses it, or its tokenizer has not these tokens.
        """
        if beginning.tokens is not None:
            if self._context is None:
                raise PromptFileError(
                    "found no context length in the model's configuration, expected max_position_embeddings"
                )
            return self._context.text(beginning.tokens)
        parts = (beginning.prompt, str(beginning.observation))
        return self._render("\n".join(part for part in parts if part.strip()))

    def _too_long(self, text: str, tokens: int, before: int, *, whole: bool) -> tuple[str | None, str | None]:
        """What is wrong, or the text to use, if any. A prompt that is `whole` is not cut: it is not ours."""
        assert self._context is not None
        if self._overlong == "refuse" or (whole and self._overlong != "drop"):
            return self._context.refusal(tokens), None
        if self._overlong == "drop":
            self.dropped += 1
            return None, None
        self.truncated += 1
        return None, self._context.truncated(text, before)


def _read(reader: _Reader, into: Path | None) -> None:
    with ExitStack() as stack:
        file = None if into is None else stack.enter_context(into.open("w", encoding="utf-8"))
        for prompt, text in reader.texts():
            if file is not None:
                row = {"prompt": text, "answer": prompt.answer, "verifier": prompt.verifier}
                file.write(json.dumps({**row, **prompt.metadata}) + "\n")


def merged(columns: Mapping[str, Any]) -> dict[str, Any]:
    """What a verifier gets of a row, in JSON values: its further columns, and what the object in its column ``metadata`` says.

    Of two that have one name, the object's counts. It may be JSON as text, as in a CSV file.
    """
    nested = columns.get(METADATA)
    if isinstance(nested, str):
        with suppress(ValueError, RecursionError):
            nested = json.loads(nested)
    if isinstance(nested, Mapping):
        columns = {**{name: value for name, value in columns.items() if name != METADATA}, **nested}
    found: dict[str, Any] = json.loads(json.dumps(columns, default=_in_json))
    return found


def _metadata(row: Prompt, own: Collection[str]) -> dict[str, Any]:
    """The metadata of a row as the run's own files have it. Columns that are its `own` stand beside what the verifier gets."""
    columns = {name: value for name, value in row.metadata.items() if name not in own}
    return {METADATA: merged(columns), **{name: row.metadata[name] for name in own}}


def _in_json(value: Any) -> Any:
    """What JSON has no value for, of Parquet's kinds: bytes in base 64, and dates, decimal numbers and others as text."""
    return base64.b64encode(value).decode() if isinstance(value, bytes | bytearray | memoryview) else str(value)


def _overlap(both: Sequence[str], train: Path) -> str:
    more = f", and so do {len(both) - 1:,} more" if len(both) > 1 else ""
    return f"{both[0]}: this held-out prompt is in {train} too{more}; expected prompts not trained on"


@dataclass(frozen=True, slots=True)
class PromptRoom:
    """The room for a prompt in a model's context.

    Args:
        tokenizer: the model's tokenizer.
        most: most tokens of a prompt.
        max_tokens: most tokens of a response.
        begin: tokens that the tokenizer puts before a text that is no conversation.
    """

    tokenizer: Any
    most: int
    max_tokens: int
    begin: tuple[int, ...] = ()

    def tokens(self, text: str) -> tuple[int, ...]:
        """The tokens of a text itself."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def before(self, text: str) -> tuple[int, ...]:
        """Tokens that stand before a text that is no conversation: none where it has them itself."""
        return () if not self.begin or self.tokens(text)[: len(self.begin)] == self.begin else self.begin

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens that the environment gave, to be looked at.

        Raises:
            PromptFileError: the tokenizer has not all of them.
        """
        try:
            check_tokens(tokens, self.tokenizer.get_vocab_size())
        except SessionError as error:
            raise PromptFileError(str(error)) from error
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def refusal(self, tokens: int) -> str:
        """What is wrong with a prompt of so many tokens."""
        return (
            f"found a prompt of {tokens:,} tokens, expected at most {self.most:,}: the context less rollout.max_tokens "
            f"= {self.max_tokens:,}"
        )

    def truncated(self, text: str, before: int = 0) -> str:
        """The longest end of a text that begins at a token's beginning and has, with `before` others, at most `most` tokens."""
        while True:
            offsets = self.tokenizer.encode(text, add_special_tokens=False).offsets
            over = len(offsets) + before - self.most
            if over <= 0:
                return text
            # What is left may be split into other tokens, even into more: so it is counted again. At least one character goes.
            text = text[max(offsets[over][0], 1) :]


def context_of(config: RunConfig, model: Path | None) -> PromptRoom | None:
    """The room for prompts; None if the model or its files are missing, which other checks report.

    Raises:
        ConfigError: the tokenizer is damaged, or a response leaves no room for a prompt.
    """
    path = None if model is None else model / "tokenizer.json"
    if model is None or path is None or not path.is_file():
        return None
    total = config.rollout.options.get("max_model_len")
    if total is None:
        total = readable_config(model).get("max_position_embeddings")
    if not isinstance(total, int):
        return None
    max_tokens = config.rollout.max_tokens
    if max_tokens >= total:
        raise ConfigError(
            f"key 'rollout.max_tokens': found {max_tokens:,}, expected fewer than the {total:,} tokens of the context"
        )
    with extra("tailrace-trainer", "torch"):
        from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise ConfigError(f"key 'model.path': {path} is no tokenizer: {error}") from error
    return PromptRoom(tokenizer, total - max_tokens, max_tokens, begin_tokens(str(model), tokenizer))
