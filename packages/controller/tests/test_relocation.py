"""Which relocations are carried out."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c

TICKS = 6


@dataclass(frozen=True)
class EmptiesAlways(c.RelocationPolicy):
    """Takes everything from every replica, again and again."""

    def due(self, now_s, last_s, stepped):
        return not stepped

    def plan(self, cycle):
        return [c.Evict(view.replica, tuple(view.trajectories)) for view in cycle.replicas if view.trajectories]


class Engines(Scripted):
    """Replicas whose engines make some tokens between two interruptions."""

    def __init__(self, tokens):
        super().__init__(spec(relocation=EmptiesAlways(), sync=policy("sync", "interrupting")))
        self.made, self.kept = tokens, Counter()

    def answers(self, command):
        if not isinstance(command, c.Interrupt):
            return super().answers(command)
        self.kept.update(dict.fromkeys(command.trajectories, self.made))
        return [c.Interrupted(command.replica, name, self.kept[name], command.seq) for name in command.trajectories]


@pytest.mark.parametrize("tokens", [0, 3])
def test_what_made_no_token_since_it_was_relocated_is_left_alone(tokens):
    """It would be prefilled again and again, and never get further."""
    run = Engines(tokens)
    run.go(c.Tick(), leave=(c.Route,))
    for _ in range(TICKS):
        run.later(1.0, leave=(c.Route,))
    found = Counter(name for command in of(c.Interrupt, run.given) for name in command.trajectories)
    assert found
    assert {times > 1 for times in found.values()} == {tokens > 0}


@dataclass(frozen=True)
class Releases(c.RelocationPolicy):
    """Empties r0 onto r1 when it is told of an update, or, with `periodic`, from the fifth second on."""

    periodic: bool

    def due(self, now_s, last_s, updated):
        return now_s >= 5.0 if self.periodic else updated

    def plan(self, cycle):
        known = {view.replica: view for view in cycle.replicas}
        source, destination = known.get("r0"), known.get("r1")
        if source is None or destination is None or not source.trajectories or source.version != destination.version:
            return []
        return [c.Move("r0", "r1")]


def _begins(sync, relocation, **changes):
    """Three replicas at version 0, of which r2 finishes what the first batch needs. Nobody has answered `Step`."""
    pipeline = spec(
        sync=policy("sync", sync),
        relocation=relocation,
        provisioning=policy("provisioning", "static", count=3),
        steps=12,
        replica_batch=6,
        batch_groups=1,
        buffer_groups=12,
        **changes,
    )
    run = Scripted(pipeline)
    run.go(c.Tick(), leave=(c.Route,))
    for replica, kv in (("r0", 0.8), ("r1", 0.8)):
        _load(run, replica, kv)
    route = next(command for command in run.left if isinstance(command, c.Route) and command.replica == "r2")
    pair = route.trajectories[:2]
    run.go(*(c.Finished("r2", ref.trajectory, 10, answers=route.seq) for ref in pair), leave=(c.Route, c.Step))
    return run


def _load(run, replica, kv, leave=(c.Route,)):
    """A snapshot that shows every command: a replica runs all that it holds."""
    state = run.controller.fleet.replicas[replica]
    running = len(state.assigned)
    run.go(c.Snapshot(replica, kv, running, 0, 0, state.version, state.sent), leave=leave)


def _at_update(run):
    """The update is made and then published, and only then its relocation's interrupts are answered."""
    run.catch_up(c.Step, leave=(c.Route, c.Publish, c.Interrupt))
    run.catch_up(c.Interrupt, leave=(c.Route, c.Publish))
    run.catch_up(c.Publish, leave=(c.Route, c.Interrupt))
    run.catch_up(c.Interrupt, leave=(c.Route,))


def _between(run):
    """A period passes while the new version is being published."""
    run.catch_up(c.Step, leave=(c.Route, c.Publish))
    run.later(5.0, leave=(c.Route, c.Publish))
    run.catch_up(c.Publish, leave=(c.Route,))


def _across(run):
    """Trajectories are asked back before the update, and come back after it."""
    run.later(5.0, leave=(c.Route, c.Step, c.Interrupt))
    run.catch_up(c.Step, leave=(c.Route, c.Publish))
    run.catch_up(c.Interrupt, leave=(c.Route, c.Publish))
    run.later(0.1, leave=(c.Route, c.Publish))
    run.catch_up(c.Publish, leave=(c.Route,))


@pytest.mark.parametrize("happens", [_at_update, _between, _across], ids=lambda each: each.__name__.strip("_"))
@pytest.mark.parametrize("sync", ["on-idle", "when-drained", "when-useful"])
def test_who_is_emptied_around_an_update_gets_its_next_groups_at_the_new_version(sync, happens):
    """Laminar, section 5.1: the repack frees replicas for generation with the latest version."""
    run = _begins(sync, Releases(periodic=happens is not _at_update))
    assert not run.controller.view.moves
    known = {ref.trajectory for command in of(c.Route, run.given) for ref in command.trajectories}
    before = len(run.given)
    happens(run)
    for _ in range(3):
        run.later(1.0, leave=(c.Route,))
    later = run.given[before:]
    assert run.controller.view.moves
    told = [command for command in later if getattr(command, "replica", None) == "r0"]
    first = next(at for at, command in enumerate(told) if _starts(command, known))
    pulled = [command.version for command in told[:first] if isinstance(command, c.Pull)]
    assert pulled == [1], f"r0 got new groups after {[command.__class__.__name__ for command in told[: first + 1]]}"


def _starts(command, known):
    return isinstance(command, c.Route) and any(ref.trajectory not in known for ref in command.trajectories)


