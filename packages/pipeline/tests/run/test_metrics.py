"""``metrics.jsonl`` outlives its driver: a full disk cuts a line, and the next driver goes on behind the last whole one."""

import resource
from types import SimpleNamespace

import pytest

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.errors import RunDirectoryError, RunWriteError
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


@pytest.mark.parametrize("line", [b"garbage", b"[1]", b'{"step": 3}', b'{"kind": "\xff"}'])
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(WHOLE.encode() + line + b"\n" + WHOLE.encode())
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl, line 2: found .*, expected a line of metrics"):
        read_metrics(path)


def test_a_full_disk_leaves_whole_lines_and_is_closed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    observer = MetricsObserver(path)

    def write():
        run = SimpleNamespace(step_of=lambda version: version, evaluations=[])
        for version in range(1, 1000):
            observer.observe(3.0, [c.Stepped(version, {})], [], run)

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, before[1]))
    try:
        with pytest.raises(RunWriteError, match=r"metrics\.jsonl: could not be written: File too large"):
            write()
        assert path.read_bytes().endswith(b"}\n")
        observer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    versions = [row["version"] for row in read_metrics(path)]
    assert versions == list(range(1, len(versions) + 1))
    assert 0 < len(versions) < 999
