"""The report: one file without a network, every section, runs that did not end, and text that is only text."""

import dataclasses
import json
import math
import shutil
import statistics
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

from tailrace import contracts as c
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import RunDirectory, write_json
from tailrace.pipeline.run.eventlog import EventLog
from tailrace.pipeline.run.figures.metrics import read_metrics
from tailrace.pipeline.run.figures.results import Estimate, MeasuredAnswers, Results
from tailrace.pipeline.run.figures.summary import summarise
from tailrace.pipeline.run.replay import controller_of
from tailrace.report import run_tables
from tailrace.report.charts import learning, lengths, staleness
from tailrace.report.figures.held_out import gain, reward_alone
from tailrace.report.figures.prompts import PromptFates
from tailrace.report.figures.system import facts
from tailrace.report.fold.interruptions import MarkKind
from tailrace.report.html.page import write_page
from tailrace.report.record import facts_of, read_record, standing_steps
from tailrace.report.run_page import render, write_report
from tailrace.trajstore.archive import MAGIC

from .conftest import STALEFLOW, a_run, configured

SECTIONS = {"learning", "timeline", "loads", "staleness", "throughput", "trainer", "events", "samples", "configuration"}
CHARTS = {"accuracy", "reward", "timeline", "staleness", "staleness-steps", "lengths", "lengths-steps", "throughput"}
CHARTS |= {
    "running",
    "kv",
    "in-flight",
    "effective-time",
    "staleness-batches",
    "lengths-offered",
    "buffer",
    "loss",
    "clip_fraction",
    "approx_kl",
    "grad_norm",
}
EVIL = "</script><script>alert(1)</script><img src=http://evil.example/x>"


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
    faults = ["replica:r1@30s", "trainer@step3", "relay@40s", "scorer@50s", "data@60s"]
    directory, _ = a_run(tmp_path_factory.mktemp("runs") / "finished", configured(faults=faults, relays=2))
    totals = {"wall_s": 100.0, "tokens_per_s": 10.0, "lost_trajectories": 0, "consumed_twice": 0, "contradictions": 0}
    write_json(directory.summary, totals)
    row = {"trajectory": "0.0", "consumed_version": 1, "prompt": [1, 2], "tokens": [3], "versions": [0], "reward": 1.0}
    row["finish"] = EVIL
    talk = row | {
        "trajectory": "0.1",
        "tokens": [3, 4, 5, 6, 7],
        "observations": [[1, 3]],
        "generated": 3,
        "reward": 0.5,
    }
    branched = talk | {"trajectory": "0.2", "tokens": [3, 4, 5, 6, 7, 8], "contexts": [1]}
    lines = [json.dumps(each) + "\n" for each in (row, branched, talk)]
    (directory.trajectories / "trained.jsonl").write_text("".join(lines))
    html = write_report(directory).read_text()
    return directory, html, _Page(html)


def test_a_run_whose_environment_is_gone_is_read_and_none_is_started(tmp_path, monkeypatch):
    """A run directory that was taken elsewhere: `report`, `status` and `watch` started the environment, or failed."""
    monkeypatch.setattr("tailrace.pipeline.run.environment_setup.examine_environment", pytest.fail)
    content = {
        "task": {"train": str(tmp_path / "words.jsonl"), "verifier": "environment"},
        "environment": {"name": f"{tmp_path / 'words.py'}:Words"},
        "model": {"path": str(tmp_path / "model")},
        "pipeline": {"steps": 7},
    }
    config = validate([("test", {"app": "laminar", **content})])
    directory = RunDirectory.create(tmp_path / "run", config.model_dump(mode="json"))
    assert read_record(directory).folds.run.steps == 7
    assert write_report(directory).exists()


