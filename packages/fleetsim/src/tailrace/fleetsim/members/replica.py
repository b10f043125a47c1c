"""A modelled replica: an engine, the weights that it serves, and its commands in order.

It reports finished trajectories at multiples of `report_s`, and its load at multiples of `snapshot_s` and whenever it has
become idle or has pulled. So the cost of a simulation depends on what finishes, not on how much time passes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from tailrace import contracts as c
from tailrace.fleetsim.cost.weights import DROPS_WEIGHTS
from tailrace.fleetsim.engine import ModelledEngine, Work
from tailrace.fleetsim.host.host import RoleModel, VirtualMember
from tailrace.fleetsim.host.recorder import Totals
from tailrace.fleetsim.host.world import World
from tailrace.fleetsim.members.relays import Relays
from tailrace.rollout.command_order import CommandOrder, ReplicaCommand
from tailrace.runtime.executor.doors import Ready

PATIENCE_S = 10.0
"""How long a replica waits for a version that no relay has yet."""


class ModelledReplica(RoleModel):
    """One replica of a simulation. It outlives its processes: its engine counts the work of all of them.

    An abort is not in the chain of commands. It may arrive after a later route of the same trajectory, which it does not
    affect, or before an earlier one, which then adds nothing.

    Args:
        world: the simulation.
        relays: the relays.
        id_: the replica's id.
        speed: factor on the modelled speed; below 1 for a slow machine.
    """

    __slots__ = (
        "_aborted_by",
        "_aborted_tokens",
        "_beside",
        "_former",
        "_generated",
        "_lent",
        "_moving",
        "_next_tp",
        "_preempted",
        "_prefixes",
        "_queue",
        "_routed_by",
        "_share",
        "_told",
        "_turns",
        "_under",
        "address",
        "engine",
        "finished",
        "hung",
        "id",
        "incarnation",
        "last_seq",
        "order",
        "pool",
        "pulling",
        "relays",
        "report_s",
        "reported",
        "scheduled_s",
        "speed",
        "stalled_s",
        "time",
        "tokens",
        "tp",
        "up",
        "version",
        "world",
    )

    def __init__(self, world: World, relays: Relays, id_: str, speed: float) -> None:
        self.world, self.relays, self.id, self.speed = world, relays, id_, speed
        self.time, self.tokens, self.report_s = world.time, world.tokens, world.fleet.delays.report_s
        self.pool = world.fleet.pool(id_)
        self.engine = world.fleet.engine(self.time.now(), self.pool)
        self.tp = self._next_tp = self.pool.tp
        self._former: list[ModelledEngine] = []  # of other sizes
        self._preempted = 0  # before this process
        self.incarnation = 0
        self.address = ""  # where it offers what it serves
        self.member: VirtualMember | None = None
        self.up = self.hung = self.pulling = False
        self.stalled_s: float | None = None
        self.version: int | None = None
        self.order = CommandOrder()
        self._queue: deque[ReplicaCommand] = deque()  # in order, and not carried out yet
        self._moving = self._lent = False  # its engine goes to sleep or wakes; its devices are the trainer's
        self.last_seq = self.finished = 0
        self.reported = True  # whether the controller knows that it is idle
        self.scheduled_s = math.inf
        self._routed_by: dict[str, int] = {}
        self._aborted_by: dict[str, int] = {}
        self._aborted_tokens: dict[str, int] = {}  # of what an abort stopped here, until the store drops it
        self._under: dict[str, int] = {}  # version that each trajectory was routed to, where several may stay
        self._turns = world.tokens.workload.turns
        self._prefixes = Prefixes(self.pool.rollout.prefix_cached)
        self._generated = 0  # tokens that its engine had generated when its prefix cache was told last
        self._share, self._beside = 1.0, 1.0 / world.slows
        self._told = (self.time.now(), 0.0)  # time of its last report of load, and tokens generated until then
        world.tokens.fences[id_] = self.fenced
        world.tokens.progress[id_] = self.generated_of
        world.meters.append(self)
        world.pulsing.append(self)
        world.taking_turns.append(self)
        world.cores.add(self)

    # ---- life -----------------------------------------------------------------------------------------------------

    def begin(self, member: VirtualMember) -> None:
        self.member = member
        pool = self.world.fleet.pool_named(member.pool) if member.pool else self.pool
        if pool is not self.pool:  # a policy started it in another than its number says
            self.pool, now = pool, self.time.now()
            self._former.append(self.engine)
            self.tp, self.engine, self._told = pool.tp, self.world.fleet.engine(now, pool), (now, 0.0)
            self._generated = 0
        self._next_tp = member.tp or self.pool.tp

    def starts_s(self, incarnation: int) -> float:
        rollout = self.pool.rollout
        if self._next_tp != self.tp and incarnation > 1:
            return rollout.resize_s
        return rollout.restart_s if incarnation > 1 else rollout.start_s

    def ready(self) -> Ready:
        """Start a fresh process, without weights or work and with a new chain of commands."""
        now = self.time.now()
        self._drop_work(now)
        self._span(self._next_tp, now)
        self.up, self.hung, self.stalled_s, self.version, self.pulling = True, False, None, None, False
        self.order, self.last_seq, self._prefixes.tokens = CommandOrder(), 0, 0
        self._queue.clear()
        self._moving = self._lent = False
        self._routed_by.clear()
        self._aborted_by.clear()
        self._aborted_tokens.clear()
        self.incarnation += 1
        self.weights_gone()
        self._set_speed()
        self._offers_no_more()
        if self.world.fleet.spec.peers:
            self.address = f"replica-{self.id}.{self.incarnation}"
            self.relays.offered[self.address] = []
        return Ready(address=self.address)

    def next_finish_s(self) -> float:
        """When the engine's next trajectory ends; see `Engine.next_finish_s`."""
        return self.engine.next_finish_s()

    def generates(self) -> bool:
        """Whether its engine runs a trajectory."""
        return bool(self.engine.running)

    def die(self) -> None:
        """End the process. The partial-response pool keeps the tokens that it generated."""
        self._drop_work(self.time.now())
        self.up, self.version, self.pulling = False, None, False
        self._queue.clear()
        self.incarnation += 1
        self.weights_gone()
        self._offers_no_more()
        self.world.cores.changed()

    def hang(self) -> None:
        """Stop the whole process, which lives on."""
        self.hung = True
        self._set_speed()
        self.world.cores.changed()

    def stall(self) -> None:
        """Stop the engine, while the process lives and answers."""
        if self.stalled_s is None:
            self.stalled_s = self.time.now()
            self._set_speed()

    def slow_down(self, speed: float) -> None:
        """Run at a share of the modelled speed from now on."""
        self.speed = speed
        if self.up:
            self._set_speed()

    def beside(self, slows: float) -> None:
        """Take so many times as long for all work from now on, since others compute on its devices too."""
        self._beside = 1.0 / slows
        if self.up and not self.hung:
            self.engine.advance(self.time.now())
            self.flush()
            self._set_speed()

    def weights_gone(self) -> None:
        """Called when it serves no version any more; checks override this."""

    def _offers_no_more(self) -> None:
        self.relays.offered.pop(self.address, None)

    def _span(self, tp: int, now: float) -> None:
        """Have an engine of so many devices, and count its preemptions anew."""
        if tp != self.tp:
            self._former.append(self.engine)
            self.tp, self.engine, self._generated = tp, self.world.fleet.engine(now, self.pool, tp), 0
            self._told = (now, 0.0)
        self._preempted = self.engine.preemptions

    def _set_speed(self) -> None:
        still = self.hung or self.stalled_s is not None or (self.pulling and self._versions > 1)
        self.engine.set_speed(0.0 if still else self.speed * self._share * self._beside, self.time.now())
        self.schedule(self.time.now())

    def _drop_work(self, now: float) -> None:
        left = self.engine.clear(now)
        self._prefixes.clear()
        self.flush()  # the store has the trajectories that were complete before
        self.tokens.keep(left)

    def fenced(self, name: str) -> None:
        """Another replica begins a trajectory: if it is here yet, the store keeps the tokens until now and takes no more."""
        if self.engine.holds(name):
            left = self.engine.remove((name,), self.time.now())
            self.flush()
            self._leave(dict(left))
            self.tokens.keep(left)

    def generated_of(self, name: str) -> int:
        """Response tokens of a trajectory that is here, or that an abort has stopped here."""
        if not self.engine.holds(name):
            return self._aborted_tokens.pop(name, 0)
        self.engine.advance(self.time.now())
        return self.engine.done_tokens(name) if self.engine.holds(name) else 0

    # ---- commands -------------------------------------------------------------------------------------------------

    def submit(self, commands: Sequence[c.Command]) -> None:
        """Take commands. Each is carried out after those before it."""
        if not self.up or self.hung:
            return
        for command in commands:
            if type(command) is c.Abort:
                self._abort(command)
            else:
                self.order.add(command)  # type: ignore[arg-type]
        self._queue.extend(self.order.take())
        self._carry_out()

    def _carry_out(self) -> None:
        while self._queue and not self._moving:
            ready = self._queue.popleft()
            if isinstance(ready, c.Lend | c.Return):
                self._hand_over(ready)
                continue
            self.last_seq = ready.seq
            if isinstance(ready, c.Route):
                self._route(ready)
            elif isinstance(ready, c.Interrupt):
                self._interrupt(ready)
            elif isinstance(ready, c.Pull):
                self._pull(ready)

    def _hand_over(self, command: c.Lend | c.Return) -> None:
        """Let the engine sleep, or wake. It holds nothing in between, and takes no command meanwhile."""
        cost, lends = self.world.fleet.hand_over, isinstance(command, c.Lend)
        takes_s = cost.seconds(cost.engine_bytes(self.tp))
        if not lends and cost.level >= DROPS_WEIGHTS and self.version == max(self.relays.published_s, default=0):
            takes_s = self.pool.weights.pull_s  # no newer version comes, and it has dropped its weights
        self._moving = takes_s > 0
        if self._moving:
            self.time.at(self.time.now() + takes_s, self._handed_over, (command, takes_s, self.incarnation))
        else:
            self._handed_over((command, 0.0, self.incarnation))

    def _handed_over(self, moved: tuple[c.Lend | c.Return, float, int]) -> None:
        command, took_s, incarnation = moved
        if incarnation != self.incarnation or not self.up or self.hung:
            return
        goes_on, self._moving, self.last_seq = self._moving, False, command.seq
        self._lent = isinstance(command, c.Lend)
        if self._lent:
            self._say([c.Lent(self.id, command.seq, self.world.fleet.hand_over.level, took_s)])
        else:
            self._say([c.Returned(self.id, command.seq, took_s)])
        self.reported = False
        self.idle_now()
        if goes_on:
            self._carry_out()

    @property
    def turn_s(self) -> float:
        """See `TakesTurns`."""
        cost = self.world.fleet.hand_over
        if not self.up or self._lent or not self.world.fleet.spec.stands_on_trainer(self.pool.name):
            return 0.0
        return 2 * cost.seconds(cost.engine_bytes(self.tp))

    def _route(self, command: c.Route) -> None:
        assert self.version is not None, f"{self.id} was given work and serves no version"
        now = self.time.now()
        refs = command.trajectories
        if self.world.reorders or self._aborted_by:
            refs = tuple([ref for ref in refs if self._aborted_by.get(ref.trajectory, 0) < command.seq])
            self._routed_by.update(dict.fromkeys([ref.trajectory for ref in refs], command.seq))
            self._aborted_by = {name: seq for name, seq in self._aborted_by.items() if seq > command.seq}
            refs = tuple(self.world.dropped.wanted(refs, command.seq))  # the store begins no others
        unsaid = self.tokens.unsaid_of(refs, self.id, self.version, command.seq)
        if unsaid:
            refs = tuple([ref for ref in refs if ref.trajectory not in unsaid])
        works = self.tokens.works(refs, self.id, self.version, now)
        if self._versions > 1:
            self._under.update(dict.fromkeys([work.id for work in works], self.version))
        self._find(works)
        self.engine.add(works, now)
        if unsaid:
            self.finished += len(unsaid)
            self._say(list(unsaid.values()))
            self.flush()  # a snapshot must follow the trajectories that it counts as finished
        self.reported = False
        self.world.cores.changed()
        self.schedule(now)
        if unsaid:
            self.idle_now()

    def _interrupt(self, command: c.Interrupt) -> None:
        now = self.time.now()
        self._stop(command.trajectories, command.seq)
        self.reported = False  # a snapshot must show this command, even if there was nothing to interrupt
        self.idle_now()
        self.schedule(now)

    def _abort(self, command: c.Abort) -> None:
        """Drop trajectories that are here and were not routed here again since; in the store too."""
        routed = self._routed_by
        names = [name for name in command.trajectories if routed.get(name, 0) < command.seq]
        now = self.time.now()
        left = self.engine.remove(names, now)
        known = self.tokens.trajectories  # without what the store has dropped already
        self._aborted_tokens.update({name: tokens for name, tokens in left if name in known})
        self.flush()
        self.tokens.dropped(self.id, names)
        if self.world.reorders or self._queue:
            self._aborted_by.update(dict.fromkeys(names, command.seq))
        self.idle_now()
        self.schedule(now)

    def _stop(self, names: Sequence[str], answers: int | None) -> None:
        """Hand trajectories back with their tokens."""
        left = self.engine.remove(names, self.time.now())
        self.flush()
        self._leave(dict(left))
        self.tokens.keep(left)
        self._say([c.Interrupted(self.id, name, tokens, answers) for name, tokens in left])

    @property
    def _versions(self) -> int:
        return self.world.fleet.spec.replica_versions

    def _make_room(self) -> None:
        """Keep what runs under the newest versions but one, where a replica generates with several at once."""
        if self._versions == 1:
            self._drop_work(self.time.now())  # an abort may have overtaken the command that routed these
            return
        self.engine.advance(self.time.now())
        self._under = {name: self._under[name] for name in self.engine.ids}
        newest = sorted(set(self._under.values()), reverse=True)[: self._versions - 1]
        self._stop([name for name, version in self._under.items() if version not in newest], None)

    def _stands_still(self) -> None:
        """Stop what a pull left, or go on: a replica's one thread takes the weights."""
        if self._versions > 1:
            self._set_speed()

    def _pull(self, command: c.Pull) -> None:
        self._make_room()
        self.weights_gone()
        self.version, self.pulling = None, True
        self._stands_still()
        self.world.cores.changed()
        torn = self.world.injuries.torn(self.id)
        takes_s = self.relays.pull_s(command.version, command.sources, self.pool.weights)
        now = self.time.now()
        self.time.at(now + takes_s, self._arrived, (command, self.incarnation, torn, now + takes_s + PATIENCE_S))

    def _arrived(self, arrival: tuple[c.Pull, int, bool, float]) -> None:
        command, incarnation, torn, until_s = arrival
        if incarnation != self.incarnation or self.hung:
            return
        refused = self.relays.refuses(command.version, command.sources)
        if refused is not None and self.time.now() < until_s:  # the version may still arrive
            self.time.at(min(until_s, self.time.now() + 1.0), self._arrived, arrival)
            return
        self.pulling = False
        self._stands_still()
        kept = self.world.injuries.kept_versions
        if refused is None and kept and command.version <= max(self.relays.published_s, default=0) - kept:
            refused = "no relay and no checkpoint holds it"
        if refused is None and torn:
            refused = "a chunk's checksum does not match"
        if refused is None and self.world.injuries.loads_wrongly(self.id):
            self._stop(self.engine.ids, None)
            differs = f"a parameter of version {command.version} has another digest than was published"
            self._say([c.PullFailed(self.id, command.version, differs, command.seq, differs="a parameter")])
        elif refused is None:
            self.version = command.version
            source = self.relays.source(command.version, command.sources) if self.address else ""
            if source:
                self.relays.offers(self.address, command.version)
            self.weights_arrived(command.version)
            self._say([c.Pulled(self.id, command.version, command.seq, source=source), self.snapshot()])
        else:
            if torn:
                self._stop(self.engine.ids, None)
            self._say([c.PullFailed(self.id, command.version, refused, command.seq)])

    def weights_arrived(self, version: int) -> None:
        """Called when it serves a version; checks override this."""

    # ---- the prefix cache -----------------------------------------------------------------------------------------

    def _free_tokens(self) -> float:
        """Tokens for which the engine has room, after the prefix cache was told what it has generated."""
        engine = self.engine
        self._prefixes.took(engine.tokens - self._generated)
        self._generated = engine.tokens
        return (1.0 - engine.kv_share) * self.pool.costs(self.tp)[0].kv_capacity_tokens

    def _find(self, works: Sequence[Work]) -> None:
        """Give work that begins here what the prefix cache has of it."""
        self.tokens.reprefilled_tokens -= self._prefixes.back(works)
        if self._prefixes.share:
            known = self.tokens.trajectories
            self._prefixes.find([(work, known[work.id].group) for work in works], self._free_tokens())

    def _leave(self, left: Mapping[str, int]) -> None:
        """Note that trajectories leave with so many response tokens, whose contexts stay in the prefix cache."""
        if self._prefixes.share:
            known = self.tokens.trajectories
            contexts = {name: known[name].sample.prompt_tokens + left[name] for name in left if name in known}
            self._prefixes.left(contexts, self._free_tokens())

    # ---- reports --------------------------------------------------------------------------------------------------

    def _say(self, events: Sequence[c.Event]) -> None:
        if self.member is not None:
            self.member.say(events)

    def pulse(self) -> None:
        """Report the load, unless the controller knows that it is idle, and how long the engine has stood still."""
        if not self.up or self.hung or self.reported:
            return
        now, engine = self.time.now(), self.engine
        engine.advance(now)
        self.flush()
        self._say([self.snapshot()])
        if self.stalled_s is not None and (engine.running or engine.waiting):
            still_s = now - self.stalled_s
            self._say([c.Activity("replica", self.id, "generating", 0, still_s, self.pool.slowest_step_s)])

    def schedule(self, now: float) -> None:
        """Wake up when the next trajectory finishes or may finish."""
        at = self.engine.next_finish_s()
        if at == math.inf:
            return
        step = self.report_s
        at = max(math.ceil(at / step - 1e-9) * step, at, now)  # rounding must not lead to a time before the finish
        if at < self.scheduled_s or self.scheduled_s <= now:
            self.scheduled_s = at
            self.time.at(at, self._wake, self.incarnation)

    def _wake(self, incarnation: int) -> None:
        now = self.time.now()
        if incarnation != self.incarnation or now < self.scheduled_s:
            return
        self.scheduled_s = math.inf
        self.engine.advance(now)
        self.flush()
        self.idle_now()
        self.schedule(now)

    def flush(self) -> None:
        """Report the trajectories that have finished."""
        finished = self.engine.take_finished()
        if not finished:
            return
        self.finished += len(finished)
        name = self.id
        ended = self.tokens.turns_ended(finished) if self._turns else {}
        if ended:
            self._prefixes.turned(ended)
            self._leave(ended)
            self._say([c.TurnEnded(name, trajectory, tokens) for trajectory, tokens in ended.items()])
            finished = [one for one in finished if one[1] not in ended]
        self.tokens.complete(finished)
        reason = self.tokens.reason
        self._say([c.Finished(name, trajectory, tokens, reason(tokens)) for _, trajectory, tokens in finished])

    def idle_now(self) -> None:
        """Report the load if the replica has just become idle."""
        engine = self.engine
        if not self.reported and not (engine.running or engine.waiting):
            self.reported = True
            self.world.cores.changed()
            self._say([self.snapshot()])

    def snapshot(self) -> c.Snapshot:
        """The load now; the engine must have been advanced to this time."""
        engine = self.engine
        return c.Snapshot(
            self.id,
            engine.kv_share,
            engine.running,
            engine.waiting,
            self.finished,
            self.version,
            self.last_seq,
            self._rate(),
            kv_capacity_tokens=self.pool.costs(self.tp)[0].kv_capacity_tokens,
            preemptions=engine.preemptions - self._preempted,
            max_running=self.pool.rollout.max_running,
            cached_tokens=self._prefixes.tokens,
        )

    def _rate(self) -> float:
        """Tokens per second since the last call."""
        now, tokens, (told_s, told) = self.time.now(), self.engine.tokens, self._told
        self._told = (now, tokens)
        return round((tokens - told) / (now - told_s), 1) if now > told_s else 0.0

    # ---- what it computes -----------------------------------------------------------------------------------------

    @property
    def cores(self) -> float:
        """Work is on its devices."""
        busy = self.up and (self.engine.running > 0 or self.engine.waiting > 0)
        return self.world.fleet.replica_cores if busy else 0.0

    def share(self, share: float) -> None:
        self._share = share
        if self.up and not self.hung:
            self.engine.advance(self.time.now())
            self.flush()
            self._set_speed()

    def add_to(self, totals: Totals) -> None:
        for engine in (*self._former, self.engine):
            engine.advance(self.time.now())
            totals.add_engine(engine)


