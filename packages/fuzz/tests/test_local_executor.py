"""A schedule that fuzzing found runs on the local executor too: the same pipeline, the same kills and hangs, nothing lost."""

import dataclasses

import pytest

pytest.importorskip("torch", reason="real members train a real model")

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.faulttol import parse_fault
from tailrace.fleetsim.fleet.quantities import samples
from tailrace.fuzz.as_run import run_arguments
from tailrace.fuzz.case import Case
from tailrace.fuzz.draw import draw_case
from tailrace.fuzz.faults import BreakKind
from tailrace.fuzz.trial import run_case
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.roles.calls import DATA_DOOR
from tailrace.pipeline.run.build import build_spec, check
from tailrace.pipeline.run.eventlog import EventLog
from tailrace.pipeline.run.replay import replay
from tailrace.pipeline.testing.small_run import events_of, make_deployment, make_files
from tailrace.runtime.executor.deployment import DATA
from tailrace.runtime.executor.executor import Executor
from tailrace.runtime.hosts.local import LocalHost


def finds(case, *, mixes):
    """Whether a seed's case kills or hangs a replica and the trainer, is small, evaluates, and goes on after each death."""
    struck = {fault.role for fault in case.faults if fault.kind is BreakKind.KILL}
    waits = any(fault.kind in (BreakKind.HANG, BreakKind.STALL) for fault in case.faults)  # deadlines of half a minute
    pipeline = case.pipeline
    small = pipeline.steps * pipeline.prompts_per_step * samples(case.spec()) <= 40 and 2 <= case.replicas <= 3
    goes_on = pipeline.recovery.options.get("max_restarts", 0) > 100
    filters = pipeline.batching.options["filter_equal_rewards"]  # the fake engine's rewards are all the same
    shaped = pipeline.sync.name == ("when-useful" if mixes else "on-idle") and pipeline.steps >= 3
    return (
        not waits
        and struck >= {"replica", "trainer"}
        and case.evaluation.size
        and small
        and goes_on
        and shaped
        and not filters
    )


def found(*, mixes):
    """The first such case, as its file says it."""
    case = next(case for case in map(draw_case, range(20_000)) if finds(case, mixes=mixes))
    case = Case.model_validate_json(case.to_json())
    assert run_case(case).ended == "finished"
    return case


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize(
    "mixes",
    [pytest.param(False, id="one version each"), pytest.param(True, id="mixed versions", marks=pytest.mark.deep)],
)
@pytest.mark.deep
def test_its_kills_and_hangs_lose_nothing_on_real_members(mixes, model, tmp_path):
    case = found(mixes=mixes)
    words = run_arguments(case)
    kills = [words[index + 1] for index, word in enumerate(words) if word == "--kill"]
    faults = [parse_fault(text) for text in kills]
    assert {fault.role for fault in faults} >= {"replica", "trainer"}

    spec = case.spec()
    controller = Controller(spec, relays=case.relays)
    name = f"fuzz-{tmp_path.name}"
    executor = Executor(LocalHost(), make_deployment(tmp_path, model, name=name, mixed_versions=mixes))
    try:
        with EventLog(tmp_path / "events.jsonl") as log:
            executor.run(controller, log, faults=faults)
        audit = DATA_DOOR.open(executor.host.caller(DATA)).audit()
    finally:
        executor.close()

    downs = events_of(tmp_path, c.Down)
    assert {down.role for down in downs} >= {"replica", "trainer"}
    counts, pipeline = controller.view.counts, case.pipeline
    assert controller.view.step == pipeline.steps
    assert counts.admitted == counts.trained + counts.filtered + counts.failed + counts.deferred
    assert counts.trained == pipeline.steps * pipeline.prompts_per_step
    assert audit["consumed"] == counts.trained * pipeline.samples_per_prompt
    assert not audit["consumed_twice"]
    assert not audit["inconsistent"]
    bound = spec.admission.gate(1).bound
    assert bound is None or max(controller.view.staleness_at_consumption) <= bound
    again = Controller(spec, relays=case.relays)
    replay(again, tmp_path / "events.jsonl")
    assert again.state() == controller.state()


@pytest.mark.parametrize("seed", range(40))
def test_every_case_is_a_command_of_tailrace_run(seed):
    case = draw_case(seed)
    words = run_arguments(case)
    assert words[:4] == ["run", "laminar", "--executor", "local"]
    settings = [words[index + 1] for index, word in enumerate(words) if word == "--set"]
    config = configuration("laminar", settings=(*settings, f"seed={seed}"))
    check(config)
    spec, expected = build_spec(config), case.spec()
    for axis in ("admission", "batching", "routing", "sync", "training", "provisioning", "recovery", "sampler"):
        # of the quick start: its model, and the devices of its trainer
        known = {"heads": 4, "trainer_devices": config.trainer.processes} if axis == "provisioning" else {}
        known = {name: value for name, value in known.items() if hasattr(getattr(expected, axis), name)}
        assert getattr(spec, axis) == dataclasses.replace(getattr(expected, axis), **known), axis
    assert type(spec.relocation) is type(expected.relocation)
    for name in ("steps", "batch_groups", "replica_batch", "pools", "cycle_s", "checkpoint_every", "eviction"):
        assert getattr(spec, name) == getattr(expected, name), name
    assert Controller(spec).refill.open_limit == Controller(expected).refill.open_limit
