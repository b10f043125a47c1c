"""``tailrace compare``: simulated fleets and real runs in one table and one picture; every mistake is one line."""

import json
from pathlib import Path

import pytest

from tailrace.cli.main import main
from tailrace.pipeline.run.directory import RunDirectory

CONFIG = """
app = "laminar"

[pipeline]
{pipeline}
steps = 4
prompts_per_step = 16
samples_per_prompt = 8
prompts_per_replica = 8

[rollout]
max_tokens = 8192

[fleet]
model = "Qwen2.5-7B"
trainer = {{ gpus = 4 }}
rollout = {{ gpus = 4 }}
workload = {{ response = [{{ median = 900, sigma = 0.9 }}], correlation = 0.3 }}
"""
SYNCHRONOUS = 'admission = "on-policy"\nsync = "barrier"\nrelocation = "none"'


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # processes of a pool take longer to start than these simulations
    monkeypatch.delenv("TAILRACE_DEBUG", raising=False)
    Path("laminar.toml").write_text(CONFIG.format(pipeline=""))
    Path("bare.toml").write_text('app = "laminar"\n')
    Path("synchronous.toml").write_text(CONFIG.format(pipeline=SYNCHRONOUS))


@pytest.fixture
def a_run():
    """What a run leaves, by a simulation."""
    assert main(["simulate", "laminar.toml", "--set", "pipeline.steps=6", "--run-dir", "runs/real"]) == 0
    found = json.loads(Path("runs/real/config.json").read_text())
    del found["simulated"]
    Path("runs/real/config.json").write_text(json.dumps(found))
    return RunDirectory(Path("runs/real"))


def table(out):
    """The rows of the table by their first words."""
    return {line.strip().split("  ")[0]: line.split("  ")[1:] for line in out.splitlines() if "  " in line.strip()}


