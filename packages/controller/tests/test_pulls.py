"""Pulls that fail: tried again later and later, unless it was the relay's fault."""

from scripted import Scripted, of, policy, spec

from tailrace import contracts as c


def one_replica_pulling():
    run = Scripted(spec(provisioning=policy("provisioning", "static", count=1)), relays=2)
    assert versions(run.go(c.Tick(), leave=(c.Pull,))) == [0]
    return run


def versions(commands):
    return [command.version for command in of(c.Pull, commands)]


def failed(run):
    return run.go(c.PullFailed("r0", 0, "the relay is gone"), leave=(c.Pull,))


def test_a_pull_that_failed_is_tried_again_later_and_later():
    run = one_replica_pulling()
    for pause_s in (0.5, 1.0, 2.0, 4.0):
        assert not versions(failed(run))
        assert not versions(run.later(pause_s - 0.1, leave=(c.Pull,)))
        assert versions(run.later(0.1001, leave=(c.Pull,))) == [0]
    failed(run)
    assert "r0 failed 5 times to pull version 0: the relay is gone" in run.view.failure


def test_a_relay_that_went_down_clears_the_replicas_that_could_not_pull():
    run = one_replica_pulling()
    for _ in range(12):  # each relay dies while it is pulled from
        failed(run)
        run.down("relay", "0", leave=(c.Pull, c.Publish))
        assert versions(run.later(0.5, leave=(c.Pull,))) == [0]
        run.go(c.Published(0), leave=(c.Pull,))
    assert run.view.failure is None


def test_nobody_pulls_while_no_relay_is_up():
    run = Scripted(spec())
    run.go(c.Tick(), leave=(c.Pull,))
    run.down("relay", leave=("relay", c.Pull))
    assert not versions(run.down("replica", "r0", leave=("relay", c.Pull)))
    assert not versions(run.later(1.0, leave=("relay", c.Pull)))
    run.forget(c.Pull)
    assert versions(run.catch_up("relay", leave=(c.Pull,))) == [0]  # the other one still waits for its answer


def test_what_only_a_version_could_continue_begins_anew_when_that_is_gone():
    run = Scripted(spec(provisioning=policy("provisioning", "static", count=1), replica_batch=8))
    given = run.go(c.Tick(), leave=(c.Route, c.Step))
    running = [ref.trajectory for ref in of(c.Route, given)[0].trajectories]
    finished, left = running[:4], running[4:]
    run.go(*(c.Finished("r0", name, 3) for name in finished), leave=(c.Route,))  # version 1 is made of these
    assert run.view.published == 1
    given = run.down("replica", "r0", leave=(c.Pull, c.Abort))
    stranded = of(c.Pull, given)[-1]
    assert (stranded.version, stranded.reason.why) == (0, c.Why.STRANDED)
    given = run.go(c.PullFailed("r0", 0, "no relay and no checkpoint holds it"), leave=(c.Abort, c.Route))
    aborts = of(c.Abort, given)
    assert [(set(a.trajectories), a.reason.why) for a in aborts] == [(set(left), c.Why.VERSION_GONE)]
    routed = [ref.trajectory for route in of(c.Route, given) for ref in route.trajectories]
    assert not set(routed) & set(left)  # the store still holds what they had
    again = run.go(c.Discarded(aborts[0].seq), leave=(c.Route,))
    assert {ref.trajectory for route in of(c.Route, again) for ref in route.trajectories} >= set(left)


def test_a_version_that_another_replica_may_yet_get_is_not_gone():
    three = policy("provisioning", "static", count=3)
    run = Scripted(spec(provisioning=three, batching=policy("batching", "plain", samples=1), replica_batch=3, steps=20))
    run.go(c.Tick(), leave=(c.Pull, c.Route))
    one, other, serving = run.left
    run.left.clear()
    given = run.go(*run.answers(serving), leave=(c.Route,))
    running = [ref.trajectory for route in of(c.Route, given) for ref in route.trajectories]
    assert len(running) == 3
    run.go(*(c.Finished(serving.replica, name, 3) for name in running[:2]), leave=(c.Route, c.Pull))
    assert run.view.published == 1
    left = {name for name, state in run.controller.ledger.trajectories.items() if state.replica == serving.replica}
    run.down("replica", serving.replica, leave=("replica", c.Route, c.Pull))
    failed = c.PullFailed(one.replica, 0, "the relay has a newer one")
    assert not of(c.Abort, run.go(failed, leave=(c.Route, c.Pull)))
    again = of(c.Route, run.go(c.Pulled(other.replica, 0), leave=(c.Route, c.Pull)))
    assert left <= {ref.trajectory for route in again if route.replica == other.replica for ref in route.trajectories}


