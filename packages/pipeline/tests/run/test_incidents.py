"""What a person hears of a run: each death with its cause and what follows, each recovery, each scripted fault."""

from tailrace import contracts as c
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.run.figures.incidents import Incidents
from tailrace.pipeline.run.figures.status import StatusObserver

FLEET = {
    "model": "Qwen2.5-7B",
    "trainer": {"gpus": 4},
    "rollout": {"gpus": 2, "max_running": 12, "start_s": 5.0, "restart_s": 20.0},
    "workload": {"response": [{"median": 400, "sigma": 0.9}]},
    "warm_up": 0,
    "steady": False,
}
SHAPE = {"steps": 6, "prompts_per_step": 4, "samples_per_prompt": 4, "prompts_per_replica": 4, "buffer_prompts": 16}


def restart(failures=1, allowed=3, role="replica", member="r0", why=c.Why.FAILED, **more):
    numbers = {"failures": failures, "allowed": allowed, **more}
    return c.Restart(1, role, member, reason=c.Reason(why, numbers=numbers))


def test_a_death_has_its_cause_and_the_restart_of_how_many_and_a_recovery_how_long_it_took():
    incidents = Incidents()
    died = c.Down("replica", "r0", "ValueError: head_dim=16 is not supported", c.Cause.BROKE)
    assert incidents.lines(10.0, [c.Tick(), died], [restart(2)]) == [
        "replica r0 broke: ValueError: head_dim=16 is not supported; restart 2 of 3"
    ]
    assert incidents.lines(15.0, [c.Down("replica", "r0", "silent for 60 s", c.Cause.SILENT)], [restart(3)]) == [
        "replica r0 did not answer: silent for 60 s; restart 3 of 3"
    ]
    assert incidents.lines(19.8, [c.Up("replica", "r0")], []) == ["replica r0 is back after 9.8 s"]
    assert incidents.lines(30.0, [c.Up("replica", "r0"), c.Up("relay", "0")], []) == []
    assert incidents.lines(31.0, [c.Up("trainer", "0", notes=("slow",))], []) == ["trainer 0: slow"]


def test_a_replica_that_waits_for_its_devices_is_said_to_wait_and_not_to_be_given_up():
    incidents, failed = Incidents(), {"r0": c.Reason(c.Why.FAILED, numbers={"failures": 1.0})}
    died = c.Down("replica", "r0", "gone", c.Cause.DIED)
    waits = "it begins anew once the trainer has left its devices"
    assert incidents.lines(1.0, [died], [], failed) == [f"replica r0 died: gone; {waits}"]
    assert incidents.lines(2.0, [c.Tick()], [], failed) == []
    assert incidents.lines(3.0, [], [restart(1)]) == []
    assert incidents.lines(5.0, [c.Up("replica", "r0")], []) == ["replica r0 is back after 4.0 s"]
    still = {"r0": c.Reason(c.Why.STILL, numbers={"still_s": 31.0, "limit_s": 30.0, "failures": 1.0})}
    assert incidents.lines(6.0, [c.Tick()], [], still) == [
        f"replica r0 stood still for 31 s with work in flight; {waits}"
    ]
    assert incidents.lines(8.0, [], [restart(why=c.Why.STILL, still_s=31.0, limit_s=30.0)]) == []
    assert incidents.lines(9.0, [c.Up("replica", "r0")], []) == ["replica r0 is back after 3.0 s"]


def test_what_follows_is_said_where_nothing_restarts():
    gone = c.Down("replica", "r1", "gone", c.Cause.DIED)
    assert Incidents().lines(1.0, [gone], []) == ["replica r1 died: gone; it is not restarted, others do its work"]
    assert Incidents().lines(1.0, [gone], [c.Fail(1, "x")]) == [
        "replica r1 died: gone; the run cannot go on without it"
    ]
    own = c.Restart(1, "replica", "r1", reason=c.Reason(c.Why.FAILED, numbers={"failures": 1}))
    assert Incidents().lines(1.0, [gone], [own]) == ["replica r1 died: gone; restart 1"]
    assert Incidents().lines(1.0, [c.Down("replica", "r1", "told", c.Cause.STOPPED)], []) == []


def test_members_that_the_controller_itself_takes_for_down_are_named():
    incidents = Incidents()
    assert incidents.lines(40.0, [], [restart(why=c.Why.STILL, still_s=31.4, limit_s=30.0)]) == [
        "replica r0 stood still for 31 s with work in flight; restart 1 of 3"
    ]
    assert incidents.lines(50.0, [c.Up("replica", "r0")], []) == ["replica r0 is back after 10.0 s"]
    moved = c.Restart(1, "relay", "1", reason=c.Reason(c.Why.MACHINE, "m7"))
    assert incidents.lines(60.0, [], [moved]) == ["relay 1 leaves machine m7, which is given up; it is restarted"]
    missed = c.Down("relay", "0", "its machine 0 is gone", c.Cause.MACHINE, "0")
    trainer = c.Restart(1, "trainer", "0", reason=c.Reason(c.Why.FAILED, numbers={"failures": 1}))
    assert incidents.lines(65.0, [missed], [trainer])[1:] == ["trainer 0 stood on a machine that is gone; restart 1"]
    assert incidents.lines(65.5, [], [trainer]) == []
    assert incidents.lines(66.0, [c.Up("trainer", "0")], []) == ["trainer 0 is back after 1.0 s"]
    damaged = c.Restart(1, "trainer", "0", reason=c.Reason(c.Why.DAMAGED, numbers={"version": 7}))
    down = c.Down("trainer", "0", "checksum of 7", c.Cause.CHECKPOINT)
    assert incidents.lines(70.0, [down], [damaged]) == [
        "trainer 0 could not load its checkpoint: checksum of 7; it starts from the checkpoint before version 7"
    ]


