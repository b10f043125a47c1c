"""A controller whose members answer at once what is asked of them. No time passes but what a test lets pass."""

import dataclasses

from tailrace import contracts as c
from tailrace.contracts.plugins import load
from tailrace.controller.controller import Controller
from tailrace.controller.spec import PipelineSpec

MOST_ROUNDS = 10_000
ON_THREE_MACHINES = {
    ("relay", "0"): "0",
    ("relay", "1"): "1",
    ("relay", "2"): "2",
    ("trainer", "0"): "0",
    ("replica", "r0"): "1",
    ("replica", "r1"): "2",
}


def policy(axis, name, **options):
    return load(f"tailrace.{axis}", name)(**options)


def spec(**changes):
    """A small Laminar pipeline without evaluations."""
    base = PipelineSpec(
        admission=policy("admission", "inherent"),
        batching=policy("batching", "plain", samples=2),
        routing=policy("routing", "least-loaded"),
        sync=policy("sync", "on-idle"),
        relocation=policy("relocation", "none"),
        training=policy("training", "full-batch"),
        provisioning=policy("provisioning", "static", count=2),
        recovery=policy("recovery", "isolate"),
        sampler=policy("sampler", "fifo"),
        steps=3,
        batch_groups=2,
        replica_batch=4,
        buffer_groups=6,
    )
    return dataclasses.replace(base, **changes)


class Scripted:
    """Drives a controller.

    `lengths` has what the ranker predicts, by prompt; it has nothing for others. `tokens` is how long a response becomes,
    `prompt_tokens` how long a prompt is.

    `machines` says where members stand, by role and id, and `seats` on which devices; `held` and `partial` what the data role
    says when it comes up.
    `left` are commands that nobody answered.
    """

    def __init__(self, pipeline=None, *, relays=1):
        self.controller = Controller(pipeline or spec(), relays=relays)
        self.now = 0.0
        self.calls = []
        self.left = []
        self._serves = {}
        self.machines, self.held, self.partial, self.seats = {}, (), {}, {}
        self.lengths = {}
        self.tokens = lambda ref: 10
        self.prompt_tokens = lambda prompt: 30
        self.reward = lambda name: float(len(name) % 2)

    @property
    def view(self):
        return self.controller.view

    @property
    def given(self):
        """All commands so far."""
        return [command for _, _, commands in self.calls for command in commands]

    def handle(self, *events):
        """Hand events over together; returns the commands."""
        commands = self.controller.handle_all(events, self.now)
        self.calls.append((self.now, events, commands))
        return commands

    def finishes(self, name, tokens=3):
        """The replica that has a trajectory says that it is complete."""
        state = self.controller.ledger.trajectories.get(name)
        return c.Finished((state and state.replica) or "r0", name, tokens)

    def go(self, *events, leave=()):
        """Hand events over, have every command answered, and what follows from the answers; returns all commands.

        Args:
            leave: kinds of commands, or roles of members to start, that nobody answers.
        """
        given = []
        for _ in range(MOST_ROUNDS):
            commands = self.handle(*events)
            given += commands
            left = [command for command in commands if self._is_left(command, leave)]
            self.left += left
            events = tuple(event for command in commands if command not in left for event in self.answers(command))
            if not events:
                return given
        raise AssertionError(f"no end after {MOST_ROUNDS} rounds")

    def catch_up(self, *only, leave=()):
        """Have everything answered that was left, or only these kinds and roles of it."""
        due = [command for command in self.left if not only or self._is_left(command, only)]
        self.left = [command for command in self.left if command not in due]
        return self.go(*(event for command in due for event in self.answers(command)), leave=leave)

    def forget(self, *kinds):
        """Nobody will answer these."""
        self.left = [command for command in self.left if not self._is_left(command, kinds)]

    def later(self, seconds, *, leave=()):
        """Time passes, and the executor ticks."""
        self.now += seconds
        return self.go(c.Tick(), leave=leave)

    def down(self, role, member="0", cause=c.Cause.DIED, reason="killed", leave=()):
        """A member goes down."""
        return self.go(c.Down(role, member, reason, cause), leave=leave)

    def answers(self, command):
        """What a member says to a command."""
        seq = command.seq
        match command:
            case c.Start(role=role, id=id_) | c.Restart(role=role, id=id_):
                weights = getattr(command, "weights", None)
                version = getattr(command, "version", None) if weights is None else weights.version
                return [self._up(role, id_, version, seq)]
            case c.Stop(role=role, id=id_):
                return [c.Down(role, id_, "it was told to stop", c.Cause.STOPPED)]
            case c.Publish(sealed=True):
                return []
            case c.Publish(version=version) | c.Reveal(version=version):
                return [c.Published(version, seq)]
            case c.Checkpoint(version=version, full=full):
                return [c.Durable(version, seq, full=full)]
            case c.Pull(replica=replica, version=version, sources=sources):
                self._serves[replica] = version
                return [c.Pulled(replica, version, seq, source=sources[0] if self.controller.spec.peers else "")]
            case c.Lend(replica=replica):
                return [c.Lent(replica, seq)]
            case c.Return(replica=replica):
                return [c.Returned(replica, seq)]
            case c.Offload(cell=cell):
                return [c.Offloaded(cell, seq)]
            case c.Route(replica=replica, trajectories=refs):
                idle = c.Snapshot(replica, 0.0, 0, 0, 0, self._serves.get(replica), seq)
                return [*(c.Finished(replica, ref.trajectory, self.tokens(ref), answers=seq) for ref in refs), idle]
            case c.Interrupt(replica=replica, trajectories=names):
                return [c.Interrupted(replica, name, 5, seq) for name in names]
            case c.Score(trajectories=names):
                return [c.Scored(name, self.reward(name), seq) for name in names]
            case c.Predict(prompts=prompts):
                return [
                    c.Predicted(prompt, self.lengths[prompt], seq)
                    if prompt in self.lengths
                    else c.PredictionFailed(prompt, "found nan tokens", seq)
                    for prompt in prompts
                ]
            case c.Measure(prompts=prompts):
                return [c.Measured(prompts, tuple(self.prompt_tokens(prompt) for prompt in prompts), seq)]
            case c.Abort():
                return [c.Discarded(seq)]
            case c.Accumulate(version=version, trajectories=names, cell=cell):
                return [c.Accumulated(version, names, answers=seq, cell=cell)]
            case c.Step(version=version):
                return [c.Stepped(version, answers=seq)]
        return []

    def _up(self, role, id_, version, seq):
        machine = self.machines.get((role, id_), "")
        address = f"{role}-{id_}" if role == "relay" or (role == "replica" and self.controller.spec.peers) else ""
        if role == "data":
            return c.Up(role, id_, machine=machine, held=self.held, partial=self.partial, answers=seq)
        return c.Up(role, id_, version, machine, address, answers=seq, seats=self.seats.get((role, id_), ()))

    def _is_left(self, command, leave):
        role = getattr(command, "role", None)
        return any(command.__class__ is kind or role == kind for kind in leave)


def of(kind, commands):
    """The commands of a kind."""
    return [command for command in commands if isinstance(command, kind)]