def test_a_replica_that_pulls_the_newest_is_not_told_to_pull_an_old_version_before_it_has_that():
    run = Scripted(spec(replica_batch=8))
    run.go(c.Tick(), leave=(c.Route, c.Step))
    routes = {route.replica: [ref.trajectory for ref in route.trajectories] for route in of(c.Route, run.left)}
    idle = c.Snapshot("r1", 0.0, 0, 0, 0, 0, 10_000)
    done = [("r0", name) for name in routes["r0"][:4]] + [("r1", name) for name in routes["r1"]]
    run.go(*(c.Finished(replica, name, 3) for replica, name in done), idle, leave=(c.Route, c.Pull))
    assert run.view.member("replica", "r1").pulling == 1
    run.down("replica", "r1", leave=(c.Route, c.Pull))  # its next process has no version yet
    newest = run.view.published
    assert run.view.member("replica", "r1").pulling == newest
    assert not versions(run.down("replica", "r0", leave=("replica", c.Route)))
    assert run.view.pooled_started
    assert 0 in versions(run.go(c.Pulled("r1", newest), leave=("replica", c.Route, c.Pull)))


def differed(run, replica="r0", leave=(c.Pull,)):
    line = "parameter 'w' of version 0, elements [0:1]: found the digest a in worker 0, expected b as published"
    return run.go(c.PullFailed(replica, 0, line, differs="w"), leave=leave)


def test_a_replica_whose_engine_has_other_weights_is_restarted_once_and_then_the_run_ends():
    run = one_replica_pulling()
    given = differed(run, leave=("replica", c.Pull))
    (restart,) = of(c.Restart, given)
    assert (restart.role, restart.id, restart.reason.why) == ("replica", "r0", c.Why.DIFFERS)
    assert restart.reason.numbers["version"] == 0
    assert not versions(run.later(60.0, leave=(c.Pull,)))  # nobody asks the process that is not to be trusted
    assert versions(run.catch_up("replica", leave=(c.Pull,))) == [0]
    given = differed(run)
    assert not of(c.Restart, given)
    assert run.view.failure.startswith(
        "replica r0 has other weights than were published, after a restart too: parameter 'w' of"
    )
    assert "version 0" in run.view.failure


def test_a_version_that_is_served_in_between_makes_up_for_other_weights():
    run = one_replica_pulling()
    assert of(c.Restart, differed(run))
    run.go(c.Pulled("r0", 0, compared=1.0), leave=(c.Pull, c.Route))
    run.down("replica", "r0", leave=(c.Pull,))
    assert of(c.Restart, differed(run))
    assert run.view.failure is None


def test_other_weights_of_one_replica_say_nothing_of_another():
    run = Scripted(spec())
    run.go(c.Tick(), leave=(c.Pull,))
    for replica in ("r0", "r1"):
        assert [(command.role, command.id) for command in of(c.Restart, differed(run, replica))] == [
            ("replica", replica)
        ]
    assert run.view.failure is None


def test_a_replica_that_is_lost_meanwhile_is_not_restarted_again_for_its_weights():
    run = one_replica_pulling()
    run.down("replica", "r0", leave=("replica", c.Pull))
    assert not of(c.Restart, differed(run))


def test_a_pull_interrupts_only_what_runs_under_older_versions_than_a_replica_has_room_for():
    mixes = {"admission": policy("admission", "bounded", bound=4), "sync": policy("sync", "interrupting")}
    one = policy("provisioning", "static", count=1)
    run = Scripted(spec(**mixes, provisioning=one, replica_batch=12, replica_versions=2, steps=9))
    under, version, stopped = {}, None, []

    def take(commands):
        nonlocal version
        for command in commands:
            if isinstance(command, c.Pull):
                version = command.version
            elif isinstance(command, c.Route):
                under.update({ref.trajectory: version for ref in command.trajectories})
            elif isinstance(command, c.Interrupt):
                stopped.append((version + 1, {under.pop(name) for name in command.trajectories}))
                assert version - 1 not in under.values(), "some under the same version were left"

    take(run.go(c.Tick(), leave=(c.Route,)))
    for published in (1, 2, 3, 4):
        batch = sorted(under, key=lambda name: (-under[name], name))[:4]
        for name in batch:
            del under[name]
        take(run.go(*(c.Finished("r0", name, 3) for name in batch), leave=(c.Route,)))
        assert run.view.published == version == published
        assert set(under.values()) <= {published - 1, published}
    assert stopped == [(2, {0}), (3, {1}), (4, {2})]


def test_at_a_barrier_a_replica_that_comes_up_in_the_middle_of_a_batch_takes_what_waits():
    barrier = {"sync": policy("sync", "barrier"), "admission": policy("admission", "on-policy"), "batch_groups": 8}
    run = Scripted(spec(**barrier, buffer_groups=None, replica_batch=4))
    run.go(c.Tick(), leave=(c.Route,))
    run.down("replica", "r0", leave=(c.Route, "replica"))
    run.forget(c.Route)
    assert run.controller.fleet.replicas["r1"].assigned.states
    given = run.catch_up("replica", leave=(c.Route,))
    assert [(pull.replica, pull.reason.why) for pull in of(c.Pull, given)] == [("r0", c.Why.BEHIND)]
    assert {route.replica for route in of(c.Route, given)} == {"r0"}
