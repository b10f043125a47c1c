"""A trainer that was lost goes on from published weights that are newer than its checkpoint, in real runs."""

from dataclasses import replace

import pytest

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.pipeline.run.audit import updates
from tailrace.pipeline.run.eventlog import EventLog, read_log
from tailrace.pipeline.run.figures.incidents import Incidents
from tailrace.pipeline.testing.real_runs import Striking
from tailrace.pipeline.testing.small_run import (
    GROUPS,
    LOG,
    SAMPLES,
    check_run,
    commands_of,
    events_of,
    make_deployment,
    make_files,
    make_spec,
    policy,
)
from tailrace.runtime.executor.deployment import TRAINER
from tailrace.runtime.executor.executor import Executor
from tailrace.runtime.hosts.local import LocalHost

STEPS = 12


class Kills(Striking):
    """Kills a trainer once two versions more are published than it has full state of, and the one after it likewise."""

    def __init__(self, controller):
        self.controller, self.struck = controller, 0

    def observe(self, now, events, commands, run):
        trainer = self.controller.trainer
        again = 0 if trainer.durable == 0 else 1
        if trainer.up and self.struck == again and trainer.published - trainer.durable >= 2 and trainer.durable >= 0:
            self.struck += 1
            self.strike(TRAINER, "0")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize("peers", [False, pytest.param(True, marks=pytest.mark.deep)])
@pytest.mark.cases(1)
def test_killed_between_full_states_it_repeats_no_batch_that_its_weights_hold(tmp_path, model, peers):
    """It saves weights at each step, and full state only as it comes up. It is killed twice, two published versions later."""
    count = {"provisioning": policy("provisioning", "static", count=3)} if peers else {}
    controller = Controller(make_spec(full_checkpoint_every=50, steps=STEPS, newer_weights=True, peers=peers, **count))
    deployment = make_deployment(tmp_path, model, peers=peers)
    trainer = deployment.roles[TRAINER]
    settings = replace(trainer.settings, weights_are_taken=True)
    trainer = replace(trainer, arguments={**trainer.arguments, "settings": settings})
    deployment = replace(deployment, roles={**deployment.roles, TRAINER: trainer})
    kills = Kills(controller)
    executor = kills.executor = Executor(LocalHost(), deployment, observers=[kills])
    try:
        with EventLog(tmp_path / LOG) as log:
            executor.run(controller, log)
        check_run(
            controller, executor, tmp_path
        )  # and that the tokens of each version are of the weights that are saved as it
    finally:
        executor.close()
    restarts = [one for one in commands_of(tmp_path, c.Restart) if one.role == TRAINER]
    ups = {event.answers: event for event in events_of(tmp_path, c.Up) if event.role == TRAINER}
    full = {event.version for event in events_of(tmp_path, c.Durable) if event.full}
    assert len(restarts) == kills.struck > 0
    assert {one.version for one in restarts} <= full
    for one in restarts:
        up = ups[one.seq]
        assert up.version == one.weights.version > one.version
        (note,) = up.notes
        assert note.startswith(f"it took the weights of version {up.version} (digest ")
        assert f"are of checkpoint {one.version}: {one.weights.steps} step" in note
        assert any(f"from {address};" in note for address in one.weights.sources)
        assert f"trainer 0: {note}" in controller.view.noted
    made = updates(read_log(tmp_path / LOG))
    assert sum(len(update.trajectories) for update in made) == STEPS * GROUPS * SAMPLES
    incidents, lines = Incidents(), []
    for instant in read_log(tmp_path / LOG):
        lines += incidents.lines(instant.now, instant.events, instant.commands)
    assert sum("if others have them" in line for line in lines) == len(restarts)
