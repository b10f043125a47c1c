"""The report: one file without a network, every section, runs that did not end, and text that is only text."""

import json
from html.parser import HTMLParser

import pytest

from tailrace import contracts as c
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.controller.controller import Controller
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.directory import RunDirectory, write_json
from tailrace.pipeline.run.eventlog import EventLog
from tailrace.pipeline.run.metrics import MetricsObserver, read_metrics
from tailrace.pipeline.run.report import write_report
from tailrace.pipeline.run.reporting.accuracy import Measured, Results, results_of_summary
from tailrace.pipeline.run.reporting.headline import gain
from tailrace.pipeline.run.reporting.record import read_record, standing_steps
from tailrace.pipeline.testing import World

SECTIONS = {"learning", "timeline", "staleness", "throughput", "trainer", "events", "samples", "configuration"}
CHARTS = {"accuracy", "reward", "timeline", "staleness", "staleness-steps", "lengths", "lengths-steps", "throughput"}
CHARTS |= {"staleness-batches", "lengths-offered", "buffer", "loss", "clip_fraction", "approx_kl", "grad_norm"}
EVIL = "</script><script>alert(1)</script><img src=http://evil.example/x>"


def config():
    return RunConfig.model_validate(
        {
            "task": {"name": "long-chain-sum", "held_out_size": 12},
            "pipeline": {
                "steps": 4,
                "prompts_per_step": 4,
                "samples_per_prompt": 4,
                "prompts_per_replica": 4,
                "buffer_prompts": 16,
            },
            "rollout": {"replicas": 3},
            "evaluation": {"every": 2},
        }
    )


class _Recorder:
    """Writes what an executor writes, while a world runs."""

    def __init__(self, directory, controller):
        self.controller, self.spec = controller, controller.spec
        self.log = EventLog(directory.events)
        self.metrics = MetricsObserver(directory.metrics, None)

    def __getattr__(self, name):
        return getattr(self.controller, name)

    def handle_all(self, events, now):
        return [command for event in events for command in self.handle(event, now)]  # as the executors do

    def handle(self, event, now):
        if isinstance(event, c.Stepped):
            figures = {"loss": 0.1, "clip_fraction": 0.0, "approx_kl": 0.0, "grad_norm": 1.0, "reward_mean": 0.5}
            event = c.Stepped(event.version, {**figures, "wall_s": 0.2}, event.answers)
        if isinstance(event, c.Snapshot):
            event = c.Snapshot(event.replica, event.kv, event.running, 0, 0, event.version, event.last_seq, 100.0)
        self.log.append(now, event)
        commands = self.controller.handle(event, now)
        self.metrics.observe(now, event, commands, self.controller)
        return commands

    def close(self):
        self.log.close()
        self.metrics.close()


def a_run(root, *, finished=True, resumed=False, kill_rate=0.05):
    """A run directory as a run leaves it."""
    directory = RunDirectory.create(root, config().model_dump(mode="json"))
    recorder = _Recorder(directory, Controller(build_spec(config())))
    world = World(recorder, 4, kill_rate=kill_rate)
    if resumed:
        world.run(stop_after=250)
        world.deliver(world.crash())
    world.run(stop_after=None if finished or resumed else 250)
    recorder.close()
    if finished:
        write_json(
            directory.summary, {"wall_s": 100.0, "tokens_per_s": 10.0, "lost_trajectories": 0, "consumed_twice": 0}
        )
        row = {"trajectory": "0.0", "prompt": [1, 2], "tokens": [3], "versions": [0], "reward": 1.0, "finish": EVIL}
        directory.trained.write_text(json.dumps(row) + "\n")
    directory.unlock()
    return directory


class _Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.ids, self.tags, self.text = [], set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.append(tag)
        self.links += [found[key] for key in ("src", "href", "action", "data", "srcset") if key in found]
        self.ids |= {found["id"]} if "id" in found else set()

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self):
        return " ".join(" ".join(text for text in self.text if len(text) < 100_000).split())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = a_run(tmp_path_factory.mktemp("runs") / "finished")
    html = write_report(directory).read_text()
    return directory, html, _Page(html)


def test_it_needs_no_network(finished):
    _, html, page = finished
    assert page.links
    assert all(link.startswith("#") for link in page.links), page.links
    assert not {"link", "iframe", "object", "embed", "img"} & set(page.tags)
    assert "default-src 'none'" in html
    assert html.count("plotly.js v") == 1


def test_every_step_has_the_facts_of_its_batch(finished):
    rows = [row for row in read_metrics(finished[0].metrics) if row["kind"] == "step"]
    assert len(rows) == 4
    assert all(
        row["response_tokens"] > 0 and row["trajectories"] == 16 for row in rows
    )  # also where steps follow at once


