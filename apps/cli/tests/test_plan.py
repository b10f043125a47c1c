"""`tailrace plan`: what it prints, the configuration it writes, and what it refuses."""

import dataclasses
import io
import json
from pathlib import Path

import pytest

from tailrace.cli.console import plain_console
from tailrace.cli.main import main
from tailrace.cli.simulations.plan import PlanOptions, show, written
from tailrace.fleetsim.fleet.config import fleet_config
from tailrace.fleetsim.plan import Option, PoolShare, Search, Split
from tailrace.fleetsim.plan.search import OWN
from tailrace.pipeline.config.target import configuration

CONFIG = """
app = "laminar"
pipeline = { steps = 4, prompts_per_step = 8, samples_per_prompt = 4, prompts_per_replica = 4 }
rollout = { max_tokens = 4096 }
fleet.model = "Qwen2.5-7B"
fleet.trainer.gpus = 3
fleet.rollout.gpus = 1
fleet.workload.response = [{ median = 500, sigma = 0.9 }]
"""


@pytest.mark.deep
def test_the_best_is_printed_and_written_as_a_configuration(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "mine.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    best, found = Path("best.toml"), Path("found.json")
    options = ["--gpus", "4", "--bound", "0", "--jobs", "1", "--out", str(best), "--json", str(found)]
    status = main(["plan", str(tmp_path / "mine.toml"), *options, "--price", "H800=2", "--objective", "cost"])
    out = capsys.readouterr().out
    assert status == 0
    assert out.startswith("Best: ")
    assert max(map(len, out.splitlines())) <= 80
    assert "\u2026" not in out
    options = json.loads(found.read_text())["options"]
    costs = [option["cost_per_mtoken"] for option in options]
    assert costs == sorted(costs)
    assert options[0]["price_per_hour"] == 8.0
    assert options
    assert all(option["staleness_max"] == 0 for option in options)
    written = configuration(str(best))
    assert written.pipeline.prompts_per_step == 8
    assert written.fleet["rollout"]["tensor_parallel"] == int(options[0]["split"].rpartition(" ")[2])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "4", "--objective", "speed"], "throughput or cost"),
        (["--gpus", "0"], "--gpus"),
        ([], "expected --gpus N"),
        (["--gpus", "4", "--set", "fleet.model=Qwen9"], "Qwen9"),
        (["--gpus", "1"], "2 GPUs would"),
        (["--gpus", "4", "--objective", "cost"], "--price H800=2.1"),
        (["--gpus", "4", "--price", "H800"], "expected DEVICE=NUMBER"),
        (["--gpus", "4", "--price", "H800=cheap"], "found 'cheap'"),
        (["--gpus", "4", "--price", "H800=-1"], "at least 0"),
        (["--gpus", "4", "--price", "H800=nan"], "a finite number"),
        (["--gpus", "4", "--price", "H800=1", "--price", "H800=2"], "a second price of H800"),
        (["--gpus", "4", "--price", "H80=2"], "did you mean 'H800'?"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, arguments, words):
    (tmp_path / "mine.toml").write_text(CONFIG)
    assert main(["plan", str(tmp_path / "mine.toml"), *arguments, "--jobs", "1"]) == 2
    err = capsys.readouterr().err
    told = [line for line in err.splitlines() if not line.startswith("mixes: ")]  # a slow search says how far it is
    assert len(told) == 1
    assert words in told[0]


def option(place, split, policies, price=4096.0):
    return Option(
        split=split,
        policies=policies,
        settings={},
        tokens_per_s=12_345_678.9 / place,
        staleness_mean=10.25,
        staleness_max=11,
        utilisation={"trainer": 1.0, "replica": 0.995},
        devices={"H800": 4096},
        price_per_hour=price,
        cost_per_mtoken=None if price is None else 1234.5,
        finish_s=1e8,
        seeds=3,
        own=policies == OWN,
    )


@pytest.mark.parametrize("price", [None, 123_456.78])
def test_the_answer_is_whole_in_eighty_columns(price):
    mix = "in-flight-cap(12), when-useful, marginal-throughput, migration, dynamic-batch, 2 batches in flight"
    mix += ", but training mini-batch, but 0.5 x work for a replica"
    options = [option(1, Split(2048, 2048, 8), mix, price), option(2, Split(0, 4096, 8), OWN, price)]
    search = Search(options, options[1], 230, [("a", "b")], 12, "10,000,000 steps")
    console = plain_console(width=80, file=io.StringIO())
    show(search, console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 80
    said = " ".join(" ".join(lines).split())
    assert "\u2026" not in said
    assert said.startswith("Best: 2,048 H800 train, 2,048 generate (replicas of 8): 12,345,679 tokens/s, 2.00 times")
    assert said.count(mix) == 2  # in the answer and beside its row
    for cell in ("2,048 + 2,048, 8", "12,345,679", "10.2", "100%", "1,157 days", "the configuration's own"):
        assert cell in said
    assert ("per Mtok." in said) == ("1,23" in said) == (price is not None)


POOLS = Split(
    4,
    20,
    4,
    (
        PoolShare("H800", "", 4, 4, {"device": "H800", "gpus": 16}),
        PoolShare("H20", "cloud", 16, 2, {"device": "H20", "gpus": 32, "site": "cloud", "step_s": 0.001}),
    ),
)


def test_pools_are_written_as_tables_and_said_in_eighty_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(CONFIG + "fleet.sites.cloud.share = 0.5\n")
    best = dataclasses.replace(option(1, POOLS, "own"), settings=POOLS.settings())
    options = PlanOptions("mine.toml", settings=('relay.sites={"eu west" = 2}',))
    Path("best.toml").write_text(written(options, Path("best.toml"), "the best", best.settings))
    assert configuration("best.toml").relay.sites == {"eu west": 2}
    pools = fleet_config(configuration("best.toml").fleet).rollout
    assert [(pool.device, pool.gpus, pool.tensor_parallel, pool.site) for pool in pools] == [
        ("H800", 4, 4, ""),
        ("H20", 16, 2, "cloud"),
    ]
    assert pools[1].step_s == 0.001
    console = plain_console(width=80, file=io.StringIO())
    show(Search([best], None, 1, [], 1, "10 steps"), console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 80
    said = " ".join(" ".join(lines).split())
    assert "4 train, 4 H800 (replicas of 4) and 16 H20 at cloud (replicas of 2) generate" in said