def test_a_page_that_another_process_writes_meanwhile_is_written_all_the_same(tmp_path, monkeypatch):
    """A run writes its own at its end, which failed where `tailrace report` wrote it too."""
    page, replace = tmp_path / "report.html", Path.replace
    code = "import pathlib, sys; from tailrace.report.html.page import write_page; write_page(pathlib.Path(sys.argv[1]), 'b')"

    def slowly(self, target):
        subprocess.run([sys.executable, "-c", code, str(page)], check=True, timeout=60)
        assert page.read_text() == "b"
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", slowly)
    write_page(page, "a")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("report.html", "a")]


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OSError, match=r"report\.html"):
        write_page(tmp_path / "report.html", "a")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_run_whose_last_trajectory_is_half_archived_has_a_report(tmp_path):
    """Its data role appends, or died while it did."""
    directory, _ = a_run(tmp_path / "run")
    directory.trained.write_bytes(MAGIC + b"half of a record")
    assert write_report(directory).exists()


def test_a_figure_that_overflowed_is_a_gap_in_its_curve_that_is_told(tmp_path):
    """A run of which a loss became no number wrote no report, and was said to have failed at its end."""
    directory, _ = a_run(tmp_path / "run")
    rows = read_metrics(directory.metrics)
    steps = [row for row in rows if row["kind"] == "step"]
    steps[1]["loss"], steps[2]["grad_norm"], steps[4]["grad_norm"] = math.nan, math.inf, math.inf
    directory.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    charts = {chart.id: chart for chart in learning.trainer_charts(read_record(directory))}
    assert charts["loss"].data[0]["y"] == [0.1, None, 0.1, 0.1, 0.1, 0.1]
    assert charts["grad_norm"].note == "Infinite, or no number, at 2 of 6 steps, first at step 3."
    assert not charts["clip_fraction"].note
    words = _Page(write_report(directory).read_text()).words
    assert "Infinite, or no number, at 1 of 6 steps, first at step 2." in words


def test_it_needs_no_network(finished):
    _, html, page = finished
    assert page.links
    assert all(link.startswith("#") for link in page.links), page.links
    assert not {"link", "iframe", "object", "embed", "img"} & set(page.tags)
    assert "default-src 'none'" in html
    assert html.count("plotly.js v") == 1


def test_every_step_has_the_facts_of_its_batch(finished):
    rows = [row for row in read_metrics(finished[0].metrics) if row["kind"] == "step"]
    assert len(rows) > 6  # some were lost with the trainer
    assert [row["step"] for row in standing_steps(rows)] == [1, 2, 3, 4, 5, 6]
    assert all(row["response_tokens"] > 0 and row["trajectories"] == 16 for row in rows)


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
        "warm start, greedy",
    ):
        assert words in html


def test_what_became_of_every_prompt_is_said(finished):
    _, _, page = finished
    assert "Prompts: 24 admitted = 24 trained on + 0 filtered + 0 failed; 0 lost" in page.words
    assert "Repacks, faults, versions" in page.words


def test_what_an_environment_answered_is_told_from_what_the_model_wrote(finished):
    _, html, page = finished
    assert 'token ids: 3<span class="told">token ids: 4 5</span>token ids: 6 7' in html
    context = "[a context of its own, behind which the model reads nothing else]"
    assert f'token ids: 3<span class="told">{context}\ntoken ids: 4 5</span>token ids: 6 7 8' in html
    assert "trajectory 0.1, 2 turns, the environment's answers in grey, 3 tokens, reward 0.5" in page.words


def test_text_from_the_model_stays_text(finished, tmp_path):
    directory, html, page = finished
    assert EVIL not in html
    assert page.tags.count("script") == 3
    assert "evil.example" in page.words
    # a reason of a fault reaches the charts' JSON as well as a table
    directory = RunDirectory(Path(shutil.copytree(directory.root, tmp_path / "of \udcff\u202e")))
    directory.model.mkdir()
    (directory.model / "tokenizer.json").write_text('{"model": {"type": "of a later version"}}')
    with EventLog(directory.events) as log:
        log.append(1e6, [c.Down("replica", "r0", EVIL)], [])
    again = write_report(directory).read_text()
    assert EVIL not in again
    assert r"<h1>laminar, of \udcff\u202e</h1>" in again
    if find_spec("tokenizers") is not None:  # else nothing is read
        assert "tokenizer.json cannot be read (" in again
    assert _Page(again).tags.count("script") == 3


