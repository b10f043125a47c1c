"""``tailrace query``: its tables hold what the files of a run hold, and a query reads nothing else and changes nothing."""

import csv
import io
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("duckdb")

from tailrace.cli.main import main
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.trajstore.archive import MAGIC

CONFIG = """
app = "laminar"

[pipeline]
steps = 3
prompts_per_step = 8
samples_per_prompt = 4
prompts_per_replica = 8

[rollout]
max_tokens = 8192

[fleet]
model = "Qwen2.5-7B"
trainer = { gpus = 4 }
rollout = { gpus = 4 }
workload = { response = [{ median = 900, sigma = 0.9 }] }
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("query")
    (folder / "mine.toml").write_text(CONFIG)
    assert main(["simulate", str(folder / "mine.toml"), "--out", str(folder / "run")]) == 0
    return folder / "run"


def asked(capsys, run, sql, *form):
    capsys.readouterr()
    assert main(["query", str(run), sql, *(form or ("--json",))]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out if form else json.loads(out)


def test_events_and_commands_are_those_of_the_log(run, capsys):
    instants = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()[1:]]
    for name in ("events", "commands"):
        told = Counter(one["is"] for instant in instants for one in instant.get(name, ()))
        rows = asked(capsys, run, f"SELECT kind, count(*) AS n FROM {name} GROUP BY kind")
        assert {row["kind"]: row["n"] for row in rows} == told
        assert sum(told.values()) > 10
    (row,) = asked(capsys, run, "SELECT t, data FROM events WHERE kind = 'Stepped' ORDER BY t DESC LIMIT 1")
    last = [(instant["t"], one) for instant in instants for one in instant["events"] if one["is"] == "Stepped"][-1]
    assert (row["t"], json.loads(row["data"])) == last


def test_metrics_are_rows(run, capsys):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    rows = asked(capsys, run, "SELECT step, staleness_max FROM steps ORDER BY step")
    assert [(row["step"], row["staleness_max"]) for row in rows] == [
        (one["step"], one["staleness_max"]) for one in steps
    ]


def test_trajectories_are_those_that_were_trained_on(run, capsys):
    assert asked(capsys, run, "SELECT * FROM trajectories") == []
    made = [trained(place) for place in range(4)]
    file = RunDirectory(run).trajectories / "trained.jsonl"
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in made))
    rows = asked(capsys, run, "SELECT trajectory, tokens, reward, metadata FROM trajectories ORDER BY tokens")
    assert [json.loads(row.pop("metadata")) for row in rows] == [row["metadata"] for row in made]
    assert rows == [{"trajectory": f"{place}.0", "tokens": 3 + place, "reward": 0.5} for place in range(4)]
    file.unlink()
    file.parent.rmdir()


def trained(place):
    """A row as a store exports it."""
    length = 3 + place
    return {
        "trajectory": f"{place}.0", "group": str(place), "prompt": [1, 2], "tokens": [7] * length,
        "versions": [0] * length, "logprobs": [-0.5] * length, "observations": [], "generated": length, "reward": 0.5,
        "finish": "stop", "oldest_version": 0, "completed_version": 0, "consumed_version": 1,
        "metadata": {"prompt": place, "mode": ""} | ({"environment": {"reward": place / 2}} if place else {}),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM rollouts", "rollouts"),
        ("SELECT * FROM read_csv('/etc/hostname')", "disabled"),
        ("COPY (SELECT 1) TO 'stolen.csv'", "disabled"),
        ("ATTACH 'other.db'", "disabled"),
        ("SET enable_external_access = true", "cannot"),
        ("INSTALL httpfs", "disabled"),
    ],
)
def test_a_query_that_is_wrong_or_reaches_out_is_one_line(run, capsys, sql, said, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert main(["query", str(run), sql]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err.lower()
    assert len(err.splitlines()) == 1
    assert not any(tmp_path.iterdir())
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.parametrize("sql", [[], [""], [" \n"]])
def test_without_a_query_the_tables_are_told(run, capsys, sql):
    capsys.readouterr()
    assert main(["query", str(run), *sql]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["steps", "evaluations", "trajectories", "events", "commands"]
    assert lines[3].endswith("rows): t, instant, kind, data")


def test_a_terminal_carries_out_nothing_that_a_run_says(run, capsys, monkeypatch, tmp_path):
    clear = "\x1b[2J"
    other = shutil.copytree(run, tmp_path / "run")
    with (other / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "step", clear: 1}) + "\n")
    query = "SELECT chr(27) || '[2J' AS \"a\x1b\""
    assert asked(capsys, run, query, "--csv") == f"a\x1b\r\n{clear}\r\n"  # a file has it as it is
    capsys.readouterr()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for words in (["query", str(run), query, "--csv"], ["query", str(run), query], ["query", str(other)]):
        assert main(words) == 0
        said = capsys.readouterr().out
        assert r"\x1b" in said
        assert clear not in said
        assert "a\x1b" not in said


def test_forms(run, capsys):
    rows = list(csv.reader(io.StringIO(asked(capsys, run, "SELECT 1 AS a, 'x,y' AS b", "--csv"))))
    assert rows == [["a", "b"], ["1", "x,y"]]
    table = asked(capsys, run, "SELECT unnest(range(250)) AS number", "--")
    assert "199" in table
    assert "200" not in table.splitlines()[-2]
    assert table.splitlines()[-1].startswith("250 rows, of which the first 200 are shown")


def test_json_has_no_nan_however_deep_it_lies(run, capsys):
    sql = """SELECT ['NaN'::DOUBLE, 2.5] AS list, {'a': '-inf'::DOUBLE, 'b': 1.5::DECIMAL(4, 1)} AS struct,
        MAP {DATE '2026-11-29': 0.5::DECIMAL(4, 1)} AS map"""
    (row,) = json.loads(asked(capsys, run, sql, "--json"), parse_constant=pytest.fail)
    assert row == {"list": [None, 2.5], "struct": {"a": None, "b": 1.5}, "map": {"2026-11-29": 0.5}}


def test_a_log_that_is_being_written_is_read_up_to_its_last_line(run, capsys, tmp_path):
    live = copied(run, tmp_path / "live")
    with (live / "events.jsonl").open("a") as file:
        file.write('{"t": 1e9, "events": [{"is": "Tic')
    with (live / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "st')
    (live / "summary.json").unlink(missing_ok=True)  # which a run has once it is over
    (live / "trajectories").mkdir()
    (live / "trajectories/trained.packed").write_bytes(MAGIC + b"half of a record")
    assert asked(capsys, live, "SELECT * FROM trajectories") == []
    (row,) = asked(capsys, live, "SELECT max(t) AS last FROM events")
    assert row["last"] < 1e9


def copied(run, to):
    to.mkdir()
    for path in run.iterdir():
        if path.is_file():
            (to / path.name).write_bytes(path.read_bytes())
    return to


def test_a_damaged_line_in_the_middle_is_told(run, capsys, tmp_path):
    damaged = copied(run, tmp_path / "damaged")
    header, first, *rest = (damaged / "events.jsonl").read_text().splitlines(keepends=True)
    (damaged / "events.jsonl").write_text("".join([header, first[: len(first) // 2] + "\n", *rest]))
    assert main(["query", str(damaged), "SELECT count(*) FROM events"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(damaged) in line


def test_metrics_of_a_kind_that_is_not_known_are_no_rows(run, capsys, tmp_path):
    newer = copied(run, tmp_path / "newer")
    steps = asked(capsys, run, "SELECT * FROM steps")
    with (newer / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "memory", "t": 1.0, "step": 99}\n')
    assert asked(capsys, newer, "SELECT * FROM steps") == steps


def test_a_log_of_another_format_is_refused(run, capsys, tmp_path):
    other = copied(run, tmp_path / "other")
    _, *rest = (other / "events.jsonl").read_text().splitlines(keepends=True)
    (other / "events.jsonl").write_text("".join(['{"tailrace": "event log", "format": 1}\n', *rest]))
    assert main(["query", str(other), "SELECT 1"]) == 2
    assert "expected an event log of format 2" in capsys.readouterr().err


def test_what_the_page_shows_can_be_asked_before_the_first_step(run, capsys, tmp_path):
    fresh = copied(run, tmp_path / "fresh")
    (fresh / "metrics.jsonl").write_text("")
    page = (Path(__file__).parents[3] / "docs/operating.md").read_text()
    queries = re.findall(r'^\$ tailrace query RUN (?:--csv )?"([^"]+)"', page, re.MULTILINE)
    assert len(queries) >= 3
    for sql in queries:
        assert main(["query", str(fresh), sql]) == 0, sql


def test_what_looks_like_markup_is_shown_as_it_is(run, capsys):
    assert "machine [r0] [/x]" in asked(capsys, run, "SELECT 'machine [r0] [/x]' AS \"[a]\"", "--")


def test_json_has_numbers_and_no_two_columns_of_one_name(run, capsys):
    assert asked(capsys, run, "SELECT 1.5 AS a, 'nan'::DOUBLE AS b") == [{"a": 1.5, "b": None}]
    assert main(["query", str(run), "SELECT 1 AS a, 2 AS a", "--json"]) == 2
    assert "two columns 'a'" in capsys.readouterr().err
    assert main(["query", str(run), "SELECT 1", "--json", "--csv"]) == 2


def test_no_run(tmp_path, capsys):
    assert main(["query", str(tmp_path / "none"), "SELECT 1"]) == 2
    assert Path(tmp_path / "none").exists() is False
    assert len(capsys.readouterr().err.splitlines()) == 1