def test_best_fit_repacks_once_the_new_version_can_be_pulled():
    """The periodic check is far off: only the update can be the cause."""
    run = _begins("on-idle", policy("relocation", "best-fit", period_s=1e6))
    for replica in ("r0", "r1"):
        route = next(each for each in run.left if isinstance(each, c.Route) and each.replica == replica)
        done = route.trajectories[:-2]
        run.go(
            *(c.Finished(replica, ref.trajectory, 10, answers=route.seq) for ref in done),
            leave=(c.Route, c.Step, c.Interrupt),
        )
        _load(run, replica, 0.2, leave=(c.Route, c.Step, c.Interrupt))
    run.catch_up(c.Step, leave=(c.Route, c.Step, c.Publish, c.Interrupt))
    assert not of(c.Interrupt, run.given)
    (publish,) = [each for each in run.left if isinstance(each, c.Publish)]
    commands = run.handle(c.Published(publish.version, publish.seq))
    assert [command.replica for command in of(c.Interrupt, commands)] == ["r0"]


def test_a_released_replica_does_not_wait_for_a_version_that_is_lost():
    """The trainer dies while it publishes: what the others wait for, they get at the old version."""
    run = _begins("on-idle", Releases(periodic=True))
    run.catch_up(c.Step, leave=(c.Route, c.Publish))
    run.later(5.0, leave=(c.Route, c.Publish))
    assert run.controller.fleet.replicas["r0"].released
    run.forget(c.Publish)
    before = len(run.given)
    run.down("trainer", leave=(c.Route, "trainer"))
    assert any(command.replica == "r0" for command in of(c.Route, run.given[before:]))


@dataclass(frozen=True)
class Nowhere(type(policy("routing", "least-loaded"))):
    """Routing that places nothing from a moment on that the test sets."""

    told: list = field(default_factory=list, compare=False)

    def route(self, cycle):
        return () if self.told else super().route(cycle)


def test_a_move_to_a_replica_that_serves_another_version_by_then_is_cancelled():
    routing = Nowhere()
    run = _begins("when-useful", Releases(periodic=True), routing=routing)
    run.later(5.0, leave=(c.Route, c.Step, c.Interrupt))
    controller, r1 = run.controller, run.controller.fleet.replicas["r1"]
    moved = len(controller.ledger.moving)
    assert r1.incoming == moved > 0
    routing.told.append(True)
    r1.version = 1  # it has pulled
    run.catch_up(c.Interrupt, leave=(c.Route, c.Pull))
    run.later(0.1, leave=(c.Route, c.Pull))
    assert (r1.incoming, controller.ledger.moving) == (0, {})
    assert controller.ledger.pooled >= moved


@dataclass(frozen=True)
class EverySecond(c.RelocationPolicy):
    """Plans nothing, once a second and after updates, and remembers what it was told."""

    told: list = field(default_factory=list, compare=False)

    def due(self, now_s, last_s, updated):
        self.told.append((now_s, last_s, updated))
        return updated or now_s - last_s >= 1.0

    def plan(self, cycle):
        return []


def test_an_update_does_not_put_off_the_next_periodic_relocation():
    relocation = EverySecond()
    run = _begins("on-idle", relocation)
    run.later(1.0, leave=(c.Route, c.Step))
    run.now = 1.75
    run.catch_up(c.Step, leave=(c.Route, c.Step))
    assert (1.75, 1.0, True) in relocation.told
    run.later(0.25, leave=(c.Route, c.Step))
    assert relocation.told[-1] == (2.0, 1.0, False)
    assert run.controller.coordinator.last_plan_s == 2.0


@dataclass(frozen=True)
class ByTimeAlone(c.RelocationPolicy):
    """Plans nothing, once a second, as StaleFlow's migration is planned, and counts how often it was asked."""

    plans: list = field(default_factory=list, compare=False)

    def due(self, now_s, last_s, updated):
        return now_s - last_s >= 1.0

    def plan(self, cycle):
        self.plans.append(cycle.progress.published)
        return []


def test_a_period_that_ends_with_an_update_is_over():
    relocation = ByTimeAlone()
    run = _begins("on-idle", relocation)
    run.now = 2.0
    run.catch_up(c.Step, leave=(c.Route, c.Step, c.Publish))
    relocation.plans.clear()
    run.now = 3.0
    run.catch_up(c.Publish, leave=(c.Route, c.Step))
    run.later(0.25, leave=(c.Route, c.Step))
    assert relocation.plans == [1]
    assert run.controller.coordinator.last_plan_s == 3.0


@dataclass(frozen=True)
class Moves(c.RelocationPolicy):
    """Does what a test says."""

    plans: list = field(default_factory=list, compare=False)

    def due(self, now_s, last_s, updated):
        return bool(self.plans)

    def plan(self, cycle):
        return self.plans.pop()


def test_what_has_older_tokens_moves_too_where_versions_mix():
    """It went back to the pool, and from there to whoever had least: the replica that was to be emptied."""
    moves = Moves()
    run = Scripted(spec(relocation=moves, sync=policy("sync", "interrupting"), steps=9, replica_batch=8))
    run.go(c.Tick(), leave=(c.Route,))
    run.go(*run.answers(run.left.pop(0)), leave=(c.Route,))
    source, destination = run.controller.fleet.replicas.values()
    names = list(source.assigned)
    assert [(state.version, source.version) for state in source.assigned.states.values()] == [(0, 1)] * len(names)
    moves.plans.append([c.Move("r0", "r1")])
    run.later(2.0, leave=(c.Route,))
    given = run.go(c.Snapshot("r0", 0.0, 0, 0, 0, 1, 10_000), leave=(c.Route,))
    moved = [route for route in of(c.Route, given) if route.reasons[0].why is c.Why.MOVED]
    assert [[ref.trajectory for ref in route.trajectories] for route in moved] == [names]
    assert set(names) <= set(destination.assigned)
