"""What a controller that died had under way, from its log: who lives, how far each was heard, what nobody has answered.

    log ──► note(events, commands, heard) ──► Roster ──► the executor of another controller

A command in the log may not have been sent, since its controller died in between. So a command counts as sent only once an
event shows that its member took it: members take commands in order, hence an answer to one stands for all before it. The others
are sent again; a member drops what it has taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tailrace import contracts as c
from tailrace.runtime.executor.deployment import DATA, ENVIRONMENT, RANKER, REPLICA, SCORER, TRAINER

Key = tuple[str, str]
Spawning = c.Start | c.Restart | c.Resize

_BY_ROLE: dict[type, str] = {
    **dict.fromkeys((c.Discarded, c.Measured), DATA),
    **dict.fromkeys((c.Scored, c.ScoringFailed), SCORER),
    **dict.fromkeys((c.Stepped, c.Accumulated, c.Offloaded, c.Published, c.Durable), TRAINER),
    **dict.fromkeys((c.Predicted, c.PredictionFailed), RANKER),
}
"""Who answers with an event, for roles with one member."""
_TO_REPLICA = (c.Route, c.Interrupt, c.Pull, c.Lend, c.Return)
_ANSWERED = (c.Pull, c.Lend, c.Return)
_TO_TRAINER = (c.Publish, c.Reveal, c.Checkpoint, c.Accumulate, c.Offload, c.Step)
_PARTLY = {c.Publish, c.Accumulate, c.Offload}
"""Commands whose answer may come while some rank of the trainer has not taken them."""


@dataclass(slots=True)
class Listed:
    """A member that ought to run.

    Args:
        command: what it was started with.
        incarnation: counts its starts, from 1.
        up: whether its `Up` is in the log; its address came with it.
        stopping: what it was told to stop with.
        sent: commands that it may not have taken, in order.
        open: commands whose answers have a deadline and did not come, by their numbers.
        missing: of those that are answered piece by piece, the trajectories or prompts without an answer.
    """

    command: Spawning
    incarnation: int
    up: bool = False
    address: str = ""
    stopping: c.Stop | None = None
    sent: list[c.Command] = field(default_factory=list)
    open: dict[int, c.Command] = field(default_factory=dict)
    missing: dict[int, dict[str | int, None]] = field(default_factory=dict)

    def taken(self, seq: int) -> None:
        """Note that it has taken a command, and so all before it."""
        self.sent = [command for command in self.sent if command.seq > seq]

    def answered(self, seq: int, piece: str | int | None) -> None:
        """Note an answer, to a piece of the command if it is answered piece by piece."""
        missing = self.missing.get(seq)
        if missing is not None and piece is not None:
            missing.pop(piece, None)
            if missing:
                return
        self.open.pop(seq, None)
        self.missing.pop(seq, None)

    def without(self, pieces: Sequence[str]) -> None:
        """Note that nobody waits for these any more."""
        for seq in list(self.missing):
            for piece in pieces:
                if seq in self.missing:
                    self.answered(seq, piece)


class Roster:
    """The members that ought to run, and what is under way with each; a fold over the log.

    `heard` has the number of the last event of each member in the log, by its name.
    """

    def __init__(self) -> None:
        self.members: dict[Key, Listed] = {}
        self.incarnations: dict[Key, int] = {}
        self.heard: dict[str, int] = {}

    def note(self, events: Sequence[c.Event], commands: Sequence[c.Command], heard: Mapping[str, int]) -> None:
        """Take in an instant of the log."""
        self.heard.update(heard)
        for event in events:
            self._event(event)
        for command in commands:
            self._command(command)

    # ---- events ---------------------------------------------------------------------------------------------------

    def _event(self, event: c.Event) -> None:
        match event:
            case c.Snapshot(replica=replica, last_seq=last_seq):
                if (found := self.members.get((REPLICA, replica))) is not None:
                    found.taken(last_seq)
            case c.Up(role=role, id=id_, answers=answers):
                found = self.members.get((role, id_))
                if found is not None and found.command.seq == answers:
                    found.up, found.address = True, event.address
            case c.Down(role=role, id=id_):
                self.members.pop((role, id_), None)
            case c.Resumed():  # every process is new
                self.members.clear()
                self.incarnations.clear()
                self.heard.clear()
            case c.Pulled() | c.PullFailed() | c.Lent() | c.Returned():
                if event.answers is not None and (found := self.members.get((REPLICA, event.replica))) is not None:
                    found.answered(event.answers, None)
            case c.Turned() | c.CallFailed():
                for found in self.members.values():
                    if event.answers in found.missing:
                        self._answered(found, event)
            case _:
                answerer = self.members.get((_BY_ROLE.get(type(event), ""), "0"))
                if answerer is not None:
                    self._answered(answerer, event)

    def _answered(self, found: Listed, event: c.Event) -> None:
        seq: int | None = event.answers  # type: ignore[union-attr]
        if seq is None:
            return
        piece: str | int | None = getattr(event, "trajectory", getattr(event, "prompt", None))
        if type(found.open.get(seq)) not in _PARTLY:
            found.taken(seq)
        found.answered(seq, piece)

    # ---- commands -------------------------------------------------------------------------------------------------

    def _command(self, command: c.Command) -> None:
        match command:
            case c.Start(role=role, id=id_):
                if (role, id_) not in self.members:
                    self._spawned((role, id_), command)
            case c.Restart(role=role, id=id_):
                self._spawned((role, id_), command)
            case c.Resize(replica=replica):
                self._spawned((REPLICA, replica), command)
            case c.Stop(role=role, id=id_):
                if (found := self.members.get((role, id_))) is not None:
                    found.stopping = command
            case c.Abort():
                self._aborted(command)
            case c.Measure():
                self._sent((DATA, "0"), command, None)
            case c.Score(trajectories=pieces):
                self._sent((SCORER, "0"), command, pieces)
            case c.Predict(prompts=prompts):
                self._sent((RANKER, "0"), command, prompts)
            case c.Call(environment=id_, trajectories=pieces):
                self._sent((ENVIRONMENT, id_), command, pieces)
            case c.Close(environment=id_, trajectories=pieces):
                if (found := self.members.get((ENVIRONMENT, id_))) is not None:
                    found.sent.append(command)
                    found.without(pieces)
            case _:
                if isinstance(command, _TO_REPLICA):
                    self._sent((REPLICA, command.replica), command, None, waits=isinstance(command, _ANSWERED))
                elif isinstance(command, _TO_TRAINER):
                    self._to_trainer(command)

    def _to_trainer(self, command: c.Publish | c.Reveal | c.Checkpoint | c.Accumulate | c.Offload | c.Step) -> None:
        trainer = self.members.get((TRAINER, "0"))
        if trainer is not None and isinstance(
            command, c.Publish
        ):  # a newer version replaces one that is not published yet
            trainer.open = {seq: other for seq, other in trainer.open.items() if not isinstance(other, c.Publish)}
        self._sent((TRAINER, "0"), command, None, waits=not isinstance(command, c.Reveal))

    def _aborted(self, command: c.Abort) -> None:
        for key in ((SCORER, "0"), *((REPLICA, replica) for replica in command.replicas)):
            if (found := self.members.get(key)) is not None:
                found.sent.append(command)
                found.without(command.trajectories)
        self._sent((DATA, "0"), command, None)

    def _sent(self, key: Key, command: c.Command, pieces: Sequence[str | int] | None, *, waits: bool = True) -> None:
        found = self.members.get(key)
        if found is None:
            return
        found.sent.append(command)
        if waits:
            found.open[command.seq] = command
        if pieces is not None:
            found.missing[command.seq] = dict.fromkeys(pieces)

    def _spawned(self, key: Key, command: Spawning) -> None:
        incarnation = self.incarnations[key] = self.incarnations.get(key, 0) + 1
        self.members[key] = Listed(command, incarnation)
        name = " ".join(key)
        self.heard = {
            who: number for who, number in self.heard.items() if who != name and not who.startswith(f"{name}.")
        }
