"""Status, summary and report say the same of a run: while it goes on, after its end, and after its driver's death."""

import dataclasses

import pytest

from tailrace.pipeline.run.directory import read_json
from tailrace.pipeline.run.figures.status import RunStatus, StatusObserver
from tailrace.pipeline.run.figures.summary import summarise
from tailrace.report import run_tables
from tailrace.report.figures.held_out import results
from tailrace.report.figures.prompts import PromptFates
from tailrace.report.final_status import standing
from tailrace.report.record import read_record

from .conftest import LAMINAR, STALEFLOW, a_run, configured, enriched

FIGURES = (
    "step", "steps", "version", "reward", "accuracy", "accuracy_before", "held_out_reward", "held_out_reward_before",
    "staleness_mean", "staleness_max", "bound", "partial_rollout", "interrupting_pulls", "migrated", "repacks",
    "replica_restarts", "restarts", "trained_tokens_per_s", "failed_groups", "contradictions",
)  # fmt: skip
PIPELINES = {"laminar": LAMINAR, "staleflow": STALEFLOW}
FAULTS = ["replica:r1@30s", "trainer@step3", "scorer@50s", "data@60s"]


class Status(StatusObserver):
    """A status that is written seldom, as that of a busy run. With the trainer's figures, which only real ones have."""

    def __init__(self, directory, **more):
        self.directory, self.compared = directory, set()
        super().__init__(directory.status, app="x", run_dir=directory.root, **more)

    def observe(self, now, events, commands, run):
        super().observe(now, [enriched(event) for event in events], commands, run)


class Compared(Status):
    """The same, compared with the report at every step while the run goes on."""

    def tick(self, now, executor):
        super().tick(now, executor)
        if self.status.step not in self.compared:
            self.compared.add(self.status.step)
            assert figures(self.status) == figures(standing(read_record(self.directory), self.status))


def figures(status):
    found = {name: getattr(status, name) for name in FIGURES}
    return {name: round(value, 9) if isinstance(value, float) else value for name, value in found.items()}


def written(directory):
    return RunStatus(**read_json(directory.status))


@pytest.mark.parametrize("name", PIPELINES)
def test_while_it_goes_on(tmp_path, name):
    seen = []

    def observe(directory):
        seen.append(Compared(directory))
        return seen[0]

    a_run(tmp_path / "run", configured(PIPELINES[name], faults=FAULTS), observe=observe)
    assert seen[0].compared >= {0, 1, 3, 5}


@pytest.mark.parametrize("name", PIPELINES)
def test_after_its_end(tmp_path, name):
    seen = []

    def observe(directory):
        seen.append(Status(directory, every_s=3600.0))
        return seen[0]

    config = configured(PIPELINES[name], faults=FAULTS)
    directory, simulation = a_run(tmp_path / "run", config, observe=observe)
    seen[0].phase("done")
    status, record, run = written(directory), read_record(directory), simulation.controller.view
    assert (status.step, status.phase, status.over) == (6, "done", True)
    shown = standing(record, status)
    assert figures(shown) == figures(status)
    for each in (status, shown):
        assert (each.replicas, each.members, each.waits, each.down, each.generated_tokens_per_s) == (
            [],
            [],
            [],
            [],
            0.0,
        )

    audit = {"consumed": run.counts.trained_trajectories, "consumed_twice": []}
    lengths = [length for batch in record.batches for length in batch.lengths]
    summary = summarise(
        config, run, [], audit=audit, lengths=lengths, wall_s=9.0, training_s=record.training_s, extra={}
    )
    facts, measured = dict(run_tables.facts(record)), results(record)
    assert summary["evaluation"] == measured.plain()
    assert summary["eval_accuracy_after"] == status.accuracy == measured.after.accuracy.value
    assert summary["eval_accuracy_before"] == status.accuracy_before == measured.before.accuracy.value
    assert (summary["steps"], facts["steps"]) == (status.step, f"{status.step} of {status.steps}")
    assert summary["trained_trajectories"] == int(facts["trajectories trained on"].replace(",", "")) == 96
    assert summary["trained_tokens"] == sum(lengths) == int(facts["response tokens trained on"].replace(",", ""))
    assert summary["tokens_per_s"] == round(shown.trained_tokens_per_s, 2)
    assert facts["trained tokens per second"] == f"{summary['tokens_per_s']:,.0f}"
    bound = "no bound" if status.bound is None else f"bound {status.bound}"
    assert facts["staleness"] == f"mean {summary['staleness_mean']:.2f}, max {summary['staleness_max']}, {bound}"
    assert (round(status.staleness_mean, 4), status.staleness_max) == (
        summary["staleness_mean"],
        summary["staleness_max"],
    )
    assert summary["replica_restarts"] == status.replica_restarts == int(facts["replica restarts"]) == 1
    assert summary["restarts"] == {role: int(facts.get(f"{role} restarts", 0)) for role in summary["restarts"]}
    assert (summary["repacks"], summary["interrupting_pulls"]) == (status.repacks, status.interrupting_pulls)
    assert summary["migrated_trajectories"] == status.migrated
    assert summary["regenerated_trajectories"] == int(facts["trajectories regenerated"])
    fates = PromptFates.of(record.folds.run)
    became = summary["prompts"]
    assert (became["admitted"], became["trained"], became["lost"]) == (fates.admitted, fates.trained, fates.lost)
    assert (became["filtered"], became["failed_because"]) == (fates.filtered, fates.failed)
    assert became["failed"] == sum(fates.failed.values())
    assert summary["failed_groups"] == status.failed_groups


def test_after_its_driver_died(tmp_path):
    """What the driver wrote last is minutes old, and lists replicas at work."""
    directory, simulation = a_run(tmp_path / "run", until_step=4, observe=lambda at: Status(at, every_s=3600.0))
    old, record, run = written(directory), read_record(directory), simulation.controller.view
    assert (old.step, old.over) == (0, False)
    assert old.replicas
    found = standing(record, old)
    assert (found.step, found.version, found.over, found.replicas) == (4, run.version, True, [])
    assert dict(run_tables.facts(record))["steps"] == f"{found.step} of {found.steps}"
    assert (found.phase, found.pid) == (old.phase, old.pid)
    assert dataclasses.replace(found, updated_at=0.0) != dataclasses.replace(old, updated_at=0.0)
