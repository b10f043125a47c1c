"""Invariants 3 and 4, by what the members really do: tokens, the versions that made them, and the weights that serve.

* A trajectory runs on one replica at a time, goes on with exactly the tokens that it had, and under one version unless the
  pipeline mixes them. Nothing follows the end of a turn before its environment has answered, once.
* A replica serves only a version that it pulled completely since it started.
"""

from __future__ import annotations

from collections.abc import Iterable

from tailrace import contracts as c
from tailrace.fleetsim.engine import Work
from tailrace.fuzz.errors import InvariantError

TOKENS, WEIGHTS = "tokens and versions line up", "only complete weights serve"


class DataPlane:
    """What every trajectory and replica went through.

    Args:
        mixes_versions: a trajectory for training may go on under another version.
    """

    def __init__(self, *, mixes_versions: bool) -> None:
        self._mixes = mixes_versions
        self._running: dict[str, tuple[str, int, int]] = {}  # replica, version, tokens at the beginning
        self._tokens: dict[str, int] = {}
        self._versions: dict[str, set[int]] = {}
        self.complete: dict[str, int] = {}
        self._unanswered: set[str] = set()  # their last turn has ended
        self._serves: dict[str, int] = {}
        self._pulling: dict[str, tuple[c.Pull, bool]] = {}

    # ---- trajectories ---------------------------------------------------------------------------------------------

    def oldest(self, name: str) -> int:
        """The oldest version that made a token of a trajectory."""
        return min(self._versions[name])

    def begins(self, ref: c.TrajectoryRef, work: Work, replica: str, version: int) -> None:
        """A trajectory begins, or goes on, on a replica under the weights of a version."""
        name = ref.trajectory
        if self._serves.get(replica) != version:
            raise InvariantError(
                WEIGHTS,
                f"{replica} generates {name} under version {version}, expected only what it pulled completely: "
                f"{self._serves.get(replica, 'nothing')}",
            )
        if name in self._running:
            raise InvariantError(TOKENS, f"{name} begins on {replica} while it runs on {self._running[name][0]}")
        if name in self.complete:
            raise InvariantError(TOKENS, f"{name} begins on {replica}, but all its tokens exist")
        tokens, versions = self._tokens.get(name, 0), self._versions.setdefault(name, set())
        mixes = self._mixes and ref.purpose is c.Purpose.TRAIN
        if tokens and versions != {version} and not mixes:
            tokens = 0
            versions.clear()
            self._unanswered.discard(name)
        if name in self._unanswered:
            raise InvariantError(TOKENS, f"{name} goes on on {replica}, but its last turn is not answered")
        if work.done_tokens != tokens:
            raise InvariantError(
                TOKENS, f"{name} goes on with {work.done_tokens} tokens under version {version}, expected {tokens}"
            )
        if tokens and ref.kept > tokens:
            raise InvariantError(TOKENS, f"{name} is routed with {ref.kept} tokens kept, but it has {tokens}")
        self._running[name] = (replica, version, tokens)

    def leaves(self, name: str, tokens: int) -> None:
        """A trajectory stopped with so many tokens."""
        _, version, before = self._end(name)
        if tokens < before:
            raise InvariantError(
                TOKENS, f"{name} left with {tokens} tokens, expected at least the {before} that it had"
            )
        if tokens > before:
            self._versions[name].add(version)
        self._tokens[name] = tokens

    def completes(self, name: str, tokens: int, *, wanted: bool) -> None:
        """A trajectory has all its tokens; one that is not wanted was dropped while it ran."""
        self.leaves(name, tokens)
        if wanted:
            self.complete[name] = tokens
        else:
            self.forgets((name,))

    def ends_turn(self, name: str, tokens: int) -> None:
        """A trajectory stopped at the end of a turn."""
        self.leaves(name, tokens)
        self._unanswered.add(name)

    def observes(self, name: str, *, done: bool) -> None:
        """An environment answered the last turn of a trajectory, and may have ended it with that."""
        if name not in self._unanswered:
            raise InvariantError(
                TOKENS, f"a turn of {name} is answered, expected one that has ended and was not answered"
            )
        self._unanswered.discard(name)
        if done:
            self.complete[name] = self._tokens[name]

    def drops(self, replica: str, names: Iterable[str]) -> None:
        """A replica stopped trajectories that nobody wants."""
        for name in names:
            if name in self._running and self._running[name][0] == replica:
                del self._running[name]

    def forgets(self, names: Iterable[str]) -> None:
        """The store dropped trajectories, or they were trained on for good."""
        for name in names:
            self._tokens.pop(name, None)
            self.complete.pop(name, None)
            self._unanswered.discard(name)
            if name not in self._running:
                self._versions.pop(name, None)

    def _end(self, name: str) -> tuple[str, int, int]:
        if name not in self._running:
            raise InvariantError(TOKENS, f"{name} stopped, expected one that runs")
        return self._running.pop(name)

    # ---- weights --------------------------------------------------------------------------------------------------

    def drops_weights(self, replica: str) -> None:
        """A replica is new, dead or about to pull: it serves nothing."""
        self._serves.pop(replica, None)
        self._pulling.pop(replica, None)

    def pulls(self, replica: str, command: c.Pull, *, torn: bool) -> None:
        """A replica begins to load a version, which may arrive damaged."""
        self._pulling[replica] = (command, torn)

    def pulled(self, replica: str, version: int) -> None:
        """A replica serves a version from now on."""
        pull, torn = self._pulling.pop(replica, (None, False))
        if pull is None or pull.version != version or torn:
            found = "nothing" if pull is None else f"version {pull.version}{', damaged' if torn else ''}"
            raise InvariantError(WEIGHTS, f"{replica} serves version {version}, but what arrived was {found}")
        self._serves[replica] = version


class Lineage:
    """Which weights every version and checkpoint is. Weights are numbered: each step makes new ones.

    `taken` counts trainers that went on from weights which others had.
    """

    def __init__(self) -> None:
        self.taken = 0
        self._made = 0
        self._held = 0
        self._saved = {0: 0}
        self._handed: dict[int, int] = {}
        self._shown: dict[int, int] = {}
        self._staged: int | None = None

    def stepped(self) -> None:
        """The trainer holds new weights."""
        self._made += 1
        self._held = self._made

    def saves(self, version: int) -> None:
        """The trainer copies its weights for a checkpoint."""
        self._saved[version] = self._held

    def loads(self, version: int) -> None:
        """The trainer starts from a checkpoint."""
        self._held = self._saved[version]
        self._staged = None

    def takes(self, version: int) -> None:
        """The trainer goes on from the weights of a version that others have."""
        self._held = self._shown[version]
        self.taken += 1

    def stages(self, version: int) -> None:
        """The trainer hands its weights over as a version; one that it did hand over is sent again from the copy."""
        if version != self._staged:
            self._staged = version
            self._handed[version] = self._held

    def shows(self, version: int) -> None:
        """A version that was handed over may be seen from now on. One that nobody has seen may have been other weights.

        Raises:
            InvariantError: the version was other weights before.
        """
        shown = self._handed[version]
        if self._shown.setdefault(version, shown) != shown:
            raise InvariantError(
                WEIGHTS,
                f"version {version} is published with weights {shown}, but it has been weights {self._shown[version]}",
            )
