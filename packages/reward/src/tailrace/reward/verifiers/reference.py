"""A verifier by reference, without a package: ``module:function`` or ``path/to/file.py:function``."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import cast

from tailrace.reward.errors import UnknownVerifierError
from tailrace.reward.verifiers.protocol import Verifier


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
    if source.endswith(".py"):
        if not Path(source).is_file():
            raise UnknownVerifierError(f"found no file {source}, expected one with a function {name}")
        spec = importlib.util.spec_from_file_location(f"tailrace_verifier_{Path(source).stem}", source)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(source)
    function = getattr(module, name, None)
    if not callable(function):
        raise UnknownVerifierError(
            f"found no function {name!r} in {source}, expected verify(response, answer, metadata)"
        )
    return cast(Verifier, function)
