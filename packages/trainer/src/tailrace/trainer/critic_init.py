"""What a critic begins with, checked before a run starts. Importing it needs no torch."""

from __future__ import annotations

import json
from pathlib import Path

from tailrace.trainer.errors import ModelError
from tailrace.trainer.weights_file import read_config, tensor_shapes

HEAD = "score.weight"
"""The head of a value model, ``[1, hidden]``, as Hugging Face's sequence classifiers call it."""


def check_critic_init(directory: Path, model: Path | None) -> None:
    """Check that a directory has what a critic can begin with.

    Args:
        directory: the directory.
        model: the policy's directory; None: the small Qwen3 that a run builds, of which sizes are not known yet.

    Raises:
        ModelError: it has no model with a value head, or one of another type, vocabulary or tokenizer than the policy.
        CheckpointError: its weights cannot be read.
    """
    mine = read_config(directory)
    shape = tensor_shapes(directory).get(HEAD)
    if shape is None or shape[0] != 1:
        found = "no such tensor" if shape is None else f"one of {shape[0]} rows"
        raise ModelError(
            f"found a critic without a head in {directory} ({HEAD}: {found}), expected one of 1 row, as a sequence classifier "
            "with one label has; without a directory the policy's model gets a fresh head"
        )
    policy = {"model_type": "qwen3"} if model is None else read_config(model)
    for key, what in (("model_type", "type"), ("vocab_size", "vocabulary")):
        if key in policy and mine.get(key) != policy[key]:
            raise ModelError(
                f"found a critic of another {what} in {directory} ({key} = {mine.get(key)!r}), expected the policy's, "
                f"{policy[key]!r}"
            )
    if model is not None and not _same_tokens(directory / "tokenizer.json", model / "tokenizer.json"):
        raise ModelError(
            f"found a critic of another tokenizer in {directory}, expected that of the policy in {model}: equal tokens have "
            "equal ids in both"
        )


def _same_tokens(one: Path, other: Path) -> bool:
    """Whether two tokenizers give equal tokens equal ids. One that is not there is taken for the other."""
    if not (one.is_file() and other.is_file()):
        return True
    vocabularies = []
    for path in (one, other):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            added = [(token["content"], token["id"]) for token in found.get("added_tokens", ())]
            vocabularies.append((found["model"]["vocab"], sorted(added)))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{path} is no tokenizer's file: {error!r}") from error
    return vocabularies[0] == vocabularies[1]
