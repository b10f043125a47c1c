"""Modelled members are struck in their phases, and nothing is lost of it."""

import pytest

from tailrace.contracts import Down, Lent, Offloaded, Returned, Stepped, Struck, Up
from tailrace.faulttol.injection import LENDING, PHASES
from tailrace.fleetsim import simulate
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.results.advice import advice
from tailrace.fleetsim.results.watch import watch
from tailrace.pipeline.config.loading import validate

FLEET = {
    "model": "Qwen2.5-7B",
    "trainer": {"gpus": 4},
    "rollout": {"gpus": 4, "tensor_parallel": 1, "restart_s": 20.0},
    "delays": {"hang_s": 30.0, "trainer_restart_s": 15.0},
    "workload": {"response": {"median": 800.0, "sigma": 0.8}},
}


def config(*faults, **changes):
    pipeline = {"steps": 6, "prompts_per_step": 8, "samples_per_prompt": 4, "prompts_per_replica": 8}
    content = {
        "app": "laminar",
        "pipeline": pipeline,
        "rollout": {"max_tokens": 4096},
        "fleet": FLEET,
        "faults": list(faults),
    }
    return validate([("test", {**content, **changes})])


def struck(result):
    return [(now, event) for now, event in result.events if isinstance(event, Struck)]


@pytest.mark.parametrize("phase", [phase for phase in PHASES["trainer"] if phase not in LENDING])
@pytest.mark.parametrize("kind", ["", "hang:", "raise:"])
def test_a_trainer_is_struck_in_a_phase(phase, kind):
    faults = [f"{kind}trainer@step1:{phase}"] + (["trainer@step3:fetch"] if phase == "load" else [])
    result = simulate(config(*faults))
    assert result.failure is None
    assert result.lost_trajectories == 0
    assert {event.fault for _, event in struck(result)} == set(faults)
    ups = [now for now, event in result.events if isinstance(event, Up) and event.role == "trainer"]
    (struck_s,) = [now for now, event in struck(result) if event.phase == phase]
    next_up_s = min(now for now in ups if now > struck_s)
    assert not [now for now, event in result.events if isinstance(event, Stepped) and struck_s < now < next_up_s]
    assert result.batches[-1].version >= 6


@pytest.mark.parametrize("phase", [phase for phase in PHASES["replica"] if phase not in LENDING])
def test_a_replica_is_struck_in_a_phase(phase):
    faults = [f"replica@step1:{phase}", f"hang:replica@step1:{phase}"]
    result = simulate(config(*faults))
    assert result.failure is None
    assert result.lost_trajectories == 0
    assert {event.fault for _, event in struck(result)} == set(faults)
    assert [event for _, event in result.events if isinstance(event, Down) and event.role == "replica"]


@pytest.mark.parametrize("phase", sorted(LENDING))
@pytest.mark.parametrize("kind", ["", "hang:"])
def test_a_member_is_struck_as_devices_change_hands(kind, phase):
    role = "trainer" if phase in PHASES["trainer"] else "replica"
    fleet = {**FLEET, "placement": "colocated", "trainer": {}}
    pipeline = {"steps": 6, "prompts_per_step": 8, "samples_per_prompt": 4, "prompts_per_replica": 8, "mode": "sync"}
    pipeline |= {"sync": "when-drained", "relocation": "none"}
    fault = f"{kind}{role}@step1:{phase}"
    result = simulate(config(fault, fleet=fleet, pipeline=pipeline))
    assert result.failure is None
    assert result.lost_trajectories == 0
    assert [event.fault for _, event in struck(result)] == [fault]
    assert len([event for _, event in result.events if isinstance(event, Stepped)]) >= 6
    assert {Lent, Offloaded, Returned} <= {type(event) for _, event in result.events}


def test_the_same_faults_at_random_strike_again():
    made = [config(mtbf_s=6.0, fault_seed=seed) for seed in (0, 0, 1)]
    first, again, other = (simulate(one) for one in made)
    assert len(struck(first)) > 2
    assert first.events.to_bytes() == again.events.to_bytes()
    assert [event.fault for _, event in struck(first)] != [event.fault for _, event in struck(other)]
    assert first.lost_trajectories == other.lost_trajectories == 0


@pytest.mark.parametrize("fault", ["controller@5s", "controller@step2"])
def test_what_no_simulation_has_is_refused(fault):
    with pytest.raises(FleetError, match=f"{fault}: found a simulated run, expected a real one"):
        simulate(config(fault))


def test_faults_that_did_not_strike_are_told():
    watched = watch(config("replica@step1", "replica:9@step1"))
    assert any(line == "Scripted faults did not strike: replica:9@step1." for line in advice(watched))
