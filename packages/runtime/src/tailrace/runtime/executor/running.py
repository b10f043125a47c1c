"""The executor's record of a running member. Its commands go out one call at a time, so that they keep their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tailrace.contracts import Command
from tailrace.runtime.executor.doors import Role, ask
from tailrace.runtime.executor.seam import DONE, Answer, Member

Sent = Callable[["Running", Answer, Sequence[Command]], None]


class Running:
    """One incarnation of a member. `failed` takes the error of one of its calls.

    `asked` is the poll for its events that waits for an answer; `standing` is the number of its answers in `Waits`, and
    `answered` is called with each answer. `told` is the number of its last event that was heard, `logged` that of the last
    one in the log. `loads` says that it loads a checkpoint and was told to stop before.
    `asked_s` is when it was asked for, None if another controller asked; `destroy_s` are the seconds of its predecessor's end.

    Args:
        role, id_: the member's name. Each further rank of the trainer has its own id.
        member: the host's handle.
        sent: called with each call under way; it calls `arrived` once the call is over.
        leader: the id of the member to which a rank belongs.
    """

    __slots__ = (
        "_queue",
        "_sending",
        "_sent",
        "address",
        "answered",
        "asked",
        "asked_s",
        "destroy_s",
        "failed",
        "id",
        "leader",
        "loads",
        "logged",
        "member",
        "name",
        "role",
        "standing",
        "told",
        "up",
    )

    def __init__(self, role: str, id_: str, member: Member, sent: Sent, leader: str) -> None:
        self.role, self.id, self.member, self.leader = role, id_, member, leader
        self.name = f"{role} {id_}"
        self.asked: Answer | None = None
        self.standing = 0
        self.answered: Callable[[Any], None] = lambda _: None
        self.failed: Callable[[BaseException], None] = lambda _: None
        self.up, self.loads, self.address = False, False, ""
        self.told = self.logged = 0
        self.asked_s: float | None = None
        self.destroy_s = 0.0
        self._sent = sent
        self._queue: list[Command] = []
        self._sending = False

    def put(self, command: Command) -> None:
        """Queue a command for the next `send`."""
        self._queue.append(command)

    def send(self) -> None:
        """Send the queued commands, if the member is up and has taken the previous ones."""
        if self._sending or not self._queue or not self.up:
            return
        commands, self._queue = self._queue, []
        answer = ask(self.member, Role.submit, commands)
        if answer is not DONE:
            self._sending = True
            self._sent(self, answer, commands)

    def arrived(self) -> None:
        """Note that the member has taken the last call, so that the next one may go."""
        self._sending = False
        self.send()

    def __str__(self) -> str:
        return self.name
