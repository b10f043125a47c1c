"""Pages: one file without a network, every section and chart, text that is only text, and files that can be read again."""

import hashlib
import json
from html.parser import HTMLParser

import pytest

from tailrace.fleetsim.errors import StalledError
from tailrace.fleetsim.results import outcome, run_directory
from tailrace.fleetsim.results.advice import advice
from tailrace.fleetsim.run import simulate
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import RunDirectory, read_json, write_json
from tailrace.pipeline.run.eventlog import HEADER
from tailrace.pipeline.run.figures.metrics import read_metrics
from tailrace.report.comparison_page import Compared, compare_page
from tailrace.report.explain import explain
from tailrace.report.record import read_record
from tailrace.report.run_page import write_report

from .conftest import LAMINAR, configured

CHARTS = {
    "timeline",
    "running",
    "kv",
    "throughput",
    "in-flight",
    "effective-time",
    "buffer",
    "lengths",
    "lengths-steps",
    "lengths-offered",
}
CHARTS |= {"staleness", "staleness-steps", "staleness-batches"}
EVIL = "</script><script>alert(1)</script><img src=http://evil.example/x>"


class _Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.ids, self.tags, self.text, self.data = [], set(), [], [], ""
        self._id = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.append(tag)
        self.links += [found[key] for key in ("src", "href", "action", "data", "srcset") if key in found]
        self._id = found.get("id")
        self.ids |= {self._id} if self._id else set()

    def handle_data(self, data):
        if self._id == "charts":
            self.data += data
        elif len(data) < 100_000:
            self.text.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())

    def charts(self):
        return {chart["id"]: chart for chart in json.loads(self.data)}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("simulations") / "out"
    return root, *run_directory.simulate_into(root, configured(LAMINAR, faults=["replica@30s"]), name="mine")


@pytest.fixture(scope="module")
def page(written):
    return _Page(written[2]["report"].read_text())


@pytest.mark.deep
def test_it_needs_no_network(page):
    assert page.links
    assert all(link.startswith("#") for link in page.links), page.links
    assert not {"link", "iframe", "object", "embed", "img"} & set(page.tags)


@pytest.mark.deep
def test_the_report_has_what_a_simulation_knows_and_leaves_the_rest_out(page):
    sections = {"timeline", "loads", "staleness", "throughput", "events", "figures", "configuration"}
    assert sections == {link.removeprefix("#") for link in page.links}
    assert sections <= page.ids
    assert not {"learning", "trainer", "samples"} & page.ids
    assert set(page.charts()) == CHARTS
    assert "Tailrace simulated run" in page.words
    assert "lengths and rewards are drawn, and nothing learns" in page.words
    assert "used twice 0 / not known" in page.words
    assert "H800-hours for a million trained tokens" in page.words  # the figures
    assert {"trainer", "data", "scorer", "relay 0", "r0", "r3"} <= {
        row for trace in page.charts()["timeline"]["data"] for row in trace["y"]
    }


def test_a_heat_map_has_a_row_for_each_replica(page, written):
    heat = page.charts()["running"]["data"][0]
    assert heat["y"] == ["r0", "r1", "r2", "r3"]
    assert {len(row) for row in heat["z"]} == {len(heat["x"]) - 1}
    top = max(max(written[1].folds.loads.running.row(place)) for place in range(4))
    assert 0 < max(max(row) for row in heat["z"]) <= top + 0.05


@pytest.mark.deep
def test_names_and_warnings_are_only_text(tmp_path):
    root = tmp_path / "out"
    run_directory.simulate_into(root, configured(LAMINAR, steps=3), name="mine")
    summary = read_json(root / "summary.json")
    write_json(root / "summary.json", {**summary, "warnings": [EVIL], "figures": [[EVIL, EVIL]]})
    page = _Page(write_report(RunDirectory.open(root)).read_text())
    assert page.words.count(EVIL) == 3
    assert "img" not in page.tags
    assert page.tags.count("script") == 3


@pytest.mark.deep
def test_a_comparison_has_a_timeline_for_each_system(laminar, synchronous, staleflow):
    watched = (laminar, synchronous, staleflow)
    systems = [Compared(each.figures, each.folds, advice(each)) for each in watched]
    page = _Page(compare_page(systems, "three"))
    assert {f"timeline-{place}" for place in range(3)} <= set(page.charts())
    assert {"compare-throughput", "compare-staleness", "compare-trainer", "compare-replica"} <= set(page.charts())
    assert "relative to laminar" in page.words
    for chart in ("compare-trainer", "compare-replica"):
        shares = zip(*(trace["x"] for trace in page.charts()[chart]["data"]), strict=True)
        assert all(0.97 <= sum(each) <= 1.001 for each in shares)  # causes below half a percent are left out


def test_the_files_of_a_simulation(written):
    root, watched, paths = written
    assert {path.name for path in root.iterdir()} >= {path.name for path in paths.values()}
    found = json.loads(paths["result"].read_text())
    assert found["result"]["tokens_per_s"] == watched.result.tokens_per_s
    assert found["events_sha256"] == hashlib.sha256(paths["events"].read_bytes()).hexdigest()
    assert simulate(watched.config, seed=watched.seed).events.to_bytes() == paths["events"].read_bytes()[len(HEADER) :]
    assert run_directory.again(root) == watched.config


