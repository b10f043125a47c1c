"""The console of every command: it prints words as they are, such as `[/INST]` in what a model wrote."""

from __future__ import annotations

from typing import Any

from rich.console import Console


def plain_console(**options: Any) -> Console:
    """A console that takes nothing in a string for markup or an emoji. Styles are given as `rich.text.Text`.

    Args:
        options: of `rich.console.Console`.
    """
    return Console(markup=False, emoji=False, **options)