def test_a_resumed_run_is_one_line_and_not_one_for_each_member():
    incidents = Incidents()
    incidents.lines(1.0, [c.Down("relay", "0", "gone", c.Cause.DIED)], [restart(role="relay", member="0")])
    again = [c.Restart(n, "replica", f"r{n}", reason=c.Reason(c.Why.LOST_IN_CRASH)) for n in range(3)]
    assert len(incidents.lines(2.0, [c.Resumed()], again)) == 1
    assert incidents.lines(3.0, [c.Up("relay", "0")], []) == []


def test_a_verifier_that_breaks_is_told_at_its_first_failure_and_whenever_they_have_doubled():
    incidents = Incidents()
    told = [line for n in range(100) for line in incidents.lines(n, [c.ScoringFailed(f"{n}.0", "x hung")], [])]
    assert told[:2] == [
        "trajectory 0.0 could not be scored: x hung",
        "trajectory 1.0 could not be scored (failure 2): x hung",
    ]
    assert len(told) == 7


def test_scripted_faults_and_their_recoveries_reach_the_status_of_a_run(tmp_path):
    faults = ["replica:0@30s", "hang:relay@40s", "stall:replica:1@step2"]
    config = validate(
        [
            (
                "test",
                {
                    "app": "laminar",
                    "task": {"name": "long-chain-sum", "held_out_size": 12},
                    "pipeline": SHAPE,
                    "rollout": {"max_tokens": 8192},
                    "fleet": FLEET,
                    "faults": faults,
                },
            )
        ]
    )
    status = StatusObserver(tmp_path / "status.json", app="x", run_dir=tmp_path, simulated=True)
    Simulation(build_fleet(config), observers=(status,)).run()
    told = [incident["text"] for incident in status.status.incidents]
    assert status.status.incidents_total == len(told)
    for said in (
        "scripted fault: replica r0 is killed",
        "scripted fault: relay 0 is stopped, and lives on",
        "scripted fault: replica r1 has its engine stopped",
    ):
        assert said in told
    for member, what in (("replica r0", "died"), ("relay 0", "did not answer"), ("replica r1", "stood still")):
        (death,) = [line for line in told if line.startswith(f"{member} {what}")]
        assert "restart 1 of 3" in death
        assert any(line.startswith(f"{member} is back after ") for line in told[told.index(death) :])


def test_a_start_that_was_chosen_says_what_it_predicts_once():
    numbers = {"replicas": 2, "devices": 4, "generation_s": 65.0, "training_s": 66.25}
    reason = c.Reason(c.Why.ALLOCATED, numbers=numbers)
    starts = [c.Start(number, "replica", f"r{number}", reason=reason, tp=4) for number in range(2)]
    (said,) = Incidents().lines(0.0, [], starts)
    assert said.startswith("the run starts with 2 replicas of 4 devices each: ")
    assert said.endswith("predicted are 65.0 s of generation and 66.2 s of training an iteration")


def test_a_replica_that_comes_or_leaves_says_why():
    numbers = {"generation_s": 91.25, "training_s": 50.0}
    slow = c.Reason(c.Why.GENERATION_SLOWER, numbers={**numbers, "saved_s": 30.0})
    fast = c.Reason(c.Why.TRAINING_SLOWER, numbers={"generation_s": 12.0, "training_s": 50.0, "cost_s": 6.0})
    commands = [c.Start(1, "replica", "r2", reason=slow), c.Stop(2, "replica", "r1", reason=fast)]
    assert Incidents().lines(5.0, [], [c.Start(0, "replica", "r0"), *commands]) == [
        "replica r2 is added: generation of an iteration took 91.2 s, training 50.0 s",
        "replica r1 is removed: generation of an iteration took 12.0 s, training 50.0 s",
    ]


def test_a_fleet_never_shrinks_without_a_line():
    incidents = Incidents()
    gone = c.Down("replica", "r1", "its device is gone", c.Cause.BROKE)
    numbers = {"failures": 4.0, "allowed": 3.0}
    moved = c.Restart(1, "replica", "r1", reason=c.Reason(c.Why.FAILED, numbers=numbers))
    assert incidents.lines(1.0, [gone], [moved]) == [
        "replica r1 broke: its device is gone; it failed 4 times in a row there, so it starts on another machine"
    ]
    once = c.Restart(1, "replica", "r1", reason=c.Reason(c.Why.FAILED, numbers={"failures": 1.0, "allowed": 0.0}))
    assert incidents.lines(1.0, [gone], [once])[0].endswith("; it failed once there, so it starts on another machine")
    for left, does in ((2.0, "2 replicas are left to do its work"), (1.0, "1 replica is left to do its work")):
        stop = c.Stop(2, "replica", "r1", reason=c.Reason(c.Why.FAILED, numbers={**numbers, "left": left}))
        assert incidents.lines(2.0, [gone], [stop]) == [
            f"replica r1 broke: its device is gone; it is given up after 4 failures in a row, and {does}"
        ]
    still = c.Reason(c.Why.STILL, numbers={"still_s": 31.4, "limit_s": 30.0, **numbers, "left": 1.0})
    (said,) = incidents.lines(3.0, [], [c.Stop(3, "replica", "r2", reason=still)])
    assert said.startswith(
        "replica r2 stood still for 31 s with work in flight; it is given up after 4 failures in a row, "
    )
    assert said.endswith("1 replica is left to do its work")
    planned = c.Stop(4, "replica", "r3", reason=c.Reason(c.Why.PLANNED))
    assert incidents.lines(4.0, [], [planned]) == ["replica r3 is removed, as provisioning planned"]
    assert incidents.lines(5.0, [], [planned]) == []  # told again, as the task restarts
