"""The coordinator in random worlds: the bound holds whatever happens, nothing is lost, and it never stops deciding. Beside the
staleness manager that it drives runs the slow reference.

`TAILRACE_WORLDS` multiplies the number of worlds. A failure names its seed.
"""

import functools
import json
import os
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace import contracts as c
from tailrace.contracts.plugins import load
from tailrace.pipeline.controller.controller import Controller
from tailrace.pipeline.controller.evaluations import EvaluationPlan
from tailrace.pipeline.controller.fleet import Health
from tailrace.pipeline.spec import PipelineSpec
from tailrace.pipeline.testing import World, replay
from tailrace.staleness import Bounded
from tailrace.staleness.bounded import BoundedGate
from tailrace.staleness.reference import ReferenceManager, Row

WORLDS = int(os.environ.get("TAILRACE_WORLDS", "1"))
STEPS, GROUPS, SAMPLES = 8, 4, 4
COST = {"k1": 1e-6, "k2": 1e-3, "k3": 1e-4, "k4": 5e-3}


@functools.cache
def factory(axis, name):
    return load(f"tailrace.{axis}", name)


def policy(axis, name, **options):
    return factory(axis, name)(**options)


def spec(bound=1, surplus_samples=0, surplus_groups=0, filters=True, **changes):
    base = PipelineSpec(
        admission=Mirrored(bound, surplus_groups),
        batching=policy(
            "batching",
            "redundant",
            samples=SAMPLES,
            surplus_samples=surplus_samples,
            surplus_groups=surplus_groups,
            filter_equal_rewards=filters,
        ),
        routing=policy("routing", "marginal-throughput", mu=0.3, **COST),
        sync=policy("sync", "when-useful"),
        relocation=policy("relocation", "migration", **COST),
        training=policy("training", "mini-batch", parts=2),
        provisioning=policy("provisioning", "static", count=3),
        recovery=policy("recovery", "isolate", max_restarts=1_000),
        sampler=policy("sampler", "fifo"),
        steps=STEPS,
        batch_groups=GROUPS,
        replica_batch=16,
        evaluation=EvaluationPlan(size=10, every=3, modes=("sampled",), first=("greedy",), last=("greedy",)),
    )
    return replace(base, **changes)


class MirroredGate(BoundedGate):
    """The staleness manager beside its slow reference: after every operation both hold the same entries in the same places."""

    operations = 0

    def __init__(self, manager):
        super().__init__(manager)
        self.reference = ReferenceManager(manager.bound, manager.batch_size, 0, manager.surplus_size)

    def _same(self):
        MirroredGate.operations += 1
        for buffer in self.reference.buffers():
            mine = sorted((entry.key, entry.version, entry.occupied) for entry in self.manager.entries(buffer))
            assert mine == sorted(self.reference.entries(buffer)), f"buffer {buffer} at version {self.manager.version}"

    def start(self, group, version):
        assert self.reference.can_reserve(version)
        super().start(group, version)
        self.reference.reserve(group, version)
        self._same()

    def complete(self, group):
        super().complete(group)
        self.reference.occupy(group)
        self._same()

    def drop(self, group):
        kind = self.manager.occupied(group)
        super().drop(group)
        if kind is not None:
            (self.reference.filter if kind else self.reference.abort)(group)
        self._same()

    def consume(self, candidates, sampler):
        due = {key for key, _, occupied in self.reference.entries(self.manager.version) if occupied}
        batch = super().consume(candidates, sampler)
        assert set(batch) == due
        self.reference.consume()
        self._same()
        return batch

    def reset(self, version, started):
        refused = super().reset(version, started)
        manager = self.manager
        self.reference = ReferenceManager(manager.bound, manager.batch_size, version, manager.surplus_size)
        self.reference.rows = [
            Row(entry.key, entry.version, buffer, entry.occupied)
            for buffer in self.reference.buffers()
            for entry in manager.entries(buffer)
        ]
        return refused


@dataclass(frozen=True)
class Mirrored(Bounded):
    def gate(self, batch_groups):
        return MirroredGate(super().gate(batch_groups).manager)