def test_a_figure_has_one_value_on_the_page_in_the_terminal_and_in_the_files(written, page):
    root, watched, _ = written
    record, figures = read_record(RunDirectory.open(root)), watched.figures
    assert record.window_s == figures.measured_s
    terminal = dict(outcome.rows(watched))
    for name, role in (("trainer", "trainer"), ("replicas", "replica")):
        busy = f"{100 * figures.busy(role):.1f} %"
        assert terminal[name].split("\n")[0].strip() == f"{busy} busy"
        assert f"{role} {figures.role(role).members} {busy}" in page.words
    assert "From the end of the warm-up" in page.words
    late, most = f"{figures.staleness_mean:.2f}", figures.staleness_max
    assert terminal["staleness"].startswith(f"{late} mean, {most} max")
    assert f"Behind the warm-up: mean {late}, max {most}, " in page.words
    status = read_json(root / "status.json")
    assert (status["staleness_mean"], status["staleness_max"]) == (figures.staleness_mean, figures.staleness_max)
    rate = figures.tokens_per_s
    assert terminal["throughput"].startswith(f"{rate:,.0f} tokens/s")
    assert f"trained tokens per second {rate:,.0f}" in page.words
    assert (
        read_json(root / "summary.json")["tokens_per_s"]
        == read_json(root / "status.json")["trained_tokens_per_s"]
        == rate
    )


def test_its_directory_is_a_runs(written):
    root, watched, _ = written
    directory = RunDirectory.open(root)
    assert directory.simulated["steps"] == watched.fleet.spec.steps > 1000
    assert directory.configuration().rollout.replicas == 4  # what follows from the fleet is in it
    assert not directory.running()
    status, summary = read_json(directory.status), read_json(directory.summary)
    assert (status["phase"], status["step"], status["steps"]) == ("done", 6, 6)
    assert (
        status["wall_s"]
        == pytest.approx(summary["wall_s"], abs=0.01)
        == pytest.approx(watched.result.duration_s, abs=0.01)
    )
    assert (summary["steps"], summary["lost_trajectories"], summary["consumed_twice"]) == (6, 0, None)
    assert summary["trained_trajectories"] == 6 * 16 * 8
    assert status["trained_tokens_per_s"] == summary["tokens_per_s"] > 0
    assert (status["over"], status["replicas"]) == (True, [])
    rows = read_metrics(directory.metrics)
    assert [row["step"] for row in rows if row["kind"] == "step"] == [1, 2, 3, 4, 5, 6]
    story = explain(directory, "0.0")
    assert story[0].text.startswith("routed to")
    assert story[-1].text.startswith("trained on: version")


def test_what_was_folded_while_it_ran_is_what_is_folded_from_its_log(written, page):
    root, watched, _ = written
    record, folds = read_record(RunDirectory.open(root)), watched.folds
    assert record.folds.timeline.spans == folds.timeline.spans
    assert record.folds.timeline.marks == folds.timeline.marks
    assert record.folds.batches.begun == folds.batches.begun
    assert record.folds.loads.flow.row(0) == folds.loads.flow.row(0)
    assert record.folds.outages.all == folds.outages.all
    assert len(record.folds.outages.all) == 1
    assert record.folds.effective_time.figures() == folds.effective_time.figures()
    assert record.folds.offcuts.finished == folds.offcuts.finished
    assert record.folds.run.counts == watched.run.counts
    assert _Page(write_report(RunDirectory.open(root)).read_text()).words == page.words


def test_a_simulation_that_stands_still_leaves_what_it_did(tmp_path, monkeypatch):
    def stalled(self, first=None):
        raise StalledError("after 9 s nothing is under way")

    monkeypatch.setattr("tailrace.fleetsim.host.simulator.Simulation.run", stalled)
    with pytest.raises(StalledError):
        run_directory.simulate_into(tmp_path / "out", configured(LAMINAR), name="mine")
    status = read_json(tmp_path / "out" / "status.json")
    assert (status["phase"], status["detail"]) == ("failed", "after 9 s nothing is under way")
    assert not RunDirectory(tmp_path / "out").running()


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    with pytest.raises(RunDirectoryError, match="found files, expected a new directory"):
        run_directory.simulate_into(tmp_path / "mine", configured(LAMINAR), name="mine")
    with pytest.raises(RunDirectoryError, match="found a file"):
        run_directory.check_new(tmp_path / "mine" / "thesis.tex")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_directory_of_something_else(tmp_path):
    (tmp_path / "config.json").write_text('{"format": 2, "run": {}}')
    assert run_directory.again(tmp_path) is None
    (tmp_path / "config.json").write_text('{"format": 2, "run": {}, "simulated": {"steps": 1}}')
    with pytest.raises(RunDirectoryError, match="without 'config'"):
        run_directory.again(tmp_path)
