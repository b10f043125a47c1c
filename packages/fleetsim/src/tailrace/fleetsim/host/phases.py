"""The phase that a modelled member is in, for faults that strike it there.

A trainer passes its phases at shares of a command's modelled time. A replica is in "prefill" as it takes work, in "decode"
halfway to the first end of what it generates, in "pull" as it begins one; an environment is in "tool" as a call begins. A
trainer that is to be struck while it loads waits there. Virtual time stands still while it is struck.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from tailrace import contracts as c
from tailrace.fleetsim.host.clock import VirtualTime

SHARES = {"fetch": 0.0, "forward": 0.1, "backward": 0.4, "optimizer": 0.9}
"""Where in a step of the trainer each phase begins."""
PUBLISH, CHECKPOINT, OFFLOAD, ONLOAD = "publish", "checkpoint", "offload", "onload"
HALFWAY = 0.5
_BEGINS: dict[type, str] = {
    c.Route: "prefill",
    c.Pull: "pull",
    c.Lend: "sleep",
    c.Return: "wake",
    c.Call: "tool",
}
_DECODE = "decode"


def shares(command: c.Command) -> dict[str, float]:
    """The phases of a trainer's command, each with the share of its time that has passed when it begins."""
    if isinstance(command, c.Step | c.Accumulate):
        return SHARES
    if isinstance(command, c.Offload):
        return {OFFLOAD: 0.0}
    return {PUBLISH: HALFWAY} if isinstance(command, c.Publish) else {}


class PhasedModel(Protocol):
    """What phases ask of a model; see `RoleModel`."""

    def watch_phases(self) -> None: ...
    def next_finish_s(self) -> float: ...
    def generates(self) -> bool: ...


class Phases:
    """The phases of one process of a member for which somebody waits.

    Args:
        model: of the member.
        time: the clock.
    """

    __slots__ = ("_model", "_time", "_waits")

    def __init__(self, model: PhasedModel, time: VirtualTime) -> None:
        self._model, self._time = model, time
        self._waits: dict[str, list[Callable[[], None]]] = {}

    def wait(self, phase: str, reached: Callable[[], None]) -> None:
        """Have a function called once, when the member next reaches a phase."""
        self._waits.setdefault(phase, []).append(reached)
        if phase == _DECODE:
            self._decodes_soon()
        self._model.watch_phases()

    def waited_for(self, phase: str) -> bool:
        """Whether somebody waits for a phase."""
        return phase in self._waits

    def at(self, phase: str) -> None:
        """The member is in a phase."""
        for reached in self._waits.pop(phase, ()):
            reached()

    def took(self, commands: Sequence[c.Command]) -> None:
        """The member has taken commands."""
        if not self._waits:
            return
        for command in commands:
            phase = _BEGINS.get(type(command))
            if phase is not None:
                self.at(phase)
            if type(command) is c.Route and _DECODE in self._waits:
                self._decodes_soon()

    def _decodes_soon(self) -> None:
        first_s = self._model.next_finish_s()
        if first_s < math.inf:
            now = self._time.now()
            self._time.at((now + max(first_s, now)) / 2, self._decodes, None)

    def _decodes(self, _: None) -> None:
        if self._model.generates():
            self.at(_DECODE)
