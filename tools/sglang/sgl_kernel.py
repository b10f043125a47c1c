"""Stands in for SGLang's CUDA operators where there is no CUDA: every name can be imported, and a call says what is missing."""

from typing import Any

__version__ = "0.0.0"
__path__: list[str] = []


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> None:
        raise NotImplementedError(f"sgl_kernel.{name} is a CUDA operator, and this machine has no CUDA")

    return missing