def test_what_somebody_elses_configuration_says_does_nothing_to_a_terminal():
    hostile = "a\x1b[2J\u202e.jsonl"
    config = configured()
    model = config.model.model_copy(update={"path": Path(hostile)})
    task = config.task.model_copy(update={"name": None, "train": Path(hostile)})
    config = config.model_copy(update={"app": hostile, "model": model, "task": task})
    said = [*facts_of(config, simulated=False).values(), *facts(config).values()]
    assert all(str(text).isprintable() for text in said)
    assert sum(r"\x1b[2J\u202e" in str(text) for text in said) >= 4


def test_every_role_that_died_is_in_the_table_of_faults(finished):
    record = read_record(finished[0])
    rows = {row[1]: row for row in run_tables.fault_table(record).rows}
    assert set(rows) == {"replica r1", "trainer 0", "relay 0", "scorer 0", "data 0"}
    assert all("killed" in row[2] and float(row[3]) >= 0 for row in rows.values())
    assert float(rows["relay 0"][3]) >= 10.0
    facts = dict(run_tables.facts(record))
    assert {facts[f"{role} restarts"] for role in ("replica", "trainer", "relay", "scorer", "data")} == {"1"}


def test_rows_that_are_not_shown_are_counted(finished, monkeypatch):
    monkeypatch.setattr("tailrace.report.html.page.MOST_ROWS", 2)
    record = read_record(finished[0])
    page = _Page(render(record))
    assert "Faults 5 " in page.words
    assert "3 more rows are in the event log." in page.words
    assert f"Versions and relays {len(record.folds.versions.ordered)} " in page.words


def test_a_run_that_has_not_finished_says_so(tmp_path):
    directory, _ = a_run(tmp_path / "run", until_step=2)
    with directory.events.open("a") as log:
        log.write('{"t": 999, "events": [{"is": "Ti')  # a crash cut the last line short
    page = _Page(write_report(directory).read_text())
    assert "has not finished: it has done step 2 of 6" in page.words
    assert "still open" in page.words
    assert page.ids >= SECTIONS


