"""The tokens of prompts in what policies see, and so in StaleFlow's cost model, routing and migration (equations 3 and 4)."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.controller.ledger import Ledger
from tailrace.controller.trajectories import TrajectoryState
from tailrace.repack import MarginalThroughput

TABLE_4: dict[str, Any] = {"k1": 7.28e-8, "k2": 1.72e-3, "k3": 1.25e-4, "k4": 1.07e-2}
CAPACITY = 10_000


@dataclass(frozen=True)
class Looks(MarginalThroughput):
    """Routes as the paper says, and notes what it saw."""

    seen: list = field(default_factory=list, compare=False)

    def route(self, cycle):
        self.seen.append({view.trajectory: view for queue in cycle.pool.values() for view in queue.values()})
        return super().route(cycle)


class Reporting(Scripted):
    """Replicas that show their load after every command."""

    def answers(self, command):
        found = super().answers(command)
        if isinstance(command, c.Pull | c.Interrupt):
            replica = command.replica
            found.append(c.Snapshot(replica, 0.0, 0, 0, 0, self._serves.get(replica), command.seq))
        return found


def _run(**changes):
    options = {"routing": Looks(**TABLE_4), "sync": policy("sync", "when-useful"), "replica_batch": 64, "steps": 50}
    return Reporting(spec(**{**options, **changes}))


def _prompts_of(run):
    return {ref.trajectory: ref.prompt for command in of(c.Route, run.given) for ref in command.trajectories}


def test_what_has_not_started_is_seen_with_its_prompt():
    run = _run()
    run.prompt_tokens = lambda prompt: 2_000 + prompt
    run.go(c.Tick(), leave=(c.Route,))
    prompts = _prompts_of(run)
    seen = {name: view for looked in run.controller.spec.routing.seen for name, view in looked.items()}
    assert prompts
    assert prompts.keys() <= seen.keys()
    for name, prompt in prompts.items():
        assert (seen[name].tokens, seen[name].prompt_tokens) == (2_000 + prompt, 2_000 + prompt)


def test_what_runs_and_what_was_interrupted_is_seen_with_its_prompt_and_its_response():
    run = _run(sync=policy("sync", "interrupting"))
    run.prompt_tokens = lambda prompt: 2_000 + prompt
    run.go(c.Tick(), leave=(c.Route,))
    fleet, controller = run.controller.fleet.replicas, run.controller
    prompts = _prompts_of(run)
    for replica in fleet.values():
        for name, view in replica.assigned.items():
            assert (view.tokens, view.prompt_tokens) == (2_000 + prompts[name],) * 2
    controller.spec.routing.seen.clear()
    controller.trainer.newest = controller.trainer.publishing = 1
    run.go(c.Published(1), leave=(c.Route, c.Pull, c.Step))
    waiting = {view.trajectory: view for queue in controller.ledger.waiting.queues.values() for view in queue.values()}
    assert waiting  # each has 5 tokens of its response
    for name, view in waiting.items():
        assert (view.tokens, view.prompt_tokens) == (2_005 + prompts[name], 2_000 + prompts[name])


def test_what_waits_by_itself_is_seen_with_its_prompt_once_that_is_measured():
    run = _run(sync=policy("sync", "interrupting"))
    run.prompt_tokens = lambda prompt: 2_000 + prompt
    run.go(c.Tick(), leave=(c.Route, c.Measure))
    controller, prompts = run.controller, _prompts_of(run)
    controller.trainer.newest = controller.trainer.publishing = 1
    run.go(c.Published(1), leave=(c.Route, c.Pull, c.Step, c.Measure))

    def waiting():
        return {name: view for queue in controller.ledger.waiting.queues.values() for name, view in queue.items()}

    before = waiting()
    assert before
    assert {(view.tokens, view.prompt_tokens) for view in before.values()} == {(5, 0)}
    run.catch_up(c.Measure, leave=(c.Route, c.Pull, c.Step))
    for name, view in waiting().items():
        assert (view.tokens, view.prompt_tokens) == (2_005 + prompts[name], 2_000 + prompts[name])


@pytest.mark.parametrize("kv", [0.0, 0.55, 0.75, 0.81])
def test_no_replica_is_given_prompts_that_its_cache_has_no_room_for(kv):
    """Near a full cache, prompts of 2,000 tokens: equation 3 gives a trajectory that must wait no gain."""
    run = _run(provisioning=policy("provisioning", "static", count=1), buffer_groups=40, batch_groups=8)
    run.prompt_tokens = lambda prompt: 2_000
    run.go(c.Tick(), leave=(c.Pull,))
    (pull,) = [each for each in run.left if isinstance(each, c.Pull)]
    run.left.clear()
    load = c.Snapshot("r0", kv, 0, 0, 0, 0, pull.seq, kv_capacity_tokens=CAPACITY)
    run.go(c.Pulled("r0", 0, pull.seq), load, leave=(c.Route,))
    given = sum(len(command.trajectories) for command in of(c.Route, run.given))
    assert given == int((1 - kv) * CAPACITY) // 2_000


def test_nothing_waits_for_a_length_and_what_is_not_measured_counts_as_the_mean():
    run = _run(buffer_groups=12)
    run.go(c.Tick(), leave=(c.Route, c.Measure))
    assert of(c.Route, run.given)
    ledger = run.controller.ledger
    assert ledger.prompts.of(0) == 0
    (asked,) = [each for each in run.left if isinstance(each, c.Measure)]
    known = asked.prompts[:2]
    run.go(c.Measured(known, (100, 301), asked.seq), leave=(c.Route, c.Measure))
    assert [ledger.prompts.of(prompt) for prompt in (*known, asked.prompts[2])] == [100, 301, 200]


def test_the_length_of_a_prompt_that_is_nobodys_counts_for_the_mean_and_is_not_kept():
    ledger = _run().controller.ledger
    ledger.prompts.ask([3])
    assert ledger.measured({3: 100, 4: 300}) == set()
    assert (ledger.prompts.tokens, ledger.prompts.asked, ledger.prompts.mean) == ({3: 100}, {}, 200)


def test_a_held_out_problem_counts_as_the_mean_and_not_as_the_prompt_of_its_number():
    ledger = Ledger()
    ledger.prompts.tokens, ledger.prompts.measured, ledger.prompts.total = {0: 100, 1: 300}, 2, 400
    views = [
        ledger.view(TrajectoryState(f"{purpose}", 0, 0, purpose, "", 1, version=0, tokens=7))
        for purpose in (c.Purpose.TRAIN, c.Purpose.EVAL)
    ]
    assert [(view.prompt_tokens, view.tokens) for view in views] == [(300, 307), (200, 207)]


def test_a_data_role_that_died_with_the_question_is_asked_again():
    run = _run(buffer_groups=12)
    run.go(c.Tick(), leave=(c.Route, c.Measure))
    run.forget(c.Measure)
    run.down("data", leave=(c.Route,))
    lengths = run.controller.ledger.prompts
    open_prompts = {group.prompt for group in run.controller.ledger.groups.values()}
    assert open_prompts
    assert open_prompts <= lengths.tokens.keys()
    assert not lengths.asked


def test_prompts_that_are_done_are_forgotten():
    run = _run(steps=6)
    run.go(c.Tick())
    assert run.controller.finished
    ledger = run.controller.ledger
    assert ledger.prompts.tokens.keys() == {group.prompt for group in ledger.groups.values()}  # not settled yet
    assert not ledger.prompts.asked


def test_nobody_is_asked_where_no_policy_plans_with_tokens():
    run = Scripted(spec())
    run.go(c.Tick())
    assert run.controller.finished
    assert not of(c.Measure, run.given)


@pytest.mark.parametrize(
    "wrong", [c.Measured((0, 1), (5,)), c.Measured((0,), (-1,))], ids=["one too few", "below nothing"]
)
def test_lengths_that_make_no_sense_end_the_run(wrong):
    run = _run()
    run.go(c.Tick(), leave=(c.Route, c.Measure))
    with pytest.raises(Exception, match="expected one of at least 0 for each"):
        run.handle(dataclasses.replace(wrong, answers=1))
