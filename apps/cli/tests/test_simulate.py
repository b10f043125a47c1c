"""``tailrace simulate``: what it prints, what it writes, and that every mistake is one line that leaves nothing behind."""

import json
import tomllib
from pathlib import Path

import pytest

from tailrace.cli.main import main
from tailrace.cli.simulations import simulate
from tailrace.fleetsim.results.watch import SimulationProgress

CONFIG = """
app = "laminar"
seed = 5

[pipeline]
steps = 4
prompts_per_step = 16
samples_per_prompt = 8
prompts_per_replica = 8

[rollout]
max_tokens = 8192

[fleet]
model = "Qwen2.5-7B"
trainer = { gpus = 4 }
rollout = { gpus = 4 }
workload = { response = [{ median = 900, sigma = 0.9 }], correlation = 0.3 }
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # processes of a pool take longer to start than these simulations
    Path("mine.toml").write_text(CONFIG)
    Path("bare.toml").write_text('app = "laminar"\n')


def test_it_says_what_was_found_and_writes_it(capsys):
    assert main(["simulate", "mine.toml", "--out", "out"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    words = " ".join(out.split())
    assert "Qwen2.5-7B: 4 x H800 train, 4 x H800 generate (4 replicas)" in words
    assert "3 batches after 1 of warm-up" in words
    found = json.loads(Path("out/result.json").read_text())
    assert f"{found['result']['tokens_per_s']:,.0f} tokens/s trained on" in words
    for name in ("staleness", "trainer", "replicas", "KV cache", "latency", "weights", "cost", "out/report.html"):
        assert name in words
    assert found["seed"] == 5
    assert {path.name for path in Path("out").iterdir()} == {
        "config.json", "events.jsonl", "lock", "metrics.jsonl", "report.html", "result.json",
        "status.json", "summary.json",
    }  # fmt: skip


def test_the_answer_comes_first_and_fits_eighty_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    prices = ["--price", "H800=2", "--set", "fleet.goal.steps=10000"]
    assert main(["simulate", "mine.toml", *prices, "--out", "out", "--no-events"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    words = " ".join(" ".join(lines).split())
    assert "\u2026" not in words
    figures = json.loads(Path("out/result.json").read_text())["figures"]
    assert words.startswith(f"mine trains on {figures['tokens_per_s']:,.0f} tokens/s")
    assert figures["price_per_hour"] == 16.0
    assert figures["finish_s"] == pytest.approx(10_000 * figures["step_s"])
    cost = 16 * figures["finish_s"] / 3600
    assert (
        f"10,000 steps take {figures['finish_s'] / 3600:.1f} h and cost {cost:.2f}" in words.partition("throughput")[0]
    )
    assert "16.00 an hour" in words
    assert json.loads(Path("out/config.json").read_text())["simulated"]["config"]["fleet"]["prices"] == {"H800": 2.0}


def test_its_directory_is_a_runs(capsys):
    assert main(["simulate", "mine.toml", "--run-dir", "out"]) == 0
    report = Path("out/report.html").read_text()
    capsys.readouterr()
    assert main(["status", "out"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "simulated" in shown
    assert "the simulated run is complete; its report is out/report.html" in shown
    assert main(["status", "--json", "out"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["phase"], found["step"], found["steps"], found["alive"]) == ("done", 4, 4, False)
    assert main(["explain", "out", "0.0"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert "version 0    routed to r" in told[0]
    assert any("its group is complete" in line for line in told)
    assert main(["explain", "out", "0.99"]) == 2
    assert "found no trajectory '0.99'" in capsys.readouterr().err
    assert main(["report", "out"]) == 0
    assert capsys.readouterr().out.strip() == "out/report.html"
    assert len(Path("out/report.html").read_text()) == pytest.approx(len(report), rel=0.01)


def test_a_fit_of_its_cost_model_says_whether_it_may_be_used(capsys):
    assert main(["simulate", "mine.toml", "--set", "pipeline.steps=16", "--run-dir", "out"]) == 0
    capsys.readouterr()
    assert main(["fit-cost", "out"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("# Verdict: ")
    assert set(tomllib.loads(told)["rollout"]["cost_model"]) == {"k1", "k2", "k3", "k4"}
    assert all(line.startswith("#") for line in told.partition("[rollout.cost_model]")[0].splitlines())
    begins = told[told.index("# train_s = ") :].replace("# ", "")
    assert tomllib.loads(begins)["train_s"] > 0
    assert len(tomllib.loads(begins)["lengths"]) == 50
    ((spans, kv_tokens, *coefficients),) = tomllib.loads(begins)["replica_costs"]
    assert (spans, coefficients) == (1, list(tomllib.loads(told)["rollout"]["cost_model"].values()))
    assert kv_tokens > 8192
    assert tomllib.loads(begins)["training_times"] == [[1, tomllib.loads(begins)["train_s"]]]


def test_it_is_not_gone_on_with(capsys):
    assert main(["simulate", "mine.toml", "--run-dir", "out"]) == 0
    capsys.readouterr()
    assert main(["run", "--resume", "out"]) == 2
    assert "out: found a simulated run, expected a real one" in capsys.readouterr().err


def test_a_directory_of_its_own_each_time(capsys):
    for _ in range(2):
        assert main(["simulate", "mine.toml", "--no-events"]) == 0
    made = sorted(path.name for path in Path("simulations").iterdir())
    assert len(made) == 2
    assert all(name.startswith("mine-") for name in made)
    assert not list(Path("simulations").rglob("events*"))
    assert "simulations/mine-" in capsys.readouterr().out


def test_one_object_for_scripts_which_the_seed_decides(capsys):
    found = []
    for place, seed in enumerate(("1", "1", "2")):
        assert main(["simulate", "mine.toml", "--json", "--seed", seed, "--out", f"out{place}"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["result"] == found[1]["result"] != found[2]["result"]
    assert Path("out0/events.jsonl").read_bytes() == Path("out1/events.jsonl").read_bytes()
    assert {key: found[0][key] for key in ("ettr", "ettr_strict", "task_restarts", "false_detections", "late_detections")} == {
        "ettr": pytest.approx(1.0, abs=0.2), "ettr_strict": pytest.approx(1.0, abs=0.2), "task_restarts": 0,
        "false_detections": 0, "late_detections": 0,
    }  # fmt: skip
    assert found[0]["simulated_hours"] > 0
    assert [each["seed"] for each in found] == [1, 1, 2]
    assert found[0]["files"]["report"] == "out0/report.html"


def test_a_setting_changes_the_fleet(capsys):
    assert main(["simulate", "mine.toml", "--set", "fleet.rollout.gpus=8", "--out", "out"]) == 0
    assert "8 x H800 generate (8 replicas)" in capsys.readouterr().out


def test_a_run_that_gives_up_is_a_failure_with_a_result(capsys):
    faults = 'faults=["replica@1s", "replica@2s", "replica@3s", "replica@4s"]'
    recovery = 'pipeline.recovery={name="isolate", max_restarts=0}'
    assert main(["simulate", "mine.toml", "--set", faults, "--set", recovery, "--out", "out"]) == 1
    failure = json.loads(Path("out/result.json").read_text())["result"]["failure"]
    assert "is down and is not restarted" in failure
    assert f"The run gave up: {failure}" in " ".join(capsys.readouterr().out.split())
    assert main(["status", "out"]) == 0
    assert "the simulated run failed" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["simulate", "mine.toml"], ["compare", "mine.toml", "mine.toml"]])
def test_an_interruption_leaves_nothing_behind(capsys, monkeypatch, command):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr("tailrace.fleetsim.host.simulator.Simulation.run", interrupted)
    assert main(command) == 130
    assert capsys.readouterr().err == "tailrace: interrupted; nothing was written\n"
    assert not Path("simulations").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["CONFIG", "--help"]),
        (["laminra"], ["'laminra'", "did you mean 'laminar'?"]),
        (["nowhere.toml"], ["nowhere.toml", "no such file"]),
        (["bare.toml"], ["bare.toml: ", "'fleet'", "fleet.model=", "tailrace profile"]),
        (["mine.toml", "--seed", "three"], ["--seed"]),
        (["mine.toml", "--set", "fleet.model=Qwen2.5-8B"], ["mine.toml: ", "Qwen2.5-7B"]),
        (["mine.toml", "--set", "fleet.model=Qwen2.5-72B"], ["145.4 GB", "would"]),
        (["mine.toml", "--set", "fleet.rollout.device=H900"], ["H900", "H800"]),
        (["mine.toml", "--set", "fleet.rollout.gpus=0"], ["fleet.rollout.gpus", "0"]),
        (["mine.toml", "--set", "fleet.rollout.tensor_parallel=8"], ["expected a multiple: 8"]),
        (["mine.toml", "--set", "fleet.colour=red"], ["'fleet.colour'"]),
        (["mine.toml", "--price", "H800"], ["--price H800", "DEVICE=NUMBER"]),
        (["mine.toml", "--price", "H20=1"], ["--price H20=1", "expected one of H800"]),
        (["mine.toml", "--set", "fleet.prices.H900=1"], ["mine.toml: ", "'H900'", "did you mean 'H800'?"]),
        (["mine.toml", "--set", "fleet.prices=2.1"], ["fleet.prices"]),
        (["mine.toml", "--set", "fleet.goal.days=3"], ["fleet.goal.days"]),
        (["mine.toml", "--set", "fleet.goal={}"], ["fleet.goal", "steps or tokens"]),
        (["mine.toml", "--set", "fleet.workload.response=9000"], ["9,000", "8,192"]),
        (["mine.toml", "--set", "pipeline.sync=on-idel"], ["did you mean 'on-idle'?"]),
        (["mine.toml", "--out", "full"], ["full", "found files"]),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(capsys, monkeypatch, arguments, words):
    monkeypatch.delenv("TAILRACE_DEBUG", raising=False)
    Path("full").mkdir()
    Path("full/thesis.tex").write_text("precious")
    before = sorted(Path().rglob("*"))
    assert main(["simulate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tailrace: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err
    assert sorted(Path().rglob("*")) == before


def test_progress_in_lines_now_and_then():
    now, written = [0.0], []
    lines = simulate.ProgressLines("mine", written.append, clock=lambda: now[0])
    for second in range(12):
        now[0] = float(second)
        lines(SimulationProgress(step=second, steps=20, now_s=100.0 * second, wall_s=2.0, trajectories=1000 * second))
    assert written == [
        "mine: 5 of 20 batches, 8 min 20 s simulated, 2,500 trajectories/s",
        "mine: 10 of 20 batches, 16 min 40 s simulated, 5,000 trajectories/s",
    ]


def test_the_score_of_a_paper_is_the_last_word_and_of_all_papers_of_each(capsys):
    assert main(["reproduce", "all", "--jobs", "1", "--only", "LAM-BCAST", "--only", "SF-COST-knee"]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = [line for line in lines if "predictions scored" in line]
    assert said == 2 * [
        "laminar: predictions scored 0, statements right 0 of 0",
        "staleflow: predictions scored 0, statements right 0 of 0",
    ]
    assert main(["reproduce", "all", "--only", "LAM-NO"]) == 2
    assert "found the target 'LAM-NO', which no paper has" in capsys.readouterr().err


def test_a_score_says_how_many_are_scored_the_median_the_worst_and_the_statements():
    from tailrace.cli.simulations.reproduce import beside, score
    from tailrace.fleetsim.reproduce import summarise
    from tailrace.fleetsim.reproduce.records import record
    from tailrace.laminar.paper import PAPER

    known = {target.id: target for target in PAPER.targets()}
    ours = {
        "LAM-E2E-stream-avg": [1.768],
        "LAM-REPACK-ovh": [15.52],
        "LAM-E2E-verl-avg": [2.239],
        "LAM-STALE-typ": [3.0],
    }
    summary = summarise([record(known[id_], values) for id_, values in ours.items()])
    assert score("laminar", summary) == (
        "laminar: predictions scored 2, median error 1078.8%, worst 2,149% (LAM-REPACK-ovh), statements right 1 of 1"
    )
    assert "1 more predictions that parameters were once chosen on stand apart" in next(beside(summary))