def test_a_run_that_has_only_begun_has_a_report(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", configured().model_dump(mode="json"))
    page = _Page(write_report(directory).read_text())
    assert "still running" in page.words
    assert "Nothing has been started yet" in page.words
    assert "loads" not in page.ids
    controller = controller_of(directory)
    with EventLog(directory.events) as log:
        for event in (c.Tick(), c.Down("replica", "r0", "it cannot start")):
            log.append(0.0, [event], controller.handle_all([event], 0.0))
    assert "it cannot start" in _Page(write_report(directory).read_text()).words
    directory.unlock()


def test_a_resumed_run_is_marked(tmp_path):
    directory, _ = a_run(tmp_path / "run", crash_at_step=3)
    html = write_report(directory).read_text()
    assert "the run was resumed at" in html
    record = read_record(directory)
    assert len(record.batches) == 6
    assert [row["step"] for row in record.steps] == [1, 2, 3, 4, 5, 6]
    measured = [(row["step"], row["mode"]) for row in read_metrics(directory.metrics) if row["kind"] == "evaluation"]
    assert len(measured) == len(set(measured))


def test_a_damaged_log_is_an_error_that_names_the_line(tmp_path):
    directory, _ = a_run(tmp_path / "run", until_step=1)
    lines = directory.events.read_text().splitlines(keepends=True)
    directory.events.write_text("".join([*lines[:10], "rubbish\n", *lines[10:]]))
    with pytest.raises(RunDirectoryError, match="line 11"):
        write_report(directory)
    assert not directory.report.exists()


def test_a_run_that_gave_up_says_why(tmp_path):
    recovery = {"recovery": {"name": "isolate", "max_restarts": 0}}
    faults = ["replica:r0@10s", "replica:r1@11s", "replica:r2@12s"]
    directory, simulation = a_run(tmp_path / "run", configured(recovery, faults=faults))
    page = _Page(write_report(directory).read_text())
    assert f"The run gave up: {simulation.controller.failure}" in page.words


def test_rows_that_were_dropped_and_groups_that_failed_are_noted(tmp_path):
    directory, _ = a_run(tmp_path / "run", configured())
    summary = {"wall_s": 3.0, "tokens_per_s": 9.0, "consumed_twice": 0, "lost_trajectories": 0}
    summary["prompt_rows"] = {"train": {"rows": 50, "dropped": 0, "truncated": 7, "most_tokens": 512}}
    summary["prompts"] = {"failed_because": {"refused": 2}, "failed_words": {"refused": "a prompt of <601> tokens"}}
    directory.summary.write_text(json.dumps(summary))
    page = _Page(write_report(directory).read_text())
    assert "rows of task.train: 7 of 50 cut off at their beginning: longer than 512 tokens." in page.words
    assert "2 groups failed (refused), the first because: a prompt of <601> tokens." in page.words


@pytest.fixture(scope="module")
def interrupting(tmp_path_factory):
    directory, simulation = a_run(tmp_path_factory.mktemp("runs") / "interrupting", configured(STALEFLOW))
    return read_record(directory), write_report(directory).read_text(), simulation.controller.view


def test_each_batch_is_shown_against_the_bound(interrupting):
    record, html, _ = interrupting
    assert "Staleness of each batch (bound 1: none above it)" in html
    chart = next(chart for chart in staleness.staleness_charts(record) if chart.id == "staleness-batches")
    shares = [trace["y"] for trace in chart.data]
    assert [sum(batch) for batch in zip(*shares, strict=True)] == pytest.approx([1.0] * 6)
    assert len(chart.data) == 1 + max(max(batch.at_consumption) for batch in record.batches)


def test_what_interruptions_were_for_is_said(interrupting):
    record, html, run = interrupting
    assert len(record.folds.interruptions.of(MarkKind.PULL)) == run.interrupting_pulls > 0
    assert sum(each.stopped for each in record.folds.interruptions.of(MarkKind.EVICTION)) == run.evictions
    assert not record.folds.interruptions.of(MarkKind.REPACK)
    assert "Interruptions, faults, versions" in html
    assert "interrupted for a pull" in html
    assert "it pulls version 1" in html
    assert "Nothing was repacked" not in html
    assert f"{PromptFates.of(record.folds.run)}" in html


def test_lengths_of_what_was_offered_stand_beside_those_trained_on(interrupting):
    record, _, _ = interrupting
    rows = {row[0]: row[1:] for row in lengths.selection_table(record).rows}
    everything = lengths.offered(record)
    assert rows["offered: all that finished"][0] == f"{len(everything):,}"
    assert rows["offered: all that finished"][-1] == str(max(everything))
    assert rows["trained on"][0] == f"{6 * 16}"
    assert rows["dropped: no signal"][0] == f"{len(record.folds.offcuts.finished[c.Why.NO_SIGNAL])}" > "0"
    assert len(everything) == 6 * 16 + sum(map(len, record.folds.offcuts.finished.values()))
    chart = lengths.selection_chart(record)
    for trace in chart.data:
        assert trace["y"][-1] == 1.0
        assert trace["y"] == sorted(trace["y"])
        assert trace["x"] == sorted(trace["x"])


def test_the_summary_tells_the_same_as_the_report(interrupting):
    record, _, run = interrupting
    audit = {"consumed": 6 * 16, "consumed_twice": []}
    found = summarise(
        record.config, run, [], audit=audit, lengths=[1, 2], wall_s=9.0, training_s=8.0, extra={"more": 1}
    )
    became, told = found["prompts"], PromptFates.of(record.folds.run)
    assert (became["admitted"], became["trained"], became["failed_because"]) == (
        told.admitted,
        told.trained,
        told.failed,
    )
    assert became["filtered"] == told.filtered
    assert (became["lost"], found["lost_trajectories"], found["contradictions"]) == (0, 0, 0)
    assert (found["staleness_bound"], found["partial_rollout"], found["repacks"]) == (1, True, 0)
    assert found["staleness_max"] <= 1
    assert found["interrupting_pulls"] == len(record.folds.interruptions.of(MarkKind.PULL))
    assert found["resumed_on_newer"] == record.folds.run.counts.resumed_on_newer > 0
    assert found["restarts"] == dict.fromkeys(
        ("trainer", "data", "scorer", "ranker", "environment", "relay", "replica"), 0
    )


def test_steps_that_a_crash_undid_are_left_out():
    rows = [{"kind": "step", "step": step, "n": n} for n, step in enumerate([1, 2, 3, 2, 3, 4])]
    assert [(row["step"], row["n"]) for row in standing_steps(rows)] == [(1, 0), (2, 3), (3, 4), (4, 5)]


def measured(accuracy, name="x", reward=None):
    error = math.sqrt(accuracy * (1 - accuracy) / 400) if accuracy is not None else None
    estimate = None if accuracy is None else Estimate(accuracy, error)
    return MeasuredAnswers(name, 0, 0.0, 400, reward or Estimate(accuracy, error), estimate)


def test_each_source_has_a_row_below_the_whole():
    parts = {"sums": measured(0.5), "programs": measured(0.1)}
    found = Results("warm start", before=dataclasses.replace(measured(0.3, "before RL, sampled"), sources=parts))
    table = run_tables.results_table(found)
    assert [row[:2] for row in table.rows] == [
        ["before RL, sampled", "30.0 %"],
        ["before RL, sampled, sums", "50.0 %"],
        ["before RL, sampled, programs", "10.0 %"],
    ]


@pytest.mark.parametrize(
    ("before", "after", "control", "words"),
    [
        (
            0.1,
            0.4,
            0.2,
            ["rose from 10.0 % to 40.0 %", "RL beats every control that was measured, in accuracy", "20.0 points less"],
        ),
        (0.1, 0.3, 0.5, ["does not beat the controls in accuracy", "20.0 points more"]),
        (0.1, 0.3, 0.29, ["open", "may be chance"]),
        (0.1, 0.11, 0.05, ["so small a difference may be chance"]),
        (0.4, 0.1, None, ["fell from 40.0 % to 10.0 %", "No control without RL was measured"]),
        (0.3, 0.3, 0.3, ["stayed at 30.0 %", "does not beat the controls", "as well"]),
        (0.3, 0.6, 0.2, ["(warm start, sampled) reaches 30.0 %", "30.0 points less"]),
        (None, None, None, ["Nothing has been measured on held-out problems"]),
    ],
)
def test_the_headline_does_not_flatter(before, after, control, words):
    controls = () if control is None else (measured(control, "warm start, greedy"),)
    found = Results(
        "warm start",
        before=None if before is None else measured(before),
        after=None if after is None else measured(after),
        controls=controls,
    )
    for word in words:
        assert word in gain(found)


@pytest.mark.parametrize(("problems", "claims"), [(1, False), (3, False), (4, True)])
def test_of_a_few_problems_nothing_is_claimed(problems, claims):
    before, after, control = (
        dataclasses.replace(measured(share, name), problems=problems)
        for share, name in ((0.0, "before"), (1.0, "after"), (0.0, "warm start, greedy"))
    )
    said = gain(Results("warm start", before=before, after=after, controls=(control,)))
    assert ("may be chance" in said, "RL beats every control" in said) == (not claims, claims)


REWARDS = {
    "rises alone": (
        0.05,
        0.2,
        0.3,
        0.3,
        ["Held-out reward rose from 0.050 to 0.200, by 0.150"],
        "before, 30.0 % after. Look",
    ),
    "and accuracy rises too": (0.05, 0.2, 0.1, 0.5, ["RL beats every control that was measured, in accuracy"], None),
    "by chance": (0.05, 0.06, 0.3, 0.3, ["so small a difference may be chance"], None),
    "and accuracy by chance": (0.05, 0.2, 0.3, 0.31, [], "30.0 % before, 31.0 % after, which may be chance. Look"),
    "falls": (0.2, 0.05, 0.3, 0.2, ["Held-out reward fell from 0.200 to 0.050", "in accuracy"], None),
    "without an accuracy": (
        0.05,
        0.2,
        None,
        None,
        ["every control that was measured, in reward: the best control"],
        None,
    ),
}


@pytest.mark.parametrize("case", REWARDS)
def test_reward_and_accuracy_are_told_apart(case):
    was, now, right_before, right_after, words, warning = REWARDS[case]
    before = measured(right_before, "before RL, sampled", Estimate(was, 0.01))
    after = measured(right_after, "after RL, sampled", Estimate(now, 0.01))
    control = measured(right_before, "model as given, greedy", Estimate(was, 0.01))
    found = Results("model as given", before=before, after=after, controls=(control,))
    for word in words:
        assert word in gain(found)
    said = reward_alone(found)
    assert (said is None) == (warning is None)
    assert warning is None or warning in said
    assert Results.from_plain(json.loads(json.dumps(found.plain()))) == found


@pytest.mark.parametrize("said", [True, False])
def test_a_graded_run_has_a_chart_of_each_quantity_that_is_known(tmp_path, said):
    """A verifier says what is right, or does not."""
    record = read_record(a_run(tmp_path / "run")[0])
    for result in record.folds.run.evaluations:
        result.rewards[:] = [0.2 + 0.05 * result.step * (place % 2) for place in range(len(result.rewards))]
        result.correct[:] = [place == 0 if said else None for place in range(len(result.rewards))]
    html = render(record)
    charts = {chart["id"]: chart for chart in json.loads(html.split('id="charts">')[1].split("</script>")[0])}
    page = _Page(html)
    axis = charts["held-out-reward"]["layout"]["yaxis"]
    assert axis["title"]["text"] == "held-out reward"
    assert "tickformat" not in axis
    assert axis["range"][1] > 0.35
    assert "standard error of the mean over problems" in charts["held-out-reward"]["note"]
    assert "Held-out reward rose from 0.200 to 0.350" in page.words
    if said:
        assert charts["accuracy"]["layout"]["yaxis"]["title"]["text"] == "held-out accuracy"
        assert "Reward rose from 0.200 to 0.350, accuracy did not: 8.3 % before, 8.3 % after." in page.words
        assert "accuracy before 8.3 % accuracy after RL 8.3 %" in page.words
        assert "RL does not beat the controls in accuracy" in page.words
    else:
        assert "accuracy" not in charts
        assert "in accuracy" not in page.words
        assert "before 0.200 reward after RL 0.350 reward" in page.words
        assert "RL beats every control that was measured, in reward" in page.words
        assert "Accuracy is not known: rewards are graded" in page.words


def test_bars_of_the_training_reward_are_clustered_by_prompt(finished):
    record = read_record(finished[0])
    version = max(batch.version for batch in record.batches)
    batch = list(record.folds.run.batch(version))
    prompts = {member.prompt for member in batch}
    means = [statistics.fmean(member.reward for member in batch if member.prompt == prompt) for prompt in prompts]
    assert len(batch) == 16 > len(means) == 4
    assert record.folds.batches.signals[version].error == pytest.approx(statistics.stdev(means) / math.sqrt(len(means)))


def test_relays_of_every_site_are_counted(interrupting):
    record, _, _ = interrupting
    table = record.config.relay.model_copy(update={"count": 2, "sites": {"cloud": 3}})
    there = dataclasses.replace(record, config=record.config.model_copy(update={"relay": table}))
    assert run_tables.version_table(there).note.startswith("5 relays. ")
