"""Replicas that are started and stopped in mid-run, machines that are given up, backlogs in parts: every invariant holds."""

from dataclasses import dataclass
from random import Random

from worlds import expected, patient, play, policy, seeds, world

from tailrace import contracts as c
from tailrace.fuzz.draw import draw_case


@dataclass(frozen=True)
class Tides(c.ProvisioningPolicy):
    """Keep as many replicas as a random number says that depends on the trainer's version."""

    seed: int
    most: int = 5

    def plan(self, view):
        staying = [member for member in view.of("replica") if member.health is not c.Health.STOPPING]
        wanted = Random(f"{self.seed} {view.progress.version}").randint(1, self.most)
        if len(staying) < wanted:
            return [c.StartReplica()] * (wanted - len(staying))
        return [c.StopReplica(member.id) for member in staying[wanted:]]


def test_replicas_come_and_go():
    started = stopped = 0
    for seed in seeds(30):
        played = world(seed, spec={"provisioning": Tides(seed)})
        play(seed, played, gives_up=True)
        commands = [command for _, _, commands in played.simulation.log.instants for command in commands]
        started += sum(isinstance(command, c.Start) for command in commands)
        stopped += sum(isinstance(command, c.Stop) for command in commands)
    assert stopped > expected(10)
    assert started > expected(90)


def placed(played, machines):
    """Members stand on machines, at random among those that their place allows."""
    random, stands = Random(played.case.seed), {}

    def machine_of(role, id_, incarnation, place):
        fits = [machine for machine in machines if machine not in place.avoid] or machines
        stands[role, id_, incarnation] = random.choice(fits)
        return stands[role, id_, incarnation]

    played.simulation.host._machine_of = machine_of
    return stands


def test_machines_are_given_up_with_all_their_members():
    machines = [f"m{index}" for index in range(4)]
    given_up = 0
    recovery = policy("recovery", "isolate", max_restarts=90, trainer_restarts=90, data_restarts=90, machine_failures=2)
    for seed in seeds(40, fits=lambda case: len(case.faults) >= 3 and not case.machines):
        played = world(seed, spec={"recovery": recovery})
        stands = placed(played, machines)
        controller = play(seed, played, gives_up=True)
        lost = [machine.id for machine in controller.members.machines.values() if not machine.healthy]
        given_up += len(lost)
        if len(lost) < len(machines):
            alive = [state for state in controller.members.states.values() if state.health is c.Health.UP]
            assert not [state for state in alive if state.machine in lost], f"seed {seed}"
        assert stands
    assert given_up > expected(3)


def test_backlogs_are_routed_in_parts():
    for seed in seeds(40):
        play(seed, world(seed, spec={"cycle_trajectories": 3}), gives_up=True)


def test_in_parts_it_comes_to_the_same():
    """Without faults, as much is trained on, and nothing more is generated for it."""
    for seed in seeds(20, fits=patient):
        answers = draw_case(seed).environments.model_copy(update={"breaks": 0.0, "lost": 0.0, "unanswered": 0.0})
        fields = {"faults": (), "scoring_failures": 0.0, "unscored": 0.0, "refusals": 0.0, "environments": answers}
        whole, parts = world(seed, **fields), world(seed, spec={"cycle_trajectories": 3}, **fields)
        found = [play(seed, played).view.counts for played in (whole, parts)]
        assert found[0].trained == found[1].trained, f"seed {seed}"
        assert {len(played.checker.training.trained) for played in (whole, parts)} == {found[0].trained_trajectories}