def test_two_systems_in_one_table_and_one_picture(capsys):
    assert main(["compare", "laminar.toml", "synchronous.toml", "--out", "out"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    rows = {name: " ".join(cells).split() for name, cells in table(out).items()}
    assert rows["system"] == ["laminar", "synchronous"]
    assert rows["relative to laminar"][:2] == ["1.00", "x"]
    assert rows["staleness max"][1] == "0"
    assert {path.name for path in Path("out").iterdir()} == {"compare.html", "compare.json"}
    found = json.loads(Path("out/compare.json").read_text())["systems"]
    assert [system["name"] for system in found] == ["laminar", "synchronous"]
    assert found[0]["tokens_per_s"] > found[1]["tokens_per_s"]
    assert found[1]["relative"] == pytest.approx(found[1]["tokens_per_s"] / found[0]["tokens_per_s"])
    assert "laminar trains on" in out


def test_more_systems_than_fit_into_eighty_columns_are_shown_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    names = ["laminar.toml", "synchronous.toml"] * 3
    assert main(["compare", *names, "--price", "H800=2", "--out", "out", "--set", "pipeline.steps=3"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "\u2026" not in out
    shown = json.loads(Path("out/compare.json").read_text())["systems"]
    for system in shown:
        assert system["name"] in out
        assert f"{system['tokens_per_s']:,.0f}" in out
        assert f"{system['cost_per_million_tokens']:.3g}" in out
    assert "Unlike" not in out


def test_what_is_unlike_is_said_in_a_line_each(capsys, a_run):
    Path("large.toml").write_text(CONFIG.format(pipeline="").replace("Qwen2.5-7B", "Qwen2.5-14B"))
    Path("wide.toml").write_text(CONFIG.format(pipeline="").replace("prompts_per_step = 16", "prompts_per_step = 8"))
    Path("long.toml").write_text(
        CONFIG.format(pipeline="").replace("8192", "4096").replace("median = 900", "median = 99")
    )
    capsys.readouterr()
    unlike = {
        "large.toml": ["model: laminar: Qwen2.5-7B; large: Qwen2.5-14B"],
        "wide.toml": ["batch: laminar: 16 prompts x 8 samples; wide: 8 prompts x 8 samples"],
        "long.toml": ["longest response: laminar: 8,192 tokens; long: 4,096 tokens", "task: laminar: response: mean"],
        str(a_run.root): [
            "kind: laminar: simulated; real: a real run",
            "model: laminar: Qwen2.5-7B; real: a small Qwen3",
            "devices: laminar: 8 H800; real: processor cores",
            "task: laminar: response: mean",
        ],
    }
    for other, facts in unlike.items():
        assert main(["compare", "laminar.toml", other]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Unlike in ")]
        assert len(lines) == len(facts)
        for line, fact in zip(lines, facts, strict=True):
            assert line.startswith(f"Unlike in {fact}")


def test_prices_are_of_devices_that_take_part(capsys):
    Path("h20.toml").write_text(CONFIG.format(pipeline="").replace("gpus = 4", 'gpus = 4, device = "H20"'))
    assert main(["compare", "laminar.toml", "h20.toml", "--price", "H800=2", "--json", "--out", "out"]) == 0
    found = json.loads(capsys.readouterr().out)
    first, second = found["systems"]
    assert found["differences"] == ["Unlike in devices: laminar: 8 H800; h20: 8 H20"]
    assert found["differences"][0] in Path("out/compare.html").read_text()
    assert (first["price_per_hour"], second["price_per_hour"]) == (16.0, None)
    assert second["device_hours_per_million_tokens"].keys() == {"H20"}


def test_a_real_run_stands_beside_a_simulation(capsys, a_run):
    capsys.readouterr()
    assert main(["compare", "laminar.toml", str(a_run.root), "--json"]) == 0
    simulated, real = json.loads(capsys.readouterr().out)["systems"]
    assert (simulated["simulated"], real["simulated"], real["name"]) == (True, False, "real")
    assert real["response_tokens_per_s"] > 0
    assert real["tokens_per_s"] is None
    assert real["warnings"] == []
    assert real["relative"] == pytest.approx(real["response_tokens_per_s"] / simulated["response_tokens_per_s"])


@pytest.mark.parametrize("option", [["--set", "pipeline.steps=9"], ["--seed", "1"]])
def test_what_changes_a_simulation_is_refused_where_there_is_none(capsys, a_run, option):
    capsys.readouterr()
    assert main(["compare", str(a_run.root), str(a_run.root), *option, "--out", "out"]) == 2
    assert capsys.readouterr().err == (
        f"tailrace: found {option[0]} and real runs alone, expected a system that is simulated, which it changes\n"
    )
    assert not Path("out").exists()


def test_a_simulations_directory_is_simulated_again(capsys):
    assert main(["simulate", "laminar.toml", "--seed", "3", "--json", "--out", "before"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert main(["compare", "before", "laminar.toml", "--json"]) == 0
    again, other = json.loads(capsys.readouterr().out)["systems"]
    assert again["tokens_per_s"] == before["result"]["tokens_per_s"] != other["tokens_per_s"]


def test_settings_and_seed_are_of_all(capsys):
    arguments = ["laminar.toml", "laminar.toml", "--set", "fleet.rollout.gpus=8", "--seed", "2", "--json"]
    assert main(["compare", *arguments]) == 0
    one, two = json.loads(capsys.readouterr().out)["systems"]
    assert (one["name"], two["name"]) == ("laminar", "laminar (2)")
    assert one["tokens_per_s"] == two["tokens_per_s"]
    assert "8 x H800 generate" in one["fleet"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["SYSTEM", "--help"]),
        (["laminar.toml"], ["found 1 system", "expected 2 or more"]),
        (["laminar.toml", "nowhere.toml"], ["nowhere.toml", "no such file"]),
        (["laminar.toml", "nowhere/run"], ["nowhere/run"]),
        (["laminar.toml", "bare.toml"], ["bare.toml: ", "'fleet'"]),
        (["laminar.toml", "empty"], ["empty/config.json", "expected a run directory"]),
        (["laminar.toml", "synchronous.toml", "--set", "fleet.rollout.gpus=0"], ["laminar.toml", "fleet.rollout.gpus"]),
        (["laminar.toml", "synchronous.toml", "--out", "full"], ["full", "found files"]),
        (["laminar.toml", "synchronous.toml", "--price", "H20=1"], ["--price H20=1", "expected one of H800"]),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(capsys, arguments, words):
    Path("empty").mkdir()
    Path("full").mkdir()
    Path("full/thesis.tex").write_text("precious")
    before = sorted(Path().rglob("*"))
    assert main(["compare", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tailrace: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err
    assert sorted(Path().rglob("*")) == before


def test_a_run_of_few_steps_says_that_its_rate_may_be_a_burst(capsys, a_run):
    assert main(["simulate", "laminar.toml", "--set", "pipeline.steps=3", "--run-dir", "runs/short"]) == 0
    found = json.loads(Path("runs/short/config.json").read_text())
    del found["simulated"]
    Path("runs/short/config.json").write_text(json.dumps(found))
    capsys.readouterr()
    assert main(["compare", str(a_run.root), "runs/short"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "short: Only 2 batches after the warm-up: raise pipeline.steps for figures to rely on." in said
    assert "real: Only" not in said


def test_a_run_of_no_step_has_nothing_to_compare(capsys, a_run):
    a_run.events.unlink()
    assert main(["compare", "laminar.toml", "runs/real"]) == 2
    assert "found 0 steps, expected 2 or more" in capsys.readouterr().err


def test_a_folder_of_an_apps_name_is_not_taken_for_a_run(capsys):
    Path("laminar").mkdir()
    Path("laminar/notes.txt").write_text("mine")
    assert main(["compare", "laminar", "laminar.toml", "--set", "pipeline.steps=3", "--json"]) == 0
    quick_start, mine = json.loads(capsys.readouterr().out)["systems"]
    assert quick_start["simulated"]
    assert quick_start["fleet"] != mine["fleet"]