class Watched(World):
    """A world that notices when the coordinator leaves a replica idle that could work."""

    def __init__(self, *arguments, patience_s=8.0, **options):
        super().__init__(*arguments, **options)
        self.patience_s = patience_s
        self.idle_since = {}

    def deliver(self, event):
        super().deliver(event)
        if isinstance(event, c.Tick):
            self._watch()

    def _watch(self):
        controller = self.controller
        pool = controller.ledger.levels
        for replica in controller.fleet.replicas.values():
            admits = controller.gate.tentative()
            could = replica.serves and any(
                admits.allows(replica.version) if level is None else replica.version >= level for level in pool
            )
            if replica.health is Health.UP and not replica.in_flight and could:
                since = self.idle_since.setdefault(replica.id, self.now)
                assert self.now - since < self.patience_s, (
                    f"{replica.id} is idle since {since:.1f} s, with work in the pool"
                )
            else:
                self.idle_since.pop(replica.id, None)


def check(world, bound):
    controller = world.controller
    assert controller.finished, controller.failure
    counts = controller.ledger.counts
    assert counts.admitted == counts.trained + counts.filtered + counts.failed
    assert len(world.consumed) == STEPS * GROUPS * SAMPLES
    assert controller.learner.step == STEPS
    assert max(world.staleness, default=0) <= bound
    assert controller.fleet.contradictions == 0
    assert {result.mode for result in controller.evaluations.results} == {"sampled", "greedy"}


@given(
    seed=st.integers(0, 2**32),
    bound=st.sampled_from([0, 1, 2, 5]),
    surplus=st.sampled_from([(0, 0), (1, 0), (0, 2), (2, 1)]),
    filters=st.booleans(),
)
@settings(max_examples=60 * WORLDS, deadline=None)
def test_the_bound_holds_and_nothing_is_lost(seed, bound, surplus, filters):
    world = World(Controller(spec(bound, *surplus, filters)), seed)
    world.run()
    check(world, bound)


@given(seed=st.integers(0, 2**32), bound=st.sampled_from([0, 1, 3]), every=st.sampled_from([1, 3]))
@settings(max_examples=60 * WORLDS, deadline=None)
def test_the_bound_holds_over_deaths_of_replicas_and_trainer(seed, bound, every):
    world = World(
        Controller(spec(bound, 1, 1, checkpoint_every=every)),
        seed,
        kill_rate=0.03,
        trainer_kill_rate=0.01,
        scoring_failure_rate=0.02,
    )
    world.run()
    check(world, bound)


@given(
    seed=st.integers(0, 2**32),
    bound=st.sampled_from([0, 1, 3]),
    surplus=st.sampled_from([(0, 0), (1, 2), (0, 2)]),
    grid_s=st.sampled_from([0.5, 2.0]),
)
@settings(max_examples=60 * WORLDS, deadline=None)
def test_the_bound_holds_though_events_arrive_together(seed, bound, surplus, grid_s):
    world = World(
        Controller(spec(bound, *surplus)),
        seed,
        grid_s=grid_s,
        kill_rate=0.02,
        trainer_kill_rate=0.01,
        scoring_failure_rate=0.02,
    )
    world.run()
    check(world, bound)


@given(seed=st.integers(0, 2**32), bound=st.sampled_from([0, 1, 3]), kills=st.sampled_from([0.0, 0.02]))
@settings(max_examples=60 * WORLDS, deadline=None)
def test_it_never_stops_while_work_exists_though_commands_are_delayed_reordered_and_repeated(seed, bound, kills):
    world = Watched(
        Controller(spec(bound, 1, 1)), seed, transport_s=2.0, repeat_rate=0.5, kill_rate=kills, patience_s=12.0
    )
    world.run()
    check(world, bound)


@given(seed=st.integers(0, 2**32), at=st.integers(1, 600))
@settings(max_examples=30 * WORLDS, deadline=None)
def test_a_driver_that_dies_anywhere_goes_on_within_the_bound(seed, at):
    world = World(Controller(spec(1, 1, 1)), seed, kill_rate=0.01)
    world.run(stop_after=at)
    rebuilt = Controller(spec(1, 1, 1))
    replay(rebuilt, world.log)
    assert json.dumps(rebuilt.state(), default=str) == json.dumps(world.controller.state(), default=str)
    if rebuilt.finished:
        return
    world.controller = rebuilt
    world.deliver(world.crash())
    world.run()
    check(world, 1)


MIXES = [
    {"routing": ("least-loaded", {})},
    {"sync": ("interrupting", {})},
    {"relocation": ("none", {})},
    {"routing": ("least-loaded", {}), "sync": ("interrupting", {}), "relocation": ("none", {})},
    {"sync": ("on-idle", {}), "routing": ("least-loaded", {}), "relocation": ("best-fit", {"roofline_batch": 64})},
    {"sync": ("barrier", {}), "routing": ("round-robin", {}), "relocation": ("none", {})},
]


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: "-".join(name for name, _ in mix.values()))
@pytest.mark.parametrize("bound", [0, 1, 3])
def test_the_bound_holds_with_any_strategy(mix, bound):
    policies = {axis: policy(axis, name, **options) for axis, (name, options) in mix.items()}
    for seed in range(6 * WORLDS):
        world = World(Controller(spec(bound, 1, 1, **policies)), seed, kill_rate=0.02, transport_s=0.5)
        world.run()
        check(world, bound)


