"""Figures under one definition, words for them, and advice that fits."""

import json
from dataclasses import replace

import pytest

from tailrace.contracts import plugins
from tailrace.fleetsim.picture import words
from tailrace.fleetsim.picture.advice import advice
from tailrace.fleetsim.picture.comparison import comparison, ratios, unique
from tailrace.fleetsim.picture.figures import simulated
from tailrace.fleetsim.picture.watch import watch
from tailrace.fleetsim.recorder import Row

from .conftest import LAMINAR, SYNCHRONOUS, configured


def test_shares_of_a_roles_time_add_up(laminar, synchronous):
    for watched in (laminar, synchronous):
        for used in simulated(watched).roles:
            assert used.busy + sum(share for _, _, share in used.bubbles) == pytest.approx(1.0)


def test_figures_agree_with_the_result(laminar, synchronous):
    for watched in (laminar, synchronous):
        figures, result = simulated(watched), watched.result
        assert figures.staleness_mean == result.staleness_mean
        assert figures.busy("trainer") == pytest.approx(result.utilisation["trainer"], abs=0.02)
        assert figures.busy("replica") == pytest.approx(result.utilisation["replica"], abs=0.02)
        assert figures.response_tokens_per_s < figures.tokens_per_s
        assert figures.kv_share == result.kv_share
        assert figures.cost_per_million == pytest.approx(8 * 2.85 / 3600 / result.tokens_per_s * 1e6)
        json.dumps(figures.to_json(), allow_nan=False)


def test_response_tokens_are_of_the_measured_batches(laminar):
    rows, figures = laminar.rows, simulated(laminar)
    trained = sum(laminar.responses(row.version) for row in rows[1:])
    assert figures.response_tokens_per_s == pytest.approx(trained / (rows[-1].at_s - rows[0].at_s))


@pytest.mark.parametrize("training", plugins.names("tailrace.training"))
def test_response_tokens_are_counted_however_they_are_trained_on(training):
    watched = watch(configured(LAMINAR | {"training": training}, steps=3, faults=["trainer@step2"]))
    for row in watched.rows:
        prompts = row.tokens - watched.responses(row.version)
        assert 100 < prompts / sum(row.lags.values()) < 250  # 162 on average


def test_everything_is_said(laminar, staleflow):
    said = dict(words.rows(laminar, simulated(laminar)))
    assert said["fleet"] == "Qwen2.5-7B: 4 x H800 train, 4 x H800 generate (4 replicas)"
    assert said["measured"].startswith("5 batches after 1 of warm-up")
    assert " busy" in said["trainer"]
    assert "H20-hours for a million trained tokens" in said["cost"]
    assert "prompt" in said
    assert "response" in said
    assert "pulls interrupted work" in dict(words.rows(staleflow, simulated(staleflow)))["relocation"]


def test_the_histogram_has_a_bar_for_every_staleness(laminar):
    figures = replace(simulated(laminar), staleness={0: 1, 2: 1000, 3: 500}, staleness_max=3, staleness_mean=2.3)
    assert words.staleness(figures) == "2.30 mean, 3 max   0 ▁·█▄ 3"
    assert words.staleness(replace(figures, staleness={}, staleness_max=0, staleness_mean=0.0)) == "0.00 mean, 0 max"


def test_without_a_price_no_cost_is_made_up(laminar):
    figures = replace(simulated(laminar), price_per_hour=None)
    assert figures.cost_per_million is None
    assert words.cost(figures, 3.0) == "3.00 GPU-hours; the devices have no price"


def lags(*means):
    """Rows of batches ten seconds apart with such a mean staleness."""
    return [Row(place + 1, 10.0 * place, 100, {mean: 8}) for place, mean in enumerate(means)]


def advised(watched, **changes):
    return " ".join(advice(replace(watched, **changes), simulated(watched)))


def test_what_is_off_is_said(laminar):
    assert "Staleness grows: 1.00 on average" in advised(laminar, rows=lags(0, 1, 1, 1, 4, 4, 4))
    assert "Staleness grows" not in advised(laminar, rows=lags(0, 1, 1, 1, 1, 1, 1))
    assert "Only 2 batches" in " ".join(advice(laminar, replace(simulated(laminar), batches=2)))
    assert "The run gave up: too hot" in advised(laminar, result=replace(laminar.result, failure="too hot"))
    assert "no end" in advised(laminar, result=replace(laminar.result, lost_trajectories=3))
    assert "KV cache overflows" in advised(laminar, result=replace(laminar.result, preemptions=10_000))
    assert "on prefill" in advised(laminar, result=replace(laminar.result, prefill_share=0.4))
    rows = [Row(place, at_s, 100, {0: 8}) for place, at_s in enumerate((0.0, 5.0, 10.0, 20.0, 40.0, 60.0, 80.0))]
    assert "Not in steady state" in advised(laminar, rows=rows)


def test_a_trainer_with_too_many_devices_is_told_of():
    many = watch(configured(SYNCHRONOUS, trainer={"gpus": 32}))
    found = " ".join(advice(many, simulated(many)))
    assert "The trainer waits for" in found
    assert "fewer devices" in found


def test_a_run_of_few_steps_is_said_to_end_too_soon():
    short = watch(configured(LAMINAR, steps=3, steady=False))
    assert "The end of the run weighs" in " ".join(advice(short, simulated(short)))


def test_the_table_compares_with_the_first(laminar, synchronous):
    systems = [simulated(laminar), simulated(synchronous)]
    table = comparison(systems)
    rows = {row[0]: row[1:] for row in table.rows}
    assert table.columns == ["system", "#laminar", "#synchronous"]
    assert rows["relative to laminar"][0] == "1.00 x"
    assert rows["staleness max"][1] == "0"
    expected = synchronous.result.tokens_per_s / laminar.result.tokens_per_s
    assert ratios(systems) == [1.0, pytest.approx(expected)]
    assert all(len(row) == 3 for row in table.rows)


def test_what_is_known_of_one_alone_is_said_to_be_unknown_of_the_other(laminar):
    figures = simulated(laminar)
    real = replace(figures, name="real", simulated=False, tokens_per_s=None, preemptions=None, roles=(), gpus=0)
    rows = {row[0]: row[1:] for row in comparison([figures, real]).rows}
    assert rows[""] == ["simulated", "measured"]
    assert rows["preemptions"][1] == "not known"
    assert rows["trainer busy"][1] == "not known"
    assert "tokens/s trained on" not in rows  # prompts count in one and not in the other
    assert rows["relative to laminar"] == ["1.00 x", "1.00 x"]


def test_names_are_told_apart():
    assert unique(["a", "b", "a", "a"]) == ["a", "b", "a (2)", "a (3)"]
