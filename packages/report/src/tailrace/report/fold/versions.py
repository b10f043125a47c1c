"""Weight versions as a log shows them: when each was ordered and published, and how replicas pulled it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace import contracts as c
from tailrace.pipeline.controller.members import REPLICA
from tailrace.pipeline.run.folding import Hears


@dataclass(slots=True)
class Version:
    """A published weight version: when it was ordered, when the relays held it, how replicas pulled it."""

    version: int
    ordered_s: float
    published_s: float | None = None
    pulls_s: list[float] = field(default_factory=list)


class Versions:
    """Hears of every version that is published or pulled."""

    def __init__(self) -> None:
        self.hears: Hears = {
            c.Publish: self._ordered,
            c.Published: self._published,
            c.Pull: self._pulls,
            c.Pulled: self._pulled,
            c.Up: self._up,
        }
        self.ordered: dict[int, Version] = {}
        self.first_pulled_s: float | None = None
        self._pulling: dict[str, float] = {}

    def _ordered(self, now: float, command: c.Publish) -> None:
        self.ordered.setdefault(command.version, Version(command.version, now))

    def _published(self, now: float, event: c.Published) -> None:
        version = self.ordered.get(event.version)
        if version is not None and version.published_s is None:
            version.published_s = now

    def _pulls(self, now: float, command: c.Pull) -> None:
        self._pulling[command.replica] = now

    def _pulled(self, now: float, event: c.Pulled) -> None:
        self.first_pulled_s = now if self.first_pulled_s is None else self.first_pulled_s
        ordered_s = self._pulling.pop(event.replica, None)
        if ordered_s is not None and event.version in self.ordered:
            self.ordered[event.version].pulls_s.append(now - ordered_s)

    def _up(self, now: float, event: c.Up) -> None:
        del now
        if event.role == REPLICA:
            self._pulling.pop(event.id, None)