@pytest.mark.parametrize("admission", ["in-flight-cap", "one-step", "on-policy", "inherent"])
def test_other_admissions_run_under_partial_rollout(admission):
    options = {"bound": 1} if admission == "in-flight-cap" else {}
    gate = policy("admission", admission, **options)
    for seed in range(10):
        strategies = {"routing": policy("routing", "least-loaded"), "sync": policy("sync", "interrupting")}
        world = World(Controller(spec(admission=gate, buffer_groups=8, **strategies)), seed)
        world.run()
        check(world, {"one-step": 1, "on-policy": 0}.get(admission, 10**9))


def test_an_in_flight_cap_bounds_no_trajectory():
    """The gap that StaleFlow closes: under the same worlds, a cap of (1 + 1) batches lets single trajectories grow older."""
    worst = 0
    for seed in range(40):
        gate = policy("admission", "in-flight-cap", bound=1)
        strategies = {"routing": policy("routing", "least-loaded"), "sync": policy("sync", "interrupting")}
        world = World(Controller(spec(admission=gate, **strategies)), seed)
        world.run()
        worst = max(worst, *world.staleness)
    assert worst > 1


def test_equation_1_taken_literally_stops_deciding(monkeypatch):
    """The liveness bug of SF-9, planted. What was interrupted is subtracted when the command is given, so a trajectory that
    finished meanwhile makes the count wrong for ever. With it some world stops; without it none does."""
    from tailrace.pipeline.controller import fleet as fleet_module
    from tailrace.pipeline.controller.outbox import Outbox

    accumulated, finished_at_sync = {}, {}

    def send_to(self, replica, kind, **fields):
        if kind is c.Route:
            accumulated[replica.id] = accumulated.get(replica.id, 0) + len(fields["trajectories"])
        elif kind is c.Interrupt:
            accumulated[replica.id] = accumulated.get(replica.id, 0) - len(fields["trajectories"])
        elif kind is c.Pull:
            accumulated[replica.id] = 0
            finished_at_sync[replica.id] = None
        return original_send(self, replica, kind, **fields)

    def observed(self, snapshot):
        original_observed(self, snapshot)
        replica = self.replicas[snapshot.replica]
        if finished_at_sync.get(replica.id) is None:
            finished_at_sync[replica.id] = snapshot.finished
        seen = snapshot.running + snapshot.waiting + snapshot.finished - finished_at_sync[replica.id]
        replica.fresh = seen == accumulated.get(replica.id, 0)

    crowded = {"replica_batch": 48, "relocation": policy("relocation", "migration", phi_wait=0, period_s=0.1, **COST)}
    for seed in range(20):
        world = Watched(Controller(spec(3, **crowded)), seed, transport_s=1.0, patience_s=60.0)
        world.run(max_events=20_000)
        check(world, 3)
    original_send, original_observed = Outbox.send_to, fleet_module.Fleet.observed
    monkeypatch.setattr(Outbox, "send_to", send_to)
    monkeypatch.setattr(fleet_module.Fleet, "observed", observed)
    stopped = 0
    for seed in range(20):
        accumulated.clear()
        finished_at_sync.clear()
        world = Watched(Controller(spec(3, **crowded)), seed, transport_s=1.0, patience_s=60.0)
        try:
            world.run(max_events=20_000)
        except AssertionError:
            stopped += 1
    assert stopped > 0


def test_the_log_of_a_mixed_run_replays_byte_for_byte():
    world = World(Controller(spec(2, 1, 1)), 7, kill_rate=0.02, transport_s=0.5)
    world.run()
    commands = replay(Controller(spec(2, 1, 1)), world.log)
    assert [repr(step) for step in commands] == [repr(step) for step in world.commands]


def test_notes_tell_why_each_trajectory_went_where_it_went():
    controller = Controller(spec(1, 1, 1))
    controller.outbox.notes = []
    world = World(controller, random.Random(3).randrange(100))
    world.run()
    texts = [note.text for note in controller.outbox.notes]
    for words in ("it gains", "tokens/s", "pulls version", "trained on", "signal"):
        assert any(words in text for text in texts), words
