"""What a Hugging Face model directory says: the parameters of complete weights, the vocabulary, tokens that begin and end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

from tailrace.rollout.errors import ModelLoadError

_HEADER_CEILING_BYTES = 100 << 20
_OUTPUT = "lm_head.weight"
_STACKED = {".experts.gate_up_proj": ("gate_proj", "up_proj"), ".experts.down_proj": ("down_proj",)}


def parameter_names(model_path: str) -> frozenset[str]:
    """Names that must arrive before a weight version is complete; empty if the directory has no safetensors files.

    With tied embeddings, the output layer is the embedding, so its name is not included.

    Raises:
        ModelLoadError: a file exists and cannot be read.
    """
    return _names(model_path) - tied_names(model_path)


def _names(model_path: str) -> frozenset[str]:
    directory = Path(model_path)
    try:
        index = directory / "model.safetensors.index.json"
        if index.is_file():
            return frozenset(json.loads(index.read_text())["weight_map"])
        names = set[str]()
        for path in sorted(directory.glob("*.safetensors")):
            with path.open("rb") as file:
                names |= _header(file).keys()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(
            f"cannot read the parameter names of {directory}: {type(error).__name__}: {error}"
        ) from error
    return frozenset(names)


def parameter_shapes(model_path: str) -> dict[str, tuple[int, ...]]:
    """The shapes of a model directory's parameters; empty if it has no safetensors files.

    Raises:
        ModelLoadError: a file cannot be read.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(Path(model_path).glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                shapes |= {name: tuple(entry["shape"]) for name, entry in _header(file).items()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelLoadError(f"cannot read the shapes in {path}: {type(error).__name__}: {error}") from error
    return shapes


def lacking(expected: Iterable[str], arrived: Mapping[str, Sequence[int]]) -> list[str]:
    """Expected names under which no weights arrived, in order.

    Checkpoints have a layer's experts one by one. A trainer may publish them as transformers has them: stacked, gate and up in
    one tensor.

    Args:
        expected: names as in a checkpoint's files.
        arrived: what arrived, with its shape.
    """
    missing = set(expected) - arrived.keys()
    for name, shape in arrived.items():
        for end, parts in _STACKED.items():
            if name.endswith(end) and shape:
                of_layer = name.removesuffix(end)
                missing -= {f"{of_layer}.experts.{i}.{part}.weight" for i in range(shape[0]) for part in parts}
    return sorted(missing)


def tied_names(model_path: str) -> frozenset[str]:
    """Names that may come with a model's weights and are not needed: its output layer, if that is the embedding.

    Where ``config.json`` does not say so, as Gemma's, for whose class it is the rule, it is if the files have no output layer.

    Raises:
        ModelLoadError: ``config.json``, or a file with the names, cannot be read.
    """
    tied = configuration(model_path).get("tie_word_embeddings")
    if tied is None:
        names = _names(model_path)
        tied = bool(names) and _OUTPUT not in names
    return frozenset({_OUTPUT} if tied else ())


def end_tokens(model_path: str) -> tuple[int, ...]:
    """The end-of-sequence tokens of a model directory; empty if it names none.

    Raises:
        ModelLoadError: a configuration file exists and cannot be read.
    """
    found: Any = None
    for name in ("generation_config.json", "config.json"):
        path = Path(model_path) / name
        if found is None and path.is_file():
            try:
                found = json.loads(path.read_text()).get("eos_token_id")
            except (OSError, ValueError, AttributeError) as error:
                raise ModelLoadError(f"cannot read {path}: {type(error).__name__}: {error}") from error
    if found is None:
        return ()
    return tuple(found) if isinstance(found, list) else (found,)


def begin_tokens(model_path: str, tokenizer: Any) -> tuple[int, ...]:
    """The tokens that a model's tokenizer puts before a text that is no conversation, such as Llama's and Gemma's first token.

    ``add_bos_token`` of ``tokenizer_config.json`` says so, or else what the tokenizer itself does.

    Args:
        model_path: the model's directory.
        tokenizer: its ``tokenizer.json``, a `tokenizers.Tokenizer`.

    Raises:
        ModelLoadError: the tokenizer's settings cannot be read.
    """
    settings = tokenizer_settings(model_path)
    asks = settings.get("add_bos_token")
    if isinstance(asks, bool):
        bos = tokenizer.token_to_id(special_token(settings, "bos_token")) if asks else None
        return () if bos is None else (bos,)
    encoded = tokenizer.encode("a", add_special_tokens=True)
    added = takewhile(lambda pair: pair[1], zip(encoded.ids, encoded.special_tokens_mask, strict=True))
    return tuple(token for token, _ in added)


def tokenizer_settings(model_path: str) -> dict[str, Any]:
    """What ``tokenizer_config.json`` says; empty if there is none.

    Raises:
        ModelLoadError: it cannot be read.
    """
    path = Path(model_path) / "tokenizer_config.json"
    return _read(path) if path.is_file() else {}


def special_token(settings: Mapping[str, Any], name: str) -> str:
    """The text of a special token, such as ``eos_token``, in a tokenizer's settings; empty if it names none."""
    found = settings.get(name)
    found = found.get("content") if isinstance(found, Mapping) else found
    return found if isinstance(found, str) else ""


def vocabulary(model_path: str) -> int | None:
    """Number of tokens that a model directory's ``config.json`` says the model knows; None if it does not say.

    Raises:
        ModelLoadError: the file cannot be read.
    """
    config = configuration(model_path)
    found = config.get("text_config", config).get("vocab_size")
    return found if isinstance(found, int) else None


def model_type(model_path: str) -> str | None:
    """What transformers calls the architecture of a model directory, such as ``qwen3``; None if it does not say.

    Raises:
        ModelLoadError: ``config.json`` cannot be read.
    """
    found = configuration(model_path).get("model_type")
    return found if isinstance(found, str) else None


def configuration(model_path: str) -> dict[str, Any]:
    """The settings in a model directory's ``config.json``.

    Raises:
        ModelLoadError: it cannot be read.
    """
    return _read(Path(model_path) / "config.json")


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read {path}: {type(error).__name__}: {error}") from error
    if not isinstance(config, dict):
        raise ModelLoadError(f"{path}: found {str(config)[:60]}, expected an object of settings")
    return config


def _header(file: BinaryIO) -> dict[str, Any]:
    # safetensors: eight bytes with the length of a JSON object, then that object, then the data
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= _HEADER_CEILING_BYTES:
        raise ValueError(f"found a safetensors header of {length} bytes, the file is damaged")
    header = dict(json.loads(file.read(length)))
    header.pop("__metadata__", None)
    return header
