"""Pages: one file without a network, every section and chart, text that is only text, and files that can be read again."""

import gzip
import hashlib
import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tailrace.fleetsim.picture import files
from tailrace.fleetsim.picture.advice import advice
from tailrace.fleetsim.picture.compare import Compared, compare_page
from tailrace.fleetsim.picture.figures import simulated
from tailrace.fleetsim.picture.page import simulation_page
from tailrace.fleetsim.picture.scene import scene
from tailrace.pipeline.errors import RunDirectoryError

CHARTS = {"timeline", "running", "kv", "throughput", "in-flight", "waiting"}
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
def page(laminar):
    return _Page(simulation_page(laminar))


def test_it_needs_no_network(page):
    assert page.links
    assert all(link.startswith("#") for link in page.links), page.links
    assert not {"link", "iframe", "object", "embed", "img"} & set(page.tags)


def test_it_has_every_section_and_chart(page):
    assert {"timeline", "loads", "throughput", "staleness", "figures", "configuration"} <= page.ids
    assert {f"chart-{name}" for name in CHARTS} <= page.ids
    assert set(page.charts()) == CHARTS


def test_a_heat_map_has_a_row_for_each_replica(page, laminar):
    heat = page.charts()["running"]["data"][0]
    assert heat["y"] == ["r0", "r1", "r2", "r3"]
    assert {len(row) for row in heat["z"]} == {len(heat["x"]) - 1}
    top = max(max(laminar.watcher.loads.row(place)) for place in range(4))
    assert 0 < max(max(row) for row in heat["z"]) <= top + 0.05


def test_staleness_charts_hold_what_was_trained_on(page, laminar):
    bars = page.charts()["staleness"]["data"][0]
    assert sum(bars["y"]) == pytest.approx(1.0)
    assert len(page.charts()["staleness-batches"]["data"][0]["x"]) == len(laminar.rows)


def test_names_and_warnings_are_only_text(laminar):
    named = replace(laminar, name=EVIL, result=replace(laminar.result, failure=EVIL))
    page = _Page(simulation_page(named))
    assert EVIL in page.words
    assert "img" not in page.tags
    assert page.tags.count("script") == 3


def test_a_comparison_has_a_timeline_for_each_system(laminar, synchronous, staleflow):
    watched = (laminar, synchronous, staleflow)
    systems = []
    for each in watched:
        figures = simulated(each)
        systems.append(Compared(figures, scene(each), advice(each, figures)))
    page = _Page(compare_page(systems, "three"))
    assert {f"timeline-{place}" for place in range(3)} <= set(page.charts())
    assert {"compare-throughput", "compare-staleness", "compare-trainer", "compare-replica"} <= set(page.charts())
    assert "relative to laminar" in page.words
    for chart in ("compare-trainer", "compare-replica"):
        shares = zip(*(trace["x"] for trace in page.charts()[chart]["data"]), strict=True)
        assert all(0.97 <= sum(each) <= 1.001 for each in shares)  # causes below half a percent are left out


def test_the_files_of_a_simulation(laminar, tmp_path):
    written = files.write(laminar, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {path.name for path in written.values()}
    found = json.loads(written["result"].read_text())
    assert found["result"]["tokens_per_s"] == laminar.result.tokens_per_s
    assert found["events_sha256"] == hashlib.sha256(written["events"].read_bytes()).hexdigest()
    assert written["events"].read_bytes() == laminar.result.events.to_bytes()
    name, seed, config = files.read_config(tmp_path / "out")
    assert (name, seed) == ("laminar", laminar.seed)
    assert config == laminar.config.model_dump(mode="json")


def test_a_long_event_log_is_compressed_and_always_alike(laminar, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MANY_EVENTS", 10)
    one, two = (files.write(laminar, tmp_path / name)["events"] for name in ("one", "two"))
    assert one.name == "events.jsonl.gz"
    assert one.read_bytes() == two.read_bytes()
    assert gzip.decompress(one.read_bytes()) == laminar.result.events.to_bytes()


def test_nothing_is_overwritten(laminar, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    with pytest.raises(RunDirectoryError, match="found files, expected a new directory"):
        files.write(laminar, tmp_path / "mine")
    with pytest.raises(RunDirectoryError, match="found a file"):
        files.check_new(tmp_path / "mine" / "thesis.tex")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_directory_of_something_else(tmp_path):
    (tmp_path / "config.json").write_text('{"format": 1, "run": {}}')
    assert files.read_config(tmp_path) is None
    (tmp_path / "config.json").write_text('{"format": 1, "simulation": {"seed": 1}}')
    with pytest.raises(RunDirectoryError, match="no name, seed and config"):
        files.read_config(tmp_path)