def test_it_has_every_section_and_chart(finished):
    _, html, page = finished
    assert page.ids >= SECTIONS
    assert {name.removeprefix("chart-") for name in page.ids if name.startswith("chart-")} == CHARTS
    charts = json.loads(html.split('id="charts">')[1].split("</script>")[0])
    assert {chart["id"] for chart in charts} == CHARTS
    assert all(chart["data"] for chart in charts)
    for words in (
        "Held-out accuracy",
        "Utilisation",
        "at consumption",
        "Resolved configuration",
        "worked style forced",
    ):
        assert words in html


def test_what_became_of_every_prompt_is_said(finished):
    _, _, page = finished
    assert "Prompts: 16 admitted = 16 trained on + 0 filtered + 0 failed; 0 lost" in page.words
    assert "Repacks, faults, versions" in page.words


def test_text_from_the_model_stays_text(finished):
    directory, html, page = finished
    assert EVIL not in html
    assert page.tags.count("script") == 3
    assert "evil.example" in page.words
    # a reason of a fault reaches the charts' JSON as well as a table
    with EventLog(directory.events) as log:
        log.append(1e6, c.Down("replica", "r0", EVIL))
    again = write_report(directory).read_text()
    assert EVIL not in again
    assert _Page(again).tags.count("script") == 3


def test_a_run_that_has_not_finished_says_so(tmp_path):
    directory = a_run(tmp_path / "run", finished=False)
    with directory.events.open("a") as log:
        log.write('{"t": 999, "is": "Ti')  # a crash cut the last line short
    page = _Page(write_report(directory).read_text())
    assert "has not finished" in page.words
    assert page.ids >= SECTIONS


def test_a_run_that_has_only_begun_has_a_report(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", config().model_dump(mode="json"))
    page = _Page(write_report(directory).read_text())
    assert "still running" in page.words
    assert "Nothing has been started yet" in page.words
    directory.unlock()


def test_a_resumed_run_is_marked(tmp_path):
    directory = a_run(tmp_path / "run", resumed=True)
    html = write_report(directory).read_text()
    assert "the run was resumed at" in html
    record = read_record(directory)
    assert len(record.batches) == 4
    assert [row["step"] for row in record.steps] == [1, 2, 3, 4]


def test_a_damaged_log_is_an_error_that_names_the_line(tmp_path):
    directory = a_run(tmp_path / "run", finished=False)
    lines = directory.events.read_text().splitlines(keepends=True)
    directory.events.write_text("".join([*lines[:10], "rubbish\n", *lines[10:]]))
    with pytest.raises(RunDirectoryError, match="line 11"):
        write_report(directory)
    assert not directory.report.exists()


def test_steps_that_a_crash_undid_are_left_out():
    rows = [{"kind": "step", "step": step, "n": n} for n, step in enumerate([1, 2, 3, 2, 3, 4])]
    assert [(row["step"], row["n"]) for row in standing_steps(rows)] == [(1, 0), (2, 3), (3, 4), (4, 5)]


def measured(accuracy, name="x"):
    return Measured(name, accuracy, 400, 0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("before", "after", "control", "words"),
    [
        (0.1, 0.4, 0.2, ["rose from 10.0 % to 40.0 %", "RL beats every control that was measured", "20.0 points less"]),
        (0.1, 0.3, 0.5, ["does not beat the controls", "20.0 points more"]),
        (0.1, 0.3, 0.29, ["open", "may be chance"]),
        (0.1, 0.11, 0.05, ["so small a difference may be chance"]),
        (0.4, 0.1, None, ["fell from 40.0 % to 10.0 %", "No control without RL was measured"]),
        (0.3, 0.3, 0.3, ["stayed at 30.0 %", "does not beat the controls", "as well"]),
        (0.3, 0.6, 0.2, ["(warm start, sampled) reaches 30.0 %", "30.0 points less"]),
        (None, None, None, ["No held-out accuracy has been measured"]),
    ],
)
def test_the_headline_does_not_flatter(before, after, control, words):
    controls = [measured(control, "warm start, greedy")] if control is not None else []
    found = Results(
        [],
        None if before is None else measured(before),
        None if after is None else measured(after),
        None,
        controls,
    )
    for word in words:
        assert word in gain(found)


def test_a_summary_tells_the_same():
    summary = {
        "eval_accuracy_before": 0.1,
        "eval_accuracy_after": 0.4,
        "controls": {"warm start, forced": 0.2, "continued fine-tuning, greedy": 0.3},
    }
    found = results_of_summary(summary, 256)
    assert found.best_control == Measured("continued fine-tuning, greedy", 0.3, 256, 0, 0.0, 0.0)
    assert found.controls[0].name == "worked style forced, sampled"
