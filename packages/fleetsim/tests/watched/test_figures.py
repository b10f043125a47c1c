"""Figures under one definition, words for them, and advice that fits."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tailrace.contracts import plugins
from tailrace.fleetsim.errors import FleetsimError
from tailrace.fleetsim.results import outcome
from tailrace.fleetsim.results.advice import advice, findings
from tailrace.fleetsim.results.watch import watch
from tailrace.fleetsim.run import simulate
from tailrace.pipeline.run.figures.batches import Batch
from tailrace.report.figures.comparison import comparison, ratios, unique

from .conftest import LAMINAR, SYNCHRONOUS, configured

ON_H20 = {"gpus": 4, "device": "H20"}


def test_shares_of_a_roles_time_add_up(laminar, synchronous):
    for watched in (laminar, synchronous):
        for used in watched.figures.roles:
            assert used.busy + sum(share for _, _, share in used.bubbles) == pytest.approx(1.0)


def test_figures_agree_with_the_result(laminar, synchronous):
    for watched in (laminar, synchronous):
        figures, result = watched.figures, watched.result
        assert figures.staleness_mean == result.staleness_mean
        assert figures.busy("trainer") == pytest.approx(result.utilisation["trainer"], abs=0.02)
        assert figures.busy("replica") == pytest.approx(result.utilisation["replica"], abs=0.02)
        assert figures.response_tokens_per_s < figures.tokens_per_s
        assert figures.kv_share == result.kv_share
        assert figures.device_hours_per_million == {"H800": pytest.approx(8 / 3600 / result.tokens_per_s * 1e6)}
        assert figures.finish_s == pytest.approx(6 * result.step_s)
        json.dumps(figures.to_json(), allow_nan=False)


def test_response_tokens_are_of_the_measured_batches(laminar):
    batches, figures = laminar.result.batches, laminar.figures
    trained = sum(sum(batch.lengths) for batch in laminar.folds.batches.trained[1:])
    assert figures.measured_s == (batches[0].at_s, batches[-1].at_s)
    assert figures.response_tokens_per_s == pytest.approx(trained / (batches[-1].at_s - batches[0].at_s))
    assert figures.tokens_per_s == laminar.result.tokens_per_s
    assert figures.step_s == laminar.result.step_s
    assert figures.staleness == laminar.result.staleness
    sampled = laminar.folds.loads.generated(*figures.measured_s) / (batches[-1].at_s - batches[0].at_s)
    assert figures.generated_tokens_per_s == pytest.approx(sampled, rel=0.05)


@pytest.mark.parametrize("training", plugins.names("tailrace.training"))
def test_response_tokens_are_counted_however_they_are_trained_on(training):
    watched = watch(configured(LAMINAR | {"training": training}, steps=3, faults=["trainer@step2"]))
    tokens = {batch.version: batch.tokens for batch in watched.result.batches}
    assert len(watched.folds.batches.trained) == 3
    for batch in watched.folds.batches.trained:
        assert 100 < (tokens[batch.version] - sum(batch.lengths)) / len(batch.lengths) < 250  # 162 on average


def test_everything_is_said(laminar, staleflow):
    said = dict(outcome.rows(laminar))
    assert said["fleet"] == "Qwen2.5-7B: 4 x H800 train, 4 x H800 generate (4 replicas)"
    assert said["measured"].startswith("5 batches after 1 of warm-up")
    assert " busy" in said["trainer"]
    assert "H800-hours for a million trained tokens" in said["cost"]
    assert "prompt" in said
    assert "response" in said
    assert "pulls interrupted work" in dict(outcome.rows(staleflow))["relocation"]


def test_the_histogram_has_a_bar_for_every_staleness(laminar):
    figures = replace(laminar.figures, staleness={0: 1, 2: 1000, 3: 500}, staleness_max=3, staleness_mean=2.3)
    assert outcome.staleness(figures) == "2.30 mean, 3 max   0 ▁·█▄ 3"
    assert outcome.staleness(replace(figures, staleness={}, staleness_max=0, staleness_mean=0.0)) == "0.00 mean, 0 max"


def test_without_a_price_no_money_is_made_up(laminar):
    figures = laminar.figures
    assert (figures.price_per_hour, figures.cost_per_million, figures.price_to_finish) == (None, None, None)
    assert "2.00 H800-hours" in outcome.cost(figures, 900.0)
    assert "an hour" not in outcome.cost(figures, 900.0)


def test_a_price_gives_money_for_an_hour_a_million_tokens_and_the_goal(laminar):
    priced = watch(configured(LAMINAR, prices={"H800": 2.0, "H20": 1.0}, goal={"tokens": 3e6}))
    figures = priced.figures
    assert figures.tokens_per_s == laminar.figures.tokens_per_s  # a price changes nothing else
    assert figures.price_per_hour == 16.0
    assert figures.cost_per_million == pytest.approx(16.0 / 3600 / figures.tokens_per_s * 1e6)
    assert figures.finish_s == pytest.approx(3e6 / figures.tokens_per_s)
    assert figures.price_to_finish == pytest.approx(3 * figures.cost_per_million)
    assert priced.result.cost_per_mtoken == pytest.approx(figures.cost_per_million)
    assert outcome.finish(figures).startswith("3,000,000 tokens in ")
    assert outcome.cost(figures, 900.0).startswith("16.00 an hour, ")


def test_devices_of_two_kinds_keep_their_names():
    two = watch(configured(LAMINAR, trainer=ON_H20, steps=3))
    assert two.figures.devices == {"H20": 4, "H800": 4}
    assert set(two.figures.device_hours_per_million) == {"H20", "H800"}


@pytest.mark.parametrize(
    ("prices", "words"),
    [
        ({"H801": 1.0}, "unknown device 'H801'.*did you mean 'H800'"),
        ({"H800": 1.0}, "a price of H800 and none of H20"),
        ({"H800": -1.0}, "fleet.prices.H800.*found -1.0"),
        ({"H800": "2"}, "fleet.prices.H800.*found '2'"),
    ],
)
def test_a_price_that_cannot_be_is_one_line(prices, words):
    with pytest.raises(FleetsimError, match=words):
        watch(configured(LAMINAR, trainer=ON_H20, prices=prices))


def batches(*ended, lags=()):
    """Batches that were done at these times, and the staleness of all in each."""
    lags = lags or [0] * len(ended)
    return [
        Batch(at, [100], [lag], [lag], at_s, at_s) for at, (at_s, lag) in enumerate(zip(ended, lags, strict=True), 1)
    ]


class Folds:
    """What was folded, with other batches."""

    def __init__(self, folds, batches):
        self.batches, self.timeline, self.faults = SimpleNamespace(trained=batches), folds.timeline, folds.faults


def growing(watched, *lags):
    ended = [10.0 * place for place in range(len(lags))]
    return advised(watched, folds=Folds(watched.folds, batches(*ended, lags=lags)))


def advised(watched, **changes):
    return " ".join(findings(replace(watched, **changes)))


def test_what_is_off_is_said(laminar):
    assert "Staleness grows: 1.00 on average" in growing(laminar, 0, 1, 1, 1, 4, 4, 4)
    assert "Staleness grows" not in growing(laminar, 0, 1, 1, 1, 1, 1, 1)
    assert "Only 2 batches" in advised(laminar, figures=replace(laminar.figures, batches=2))
    assert "The run gave up: too hot" in advised(laminar, result=replace(laminar.result, failure="too hot"))
    assert "no end" in advised(laminar, result=replace(laminar.result, lost_trajectories=3))
    assert "on prefill" in advised(laminar, result=replace(laminar.result, prefill_share=0.4))
    slower = batches(0.0, 5.0, 10.0, 20.0, 40.0, 60.0, 80.0)
    assert "Not in steady state" in advised(laminar, folds=Folds(laminar.folds, slower))


def remedies(watched, rates):
    """What is advised if each tried change has such a rate, relative to what is; and the changes."""
    tried = []

    def simulated(configs, seed):
        assert seed == watched.seed
        tried.extend(configs)
        return [watched.result.tokens_per_s * rate for rate, _ in zip(rates, configs, strict=False)]

    return " ".join(advice(watched, simulated)), tried


def test_a_change_is_advised_only_if_it_gains(laminar):
    full = replace(laminar, result=replace(laminar.result, preemptions=10_000))
    lost, tried = remedies(full, [1.01])
    assert [config.pipeline.prompts_per_replica for config in tried] == [6]
    assert "KV cache" not in lost
    gained, _ = remedies(full, [1.2])
    rate = laminar.result.tokens_per_s * 1.2
    assert f"Simulated too: pipeline.prompts_per_replica=6 trains on {rate:,.0f} tokens/s, 20.0 % more." in gained
    assert remedies(laminar, []) == (" ".join(findings(laminar)), [])


@pytest.mark.deep
def test_what_is_advised_is_so_when_it_is_simulated():
    """A trainer with far more devices than it can use, beside replicas that the longest responses hold up."""
    many = watch(configured(SYNCHRONOUS, trainer={"gpus": 32}))
    told = [text for text in advice(many) if text.startswith("The trainer waits for")]
    assert len(told) == 1
    said = re.search(
        r"Simulated too: fleet.trainer.gpus=(\d+) trains on (.*) tokens/s, .* with (\d+) devices fewer", told[0]
    )
    assert int(said[1]) + int(said[3]) == 32
    again = simulate(configured(SYNCHRONOUS, trainer={"gpus": int(said[1])}), seed=many.seed)
    assert f"{again.tokens_per_s:,.0f}" == said[2]
    assert again.tokens_per_s >= 0.98 * many.result.tokens_per_s


def test_devices_that_wait_are_no_fault_where_fewer_are_slower(laminar):
    """Every change that was tried loses a little, or is not faster and saves nothing."""
    idle = replace(laminar.figures, roles=[replace(used, idle=0.5) for used in laminar.figures.roles])
    waiting = replace(laminar, figures=idle)
    lost, tried = remedies(waiting, [0.97] * 12)
    assert tried
    assert "waits for" not in lost
    assert "are idle" not in lost


def test_a_run_of_few_steps_is_said_to_end_too_soon():
    short = watch(configured(LAMINAR, steps=3, steady=False))
    assert "The end of the run weighs" in " ".join(findings(short))


def test_the_table_compares_with_the_first(laminar, synchronous):
    systems = [laminar.figures, synchronous.figures]
    table = comparison(systems)
    rows = {row[0]: row[1:] for row in table.rows}
    assert table.columns == ["system", "#laminar", "#synchronous"]
    assert rows["relative to laminar"][0] == "1.00 x"
    assert rows["staleness max"][1] == "0"
    expected = synchronous.result.tokens_per_s / laminar.result.tokens_per_s
    assert ratios(systems) == [1.0, pytest.approx(expected)]
    assert all(len(row) == 3 for row in table.rows)


def test_what_is_known_of_one_alone_is_said_to_be_unknown_of_the_other(laminar):
    figures = laminar.figures
    real = replace(figures, name="real", simulated=False, tokens_per_s=None, preemptions=None, roles=(), gpus=0)
    rows = {row[0]: row[1:] for row in comparison([figures, real]).rows}
    assert rows[""] == ["simulated", "measured"]
    assert rows["preemptions"][1] == "not known"
    assert rows["trainer busy"][1] == "not known"
    assert "tokens/s trained on" not in rows  # prompts count in one and not in the other
    assert rows["relative to laminar"] == ["1.00 x", "1.00 x"]


def test_names_are_told_apart():
    assert unique(["a", "b", "a", "a"]) == ["a", "b", "a (2)", "a (3)"]
