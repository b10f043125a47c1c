"""The same figures of a real run and of a simulated one."""

import json

import pytest

from tailrace import contracts as c
from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.profile.truth import Figures, compare, mean_of, real_figures
from tailrace.pipeline.run.directory import RunDirectory, write_json
from tailrace.pipeline.run.eventlog import EventLog


@pytest.fixture
def run(tmp_path):
    """Four batches of two trajectories, two seconds apart after a slow first one."""
    directory = RunDirectory.create(tmp_path / "run", {})
    with EventLog(directory.events) as log:
        for version, now in ((1, 60.0), (2, 62.0), (3, 64.0), (4, 66.0)):
            log.append(now - 0.5, [c.Tick()], [])
            log.append(now, [c.Stepped(version, {}, version)], [])
    rows = [
        {"prompt": [1] * 10, "tokens": [1] * (5 * version), "consumed_version": version, "oldest_version": oldest}
        for version, oldest in ((1, 0), (1, 0), (2, 1), (2, 0), (3, 1), (3, 0), (4, 3), (4, 2))
    ]
    directory.trained.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_json(directory.summary, {"repacks": 3})
    return directory


def test_what_comes_after_the_warm_up_counts(run):
    assert real_figures(run, 2) == Figures(
        tokens_per_s=(2 * (10 + 15) + 2 * (10 + 20)) / 4.0, step_s=2.0, staleness=(1 + 2 + 0 + 1) / 4, repacks=3.0
    )


@pytest.mark.parametrize("warm_up", [0, 4, 9])
def test_a_run_without_a_batch_that_counts_is_refused(run, warm_up):
    with pytest.raises(ProfileError, match="found 4 batches, expected more than"):
        real_figures(run, warm_up)


@pytest.mark.parametrize(
    ("simulated", "real", "holds"),
    [
        (Figures(100.0, 1.0, 1.0, 8.0), Figures(100.0, 1.0, 1.0, 8.0), (True, True, True)),
        (Figures(114.0, 1.0, 1.45, 4.0), Figures(100.0, 1.0, 1.0, 8.0), (True, True, True)),
        (Figures(116.0, 1.0, 0.4, 17.0), Figures(100.0, 1.0, 1.0, 8.0), (False, False, False)),
        (Figures(84.0, 1.0, 1.0, 0.0), Figures(100.0, 1.0, 1.0, 1.0), (False, True, True)),
        (Figures(100.0, 1.0, 1.0, 3.0), Figures(100.0, 1.0, 1.0, 0.0), (True, True, False)),
    ],
)
def test_limits(simulated, real, holds):
    assert tuple(verdict.holds for verdict in compare(simulated, real)) == holds


def test_means():
    assert mean_of([Figures(1.0, 2.0, 3.0, 4.0), Figures(3.0, 4.0, 5.0, 8.0)]) == Figures(2.0, 3.0, 4.0, 6.0)
