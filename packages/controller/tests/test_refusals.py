"""What becomes of prompts that an engine refuses: their group fails, and nothing else, unless nothing gets through."""

from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.controller.spec import EvaluationPlan


def refuses(run, *names, replica="r0", leave=(c.Score, c.Step)):
    return run.go(*(c.Refused(replica, name, f"{name} is too long") for name in names), leave=leave)


def one_replica(**changes):
    run = Scripted(spec(provisioning=policy("provisioning", "static", count=1), **changes))
    run.go(c.Tick(), leave=(c.Route,))
    return run


def test_its_group_fails_whole_and_once():
    run = one_replica()
    given = refuses(run, "0.1", leave=(c.Route,))
    aborts = of(c.Abort, given)
    assert [(command.trajectories, command.replicas) for command in aborts] == [(("0.0", "0.1"), ("r0",))]
    assert (aborts[0].reason.why, aborts[0].reason.who) == (c.Why.REFUSED, "r0")
    counts = run.view.counts
    assert (counts.failed, counts.failed_because) == (1, {"refused": 1})
    assert counts.failed_words == {"refused": "0.1 is too long"}
    before = run.controller.state()
    refuses(run, "0.0", "0.1", leave=(c.Route, c.Score))  # both were, and the second says so later
    assert run.controller.state()["ledger"] == before["ledger"]


def test_the_run_trains_on_all_others():
    run = one_replica()
    refuses(run, "0.0", leave=())
    run.catch_up()
    counts = run.view.counts
    assert run.view.finished
    assert (counts.trained, counts.failed) == (6, 1)
    assert counts.admitted == counts.trained + counts.filtered + counts.failed


def test_a_held_out_problem_counts_neither_way():
    run = Scripted(spec(evaluation=EvaluationPlan(size=3, modes=("sampled",))))
    run.go(c.Tick(), leave=(c.Route, c.Score))
    (asked,) = {
        command.replica for command in of(c.Route, run.given) if command.trajectories[0].purpose is c.Purpose.EVAL
    }
    refuses(run, "e0.sampled.1", replica=asked, leave=())
    run.catch_up()
    first = run.view.evaluations[0]
    assert (len(first.rewards), first.failed) == (2, 1)
    assert run.view.counts.failed == 0
    assert run.view.finished


def test_many_in_a_row_end_the_run_with_the_engines_words():
    run = one_replica(failed_groups_limit=3)
    for group in range(2):
        refuses(run, f"{group}.0", leave=(c.Route, c.Score))
    assert run.view.failure is None
    refuses(run, "2.0", leave=(c.Route, c.Score))
    assert run.view.failure == "engines refused 3 groups in a row, the last because: 2.0 is too long"


class Choosy(Scripted):
    """Its engines refuse every other prompt."""

    def answers(self, command):
        answers = super().answers(command)
        if not isinstance(command, c.Route):
            return answers
        odd = {ref.trajectory for ref in command.trajectories if ref.prompt % 2}
        return [
            c.Refused(command.replica, event.trajectory, "odd", command.seq)
            if isinstance(event, c.Finished) and event.trajectory in odd
            else event
            for event in answers
        ]


def test_more_with_complete_groups_between_them_do_not():
    run = Choosy(spec(failed_groups_limit=3, steps=8))
    run.go(c.Tick())
    counts = run.view.counts
    assert run.view.finished, run.view.failure
    assert counts.trained == 16
    assert counts.failed > 3
    assert run.view.contradictions == 0
