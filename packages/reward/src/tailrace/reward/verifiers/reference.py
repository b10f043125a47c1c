"""A verifier by reference, without a package: ``module:function`` or ``path/to/file.py:function``.

A file is imported as `python FILE` would import it: its directory comes first where modules are looked for, so that it can
import its siblings, and it is a module by its own name, so that its classes and functions can be pickled for other processes.
Files of several directories may have siblings of the same names. So each directory has its own modules (`_Home`), which are
there while a verifier of the directory is imported or runs.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from tailrace.reward.errors import UnknownVerifierError
from tailrace.reward.extraction import solution_answer, unboxed
from tailrace.reward.verifiers.basic import is_number, normalise
from tailrace.reward.verifiers.notation import plain
from tailrace.reward.verifiers.protocol import Verifier, with_cpu_budget


class _Home:
    """A directory with verifiers, and the modules that were imported from it."""

    entered: _Home | None = None
    known: dict[Path, _Home] = {}  # noqa: RUF012 - one for the process, like `sys.modules`

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._modules: dict[str, ModuleType] = {}

    @classmethod
    def of(cls, file: Path) -> _Home:
        directory = file.resolve().parent
        return cls.known.setdefault(directory, cls(directory))

    def enter(self) -> None:
        """Have imports find this directory's modules, and those of no other one with verifiers."""
        if _Home.entered is self:
            return
        if _Home.entered is not None:
            _Home.entered._leave()
        sys.path.insert(0, str(self._directory))
        importlib.invalidate_caches()
        sys.modules.update(self._modules)
        _Home.entered = self

    def _leave(self) -> None:
        if str(self._directory) in sys.path:
            sys.path.remove(str(self._directory))
        self._modules = {name: module for name, module in [*sys.modules.items()] if self._has(name)}
        for name in self._modules:
            del sys.modules[name]

    def _has(self, name: str) -> bool:
        """Whether a module, or the package that it is in, stands in this directory itself."""
        top = sys.modules.get(name.partition(".")[0])
        file = getattr(top, "__file__", None)
        places = [Path(file)] if isinstance(file, str) else [Path(path) for path in getattr(top, "__path__", ())]
        return any((each.parent if each.stem == "__init__" else each).parent == self._directory for each in places)


def is_reference(name: str) -> bool:
    """Whether a verifier's name is a reference. Names of installed verifiers have no colon."""
    return ":" in name


def load_reference(reference: str) -> Verifier:
    """Import what a reference names.

    Raises:
        UnknownVerifierError: there is no such file or function.
        Exception: whatever the module raises when it is imported.
    """
    source, _, name = reference.rpartition(":")
    home = None
    if source.endswith(".py"):
        if not Path(source).is_file():
            raise UnknownVerifierError(f"found no file {source}, expected one with a function {name}")
        home = _Home.of(Path(source))
        home.enter()
        module = _imported(Path(source).resolve())
    else:
        module = importlib.import_module(source)
    function = getattr(module, name, None)
    if not callable(function):
        raise UnknownVerifierError(
            f"found no function {name!r} in {source}, expected verify(response, answer, metadata)"
        )
    return cast(Verifier, function if home is None else _at(home, function))


def _imported(file: Path) -> ModuleType:
    """The module of a file, under its own name unless another module has it."""
    name = file.stem
    held = sys.modules.get(name)
    if name in sys.stdlib_module_names or (held is not None and getattr(held, "__file__", None) != str(file)):
        name = f"tailrace_verifier_{name}"
        held = sys.modules.get(name)
    if held is not None:
        return held
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _at(home: _Home, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def verify(response: str, answer: str, metadata: Mapping[str, Any]) -> Any:
        home.enter()
        return function(response, answer, metadata)

    if (budget_s := getattr(function, "cpu_budget_s", None)) is not None:
        with_cpu_budget(budget_s)(verify)
    return verify


# Reference answers as rows have them: which of them no response can match, and how a model would write the others.

_MAX_WORDS = 25  # of an answer in words; a worked solution has more
_WORD = re.compile(r"(?<![\\\w])[^\W\d_]{2,}")  # and no command of LaTeX: a matrix or a list has no words, however long


def unmatched(verifier: str, answer: str) -> str:
    """Why no response can be right for a reference answer, as far as the verifier's name tells; empty if one can.

    It is known of `math`, `numeric` and `exact` alone.
    """
    asked = solution_answer(answer)
    if verifier == "math":
        reference = unboxed(asked)
        if not plain(reference):
            return "it is empty"
        words = len(_WORD.findall(reference))
        return f"it is a text of {words} words, which only the same words match" if words > _MAX_WORDS else ""
    if verifier == "numeric" and not is_number(asked):
        return f"it is {asked[:40]!r} and no number" if asked.strip() else "it is empty"
    if verifier == "exact" and not normalise(asked):
        return "it is empty"
    return ""


def written(answer: str) -> Iterator[str]:
    """A reference answer as models write it: in a tag, a box, bold, a sentence, alone, and as the row has it."""
    asked = unboxed(solution_answer(answer)).strip()
    texts = (
        f"<answer>{asked}</answer>",
        rf"The answer is $\boxed{{{asked}}}$.",
        f"<think>I work it out.</think>\n<answer>{asked}</answer>",
        f"**{asked}**",
        f"The answer is {asked}.",
        f"#### {asked}",
        asked,
        f"<answer>{answer}</answer>",
        answer,
    )
    yield from dict.fromkeys(texts)