class Prefixes:
    """A prefix cache: contexts of trajectories that left a replica, and prompts, under the weights that it serves.

    It forgets what was used least recently: what somebody left is there until the engine has taken in as many tokens as were
    free then.

    Args:
        share: share of such a context that is found again; 0: there is no cache.
    """

    __slots__ = ("_contexts", "_prompts", "_taken", "_turned", "share", "tokens")

    def __init__(self, share: float) -> None:
        self.share = share
        self._contexts: dict[str, tuple[int, float]] = {}  # tokens, and until how many tokens are taken in
        self._prompts: dict[int, tuple[int, float]] = {}
        self._turned: set[str] = set()
        self._taken = 0.0
        self.tokens = 0  # whose prefill was saved

    def took(self, tokens: int) -> None:
        """The engine has taken in tokens."""
        self._taken += tokens

    def turned(self, trajectories: Iterable[str]) -> None:
        """Turns of these have ended here."""
        self._turned.update(trajectories)

    def left(self, contexts: Mapping[str, int], free: float) -> None:
        """Trajectories have left with contexts of so many tokens, when there was room for `free` more."""
        self._contexts.update({name: (tokens, self._taken + free) for name, tokens in contexts.items()})

    def back(self, works: Sequence[Work]) -> int:
        """Response tokens of those whose last turn ended here: each turn begins with a prefill, so it is none too many."""
        back = [work for work in works if work.id in self._turned] if self._turned else []
        self._turned.difference_update([work.id for work in back])
        return sum(work.done_tokens for work in back)

    def find(self, works: Sequence[tuple[Work, int]], free: float) -> None:
        """Give work that begins here its cached tokens.

        Args:
            works: each with the number of its prompt.
            free: tokens for which there is room.
        """
        for work, prompt in works:
            context = work.prompt_tokens + work.done_tokens
            had = max(self._held(self._contexts.pop(work.id, None)), self._held(self._prompts.get(prompt)))
            work.cached_tokens = int(self.share * min(had, context))
            self.tokens += work.cached_tokens
            self._prompts[prompt] = work.prompt_tokens, self._taken + free
            self._taken += context

    def clear(self) -> None:
        """The cache is gone."""
        self._contexts.clear()
        self._prompts.clear()
        self._turned.clear()

    def _held(self, left: tuple[int, float] | None) -> int:
        return 0 if left is None or self._taken > left[1] else left[0]
