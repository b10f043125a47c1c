"""Rows of Hugging Face datasets, from the hub, its cache or a local folder, with the extra ``datasets``.

``hf:NAME:SPLIT``, ``hf:NAME:CONFIGURATION:SPLIT`` or ``hf:FOLDER:SPLIT``, where a folder begins with ``/``, ``./``, ``../`` or
``~``. A split may be a part of one or a sum of several, as ``train[:100]``, ``train[:10%]+test``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tailrace.trajstore.arrow_rows import rows_of
from tailrace.trajstore.errors import DatasetsSupportError, PromptFileError

DATASET = "hf:"
"""The beginning of a prompt source that is a dataset, not a file."""
_SPLIT = r"[^:\[\]+()]+(?:\[[^\[\]]*\](?:\(\w+\))?)?"
_PARTS = re.compile(rf"hf:(?P<name>[^:\[\]]+)(:(?P<configuration>[^:\[\]]+))?:(?P<split>{_SPLIT}(\+{_SPLIT})*)")
_SPLITS = re.compile(_SPLIT)
_AT_ONCE = 1000
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
    local = name.startswith(("/", "./", "../", "~"))
    if name.startswith("~"):
        with suppress(RuntimeError):  # no such user
            name = str(Path(name).expanduser())
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
    number = 0
    # As Arrow has them: a column of pictures or sounds is not decoded, which would need the libraries that do.
    for table in found.with_format("arrow").iter(batch_size=_AT_ONCE):
        for row in rows_of(source, table):
            number += 1
            yield f"{source}, row {number}", row


def _is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` wrote a folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def _saved(source: str, found: Any, split: str) -> Any:
    from datasets import ReadInstruction, concatenate_datasets

    asked = [part.partition("[")[0] for part in _SPLITS.findall(split)]
    splits = found if isinstance(found, dict) else {str(found.split or asked[0]): found}
    if split == "all" and split not in splits:
        split, asked = "+".join(splits), list(splits)
    for name in asked:
        if name not in splits:
            raise PromptFileError(
                f"{source}: found the splits {', '.join(sorted(splits))}, expected {name!r} among them"
            )
    parts = ReadInstruction.from_spec(split).to_absolute({name: len(each) for name, each in splits.items()})
    chosen = [
        splits[part.splitname].select(range(part.from_ or 0, _end(part.to, splits[part.splitname]))) for part in parts
    ]
    return concatenate_datasets(chosen)


def _end(end: int | None, dataset: Any) -> int:
    return len(dataset) if end is None else min(end, len(dataset))


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
