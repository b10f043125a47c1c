"""``metrics.jsonl`` outlives its driver: a full disk cuts a line, and the next driver goes on behind the last whole one."""

import pytest

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.figures.metrics import MetricsObserver, read_metrics

WHOLE = '{"kind": "step", "t": 1.0, "at": 2.0, "step": 1, "version": 1}\n'


@pytest.mark.parametrize("half", ["", '{"kind": "st', WHOLE[:-1]])
@pytest.mark.parametrize("before", ["", WHOLE])
def test_the_next_driver_goes_on_behind_the_last_whole_line(tmp_path, before, half):
    path = tmp_path / "metrics.jsonl"
    path.write_text(before + half)
    observer = MetricsObserver(path)
    run = Controller(build_spec(validate([("test", {"app": "laminar"})])), relays=1).view
    observer.observe(3.0, [c.Stepped(2, {"loss": 0.5})], [], run)
    observer.close()
    assert path.read_text().startswith(before)
    assert [row["version"] for row in read_metrics(path)] == ([1, 2] if before else [2])


@pytest.mark.parametrize("line", ["garbage", "[1]", '{"step": 3}'])
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{WHOLE}{line}\n{WHOLE}")
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl, line 2: found .*, expected a line of metrics"):
        read_metrics(path)
