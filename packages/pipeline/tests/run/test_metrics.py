"""``metrics.jsonl`` outlives its driver: a full disk cuts a line, and the next driver goes on behind the last whole one."""

import resource
from types import SimpleNamespace

import pytest

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.controller.evaluations import EvaluationResult
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


def viewed(**of):
    """A run of one trajectory in each batch, whose evaluations are these."""
    member = SimpleNamespace(version=0, completed_at=0, tokens=7)
    counts = SimpleNamespace(filtered=0)
    return SimpleNamespace(
        **{"step_of": lambda version: version, "batch": lambda _: [member], "evaluations": [], "version": 0, **of},
        buffered=0, pooled=0, counts=counts,
    )  # fmt: skip


def test_what_a_driver_that_died_did_not_come_to_is_made_good_from_the_log(tmp_path):
    """It died over a step that was in the log, and in the middle of the next. That one's row said nothing of its batch."""
    path, told = tmp_path / "metrics.jsonl", []
    evaluated = viewed(evaluations=[EvaluationResult(1, "sampled", 1)])
    log = [
        (1.0, [], [c.Step(1, 1, (("0.0",),))], viewed()),
        (2.0, [c.Stepped(1, {"loss": 0.5})], [c.Step(2, 2, (("1.0",),))], viewed()),
        (3.0, [c.Stepped(2, {"loss": 0.4})], [], evaluated),
        (4.0, [c.Tick()], [c.Step(3, 3, (("2.0",),))], evaluated),
    ]
    first = MetricsObserver(path)
    for instant in log[:2]:
        first.observe(*instant)
    first.close()
    before = path.read_bytes()
    second = MetricsObserver(path)
    for instant in log:
        second.replay(*instant)
    assert path.read_bytes() == before  # the log may be one that cannot be gone on with
    second.begin(SimpleNamespace(log=lambda step, figures: told.append((step, figures.get("step/loss")))))
    second.observe(5.0, [c.Stepped(3, {"loss": 0.3})], [], evaluated)
    second.close()
    rows = read_metrics(path)
    assert [(row["kind"], row["t"], row["version"]) for row in rows] == [
        ("step", 2.0, 1), ("step", 3.0, 2), ("evaluation", 3.0, 1), ("step", 5.0, 3),
    ]  # fmt: skip
    assert [row.get("response_tokens") for row in rows] == [7, 7, None, 7]
    assert told == [(2, 0.4), (1, None), (3, 0.3)]


def test_an_evaluation_of_which_nothing_could_be_scored_has_no_reward(tmp_path):
    """A verifier that failed is no reward of 0."""
    observer = MetricsObserver(tmp_path / "metrics.jsonl")
    observer.observe(1.0, [], [], viewed(evaluations=[EvaluationResult(1, "sampled", 1, failed=3)]))
    observer.close()
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    figures = ("reward", "accuracy", "problems", "failed", "length_p50", "length_p99")
    assert [row[name] for name in figures] == [None, None, 0, 3, None, None]
