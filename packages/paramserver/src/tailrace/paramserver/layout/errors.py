"""Errors of layouts and reshard plans."""

# ruff: noqa: N818  the names say what happened; both are errors
from __future__ import annotations

from tailrace.paramserver.errors import ParamServerError


class LayoutInvalid(ParamServerError, ValueError):
    """A layout does not describe its model: a tensor is not covered, boxes overlap or stick out, a dtype or shape differs."""


class LayoutMismatch(ParamServerError, ValueError):
    """Two layouts, or a layout and the memory that it describes, do not fit together."""
