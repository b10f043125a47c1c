"""Rows of Hugging Face datasets, from the hub, its cache or a local folder, with the extra ``datasets``.

``hf:NAME:SPLIT``, ``hf:NAME:CONFIGURATION:SPLIT`` or ``hf:FOLDER:SPLIT``, where a folder begins with ``/``, ``./`` or ``../``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tailrace.trajstore.errors import DatasetsSupportError, PromptFileError

DATASET = "hf:"
"""The beginning of a prompt source that is a dataset, not a file."""
_PARTS = re.compile(r"hf:(?P<name>[^:\[\]]+)(:(?P<configuration>[^:\[\]]+))?:(?P<split>[^:\[\]]+(\[[^\[\]]*\])?)")
_FORMS = "hf:NAME:SPLIT, hf:NAME:CONFIGURATION:SPLIT or hf:FOLDER:SPLIT"


def read_dataset(source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every row of a dataset's split with its place, such as ``"hf:openai/gsm8k:main:train, row 3"``.

    A dataset of the hub that is not in the cache is downloaded, unless ``HF_HUB_OFFLINE`` is set.

    Raises:
        PromptFileError: the source has another form, or there is no such dataset, configuration or split.
        DatasetsSupportError: the extra is not installed.
    """
    parts = _PARTS.fullmatch(source)
    if parts is None:
        raise PromptFileError(f"{source}: found no name with a split, expected {_FORMS}")
    name, split = parts["name"], parts["split"]
    local = name.startswith(("/", "./", "../"))
    if local and not Path(name).is_dir():
        raise PromptFileError(f"{source}: found no folder {name!r}, expected one that holds a dataset")
    try:
        import datasets
    except ImportError as error:
        raise DatasetsSupportError(
            f"{source}: reading Hugging Face datasets needs their library; pip install 'tailrace-trajstore[datasets]'"
        ) from error
    try:
        with _quiet(datasets):
            if local and _is_saved(Path(name)):
                found = _saved(source, datasets.load_from_disk(name), split)
            else:
                found = datasets.load_dataset(name, parts["configuration"], split=split)
    except PromptFileError:
        raise
    except Exception as error:  # the library raises errors of many libraries
        said = next(iter(str(error).splitlines()), "")
        raise PromptFileError(f"{source}: found no readable dataset ({type(error).__name__}: {said})") from error
    for number, row in enumerate(found, start=1):
        yield f"{source}, row {number}", dict(row)


def _is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` wrote a folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def _saved(source: str, found: Any, split: str) -> Any:
    splits = found if isinstance(found, dict) else {str(found.split or split): found}
    if split not in splits:
        raise PromptFileError(f"{source}: found the splits {', '.join(sorted(splits))}, expected {split!r} among them")
    return splits[split]


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Show no bars where nobody watches them."""
    if sys.stderr.isatty() or datasets.are_progress_bars_disabled():
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()
