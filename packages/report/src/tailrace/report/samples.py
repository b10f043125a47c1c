"""A handful of trajectories that were trained on, as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.contracts import same_rewards, shown
from tailrace.pipeline.run.directory import RunDirectory, read_json
from tailrace.trajstore.archive import find_trained, read_ends
from tailrace.trajstore.peek import peek

ENDS = 400
MOST_CHARACTERS = 4_000
_CONTEXT = "[a context of its own, behind which the model reads nothing else]\n"


@dataclass(frozen=True, slots=True)
class ShownTrajectory:
    """One trajectory.

    Args:
        why: why it is shown.
        response: its texts, and of each whether an environment answered it.
        turns: how many the model generated.
        tokens: number of those that the model generated.
        versions: the weight versions that produced it, oldest first.
    """

    why: str
    trajectory: str
    prompt: str
    response: list[tuple[str, bool]]
    turns: int
    tokens: int
    reward: float | None
    versions: list[int]
    consumed_version: int | None
    finish: str


def samples(directory: RunDirectory) -> list[ShownTrajectory]:
    """Samples from the beginning and the end of training; none where trajectories were not exported."""
    if not directory.trained.exists():
        return []
    first, last = read_ends(directory.trained, ENDS, growing=not directory.summary.exists())
    decode = _Decoder(directory)
    chosen: dict[str, tuple[str, dict[str, Any]]] = {}
    for when, rows in (("early", first), ("late", last)):
        for what, row in _picks(rows):
            chosen.setdefault(str(row["trajectory"]), (f"{when} in training, {what}", row))
    return [_sample(why, row, decode) for why, row in chosen.values()]


def text_of(directory: RunDirectory, trajectory: str) -> ShownTrajectory | None:
    """One trajectory as text: from the archive if it was trained on, else what the store has of it so far.

    None where neither has it: it was dropped, or the run is simulated.

    Raises:
        TrajstoreError: the archive is damaged, or the store cannot be read now.
    """
    growing = not directory.summary.exists()
    row = find_trained(directory.trained, trajectory, growing=growing) if directory.trained.exists() else None
    row = row or peek(directory.store, trajectory)
    return None if row is None else _sample("", row, _Decoder(directory))


def _picks(rows: Iterable[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    whole = [row for row in rows if row.get("tokens") is not None and row.get("prompt") is not None]
    if not whole:
        return []
    scored = [row for row in whole if row.get("reward") is not None]
    rewards = [row["reward"] for row in scored]
    picks = []
    if scored:
        best = [row for row in scored if same_rewards((row["reward"], max(rewards)))]
        picks.append(("highest reward", max(best, key=lambda row: len(row["tokens"]))))
    if not same_rewards(rewards):
        worst = [row for row in scored if same_rewards((row["reward"], min(rewards)))]
        picks.append(("lowest reward", worst[-1]))
    picks.append(("longest response", max(whole, key=lambda row: len(row["tokens"]))))
    talks = [row for row in whole if row.get("observations")]
    if talks:
        picks.append(("several turns", talks[-1]))
    moved = [row for row in whole if len(set(row.get("versions") or ())) > 1]
    if moved:
        picks.append(("several weight versions", moved[-1]))
    return picks


def _sample(why: str, row: dict[str, Any], decode: _Decoder) -> ShownTrajectory:
    spans, start, tokens = [], 0, row["tokens"]
    fresh = set(row.get("contexts", ()))
    for first, end in [*row.get("observations", ()), (len(tokens), len(tokens))]:
        spans += [("", tokens[start:first], False), (_CONTEXT if first in fresh else "", tokens[first:end], True)]
        start = end
    parts = [(above + decode(span), told) for above, span, told in spans if span]
    return ShownTrajectory(
        why,
        str(row["trajectory"]),
        decode(row["prompt"]),
        parts,
        sum(not told for _, told in parts),
        row.get("generated", len(row["tokens"])),
        row.get("reward"),
        sorted(set(row.get("versions") or ())),
        row.get("consumed_version"),
        str(row.get("finish", "")),
    )


class _Decoder:
    """Token ids to text with the model's tokenizer; the ids themselves where there is none, or none that can be read here."""

    def __init__(self, directory: RunDirectory) -> None:
        self._tokenizer: Any = None
        self._ids = "token ids: "
        path = _tokenizer_path(directory)
        if path is None:
            return
        try:
            from tokenizers import Tokenizer
        except ImportError:  # comes with the extras of other packages; ids say the same
            return
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # as it is raised for a file that is damaged, or of a later version of the library
            self._ids = f"token ids, since {shown(f'{path} cannot be read ({error})')}: "

    def __call__(self, tokens: list[int]) -> str:
        if self._tokenizer is None:
            text = self._ids + " ".join(map(str, tokens))
        else:
            text = shown(str(self._tokenizer.decode(tokens, skip_special_tokens=False)), keep="\n\t")
        return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} … ({len(text)} characters)"


def _tokenizer_path(directory: RunDirectory) -> Path | None:
    note = directory.prepared
    places = [directory.model]
    if note.exists():
        places.append(directory.noted(str(read_json(note).get("model", ""))))
    return next((place / "tokenizer.json" for place in places if (place / "tokenizer.json").is_file()), None)
