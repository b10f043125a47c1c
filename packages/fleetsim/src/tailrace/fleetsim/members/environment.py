"""The environment role of a simulation: it answers turns after the workload's own latencies.

    Call ──► the turn's latency, from the end of the turn on ──► the store has the answer ──► Turned
                                        Close, or the member's death, drops what is under way

The latency counts from the moment at which the turn ended, which a replica reports a little later. A call that is repeated
takes its whole latency again, since the member that had it died.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace import contracts as c
from tailrace.fleetsim.host.host import RoleModel, VirtualMember
from tailrace.fleetsim.host.tokens import SimulatedTrajectory
from tailrace.fleetsim.host.world import World
from tailrace.runtime.executor.doors import Ready


class EnvironmentModel(RoleModel):
    """One member. Its sessions end with its process; another member replays them, which takes no time.

    Args:
        world: the simulation.
        id_: the member's id.
    """

    def __init__(self, world: World, id_: str) -> None:
        self.world, self.id = world, id_
        self.member: VirtualMember | None = None
        self.sessions: dict[str, None] = {}
        self._calls: dict[str, int] = {}  # number of the command by trajectory

    def ready(self) -> Ready:
        self.sessions.clear()
        self._calls.clear()
        return Ready()

    def submit(self, commands: Sequence[c.Command]) -> None:
        """Begin to answer the trajectories of each `Call`, and end the sessions of each `Close`."""
        for command in commands:
            if isinstance(command, c.Call):
                for name in command.trajectories:
                    self._call(name, command.seq)
            elif isinstance(command, c.Close):
                for name in command.trajectories:
                    self.sessions.pop(name, None)
                    self._calls.pop(name, None)

    def _call(self, name: str, seq: int) -> None:
        now = self.world.time.now()
        known = self.world.tokens.trajectories.get(name)
        if known is None:
            return  # it was dropped, and a `Close` follows
        self._calls[name] = seq
        if known.ended_s is None:  # a member that is gone has answered, and died before it could say so
            self.answer(name, seq, 0.0)
            return
        seconds = self.latency_s(known.sample.turns[known.answered][1])
        began_s, known.ended_s = known.ended_s, now
        self.world.time.at(max(now, began_s + seconds), self._answers, (self.member, known, name, seq, seconds))

    def _answers(self, called: tuple[VirtualMember | None, SimulatedTrajectory, str, int, float]) -> None:
        member, known, name, seq, seconds = called
        same = self.world.tokens.trajectories.get(name) is known  # it did not begin anew, nor was it dropped
        if member is not None and member is self.member and same and self._calls.get(name) == seq:
            self.answer(name, seq, seconds)

    def latency_s(self, drawn_s: float) -> float:
        """Seconds of a call, of which the workload says so many; checks override this."""
        return drawn_s

    def answer(self, name: str, seq: int, seconds: float) -> None:
        """Answer the last turn of a trajectory; checks override this."""
        tokens = self.world.tokens
        known = tokens.trajectories[name]
        held = name in self.sessions or not known.answered
        self.sessions[name] = None
        done = tokens.observe(name, self.world.time.now())
        session = c.SessionOrigin.HELD if held else c.SessionOrigin.REPLAYED
        total = known.response if done else known.kept
        reason = tokens.reason(total) if done else c.FinishReason.STOP
        self._says(name, c.Turned(name, known.answered, total, done, seconds, seq, session, reason), over=done)

    def gives_up(self, name: str, event: c.CallFailed) -> None:
        """Leave the last turn of a trajectory unanswered."""
        self._says(name, event, over=True)

    def _says(self, name: str, event: c.Turned | c.CallFailed, *, over: bool) -> None:
        del self._calls[name]
        if over:
            self.sessions.pop(name, None)
        if self.member is not None:
            self.member.say([event])
