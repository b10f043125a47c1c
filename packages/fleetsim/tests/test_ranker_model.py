"""The modelled ranker of whole simulated runs: it errs by its recalls, learns, drifts and learns anew."""

import pytest

from tailrace.contracts import Activity, Predicted, PredictionFailed
from tailrace.fleetsim import simulate
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.world import World
from tailrace.fleetsim.members.ranker import BLOCK, RankerModel
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.errors import ConfigError
from tailrace.ranker import recall


def content(errs=None, *, ranker=True):
    return {
        "app": "laminar",
        "pipeline": {
            "admission": "on-policy",
            "sync": "barrier",
            "routing": {"name": "skew-aware"},
            "relocation": "none",
            "provisioning": "static",
            "steps": 6,
            "prompts_per_step": 32,
            "samples_per_prompt": 4,
            "prompts_per_replica": 32,
        },
        "rollout": {"max_tokens": 16384},
        **({"ranker": {}} if ranker else {}),
        "fleet": {
            "model": "Qwen2.5-7B",
            "placement": "colocated",
            "weights": "global",
            "warm_up": 1,
            "steady": False,
            "trainer": {"gpus": 4},
            "rollout": {"gpus": 4},
            "delays": {"snapshot_s": 1.0},
            "workload": {"response": [{"median": 900, "sigma": 1.0}]},
            **({} if errs is None else {"ranker": errs}),
        },
    }


def config(errs=None, **changes):
    return validate([("test", content(errs, **changes))])


def of(kind, result):
    return [event for _, *events in result.events for event in events if isinstance(event, kind)]


def predicted(ranker=None, prompts=2 * BLOCK):
    """What a model says of the first prompts, and what is true of them."""
    model, true = (RankerModel(World(build_fleet(config(each)))) for each in (ranker, None))
    said = [model.length(prompt, 1) for prompt in range(prompts)]
    return said, [true.length(prompt, 1) for prompt in range(prompts)]


def test_by_default_it_says_what_is_true():
    said, true = predicted()
    assert said == true


@pytest.mark.parametrize(
    ("ranker", "share", "found"),
    [({"recall20": 0.87, "recall10": 0.82, "recall5": 0.76}, 0.05, 0.76), ({"recall20": 0.6}, 0.2, 0.6)],
)
def test_it_finds_as_many_of_the_longest_as_it_is_told(ranker, share, found):
    said, true = predicted(ranker)
    assert sorted((each.tokens, each.p90) for each in said) == sorted((each.tokens, each.p90) for each in true)
    measured = recall([each.tokens for each in said], [round(100 * each.tokens) for each in true], share)
    assert measured == pytest.approx(found, abs=0.06)


def test_what_it_says_does_not_depend_on_who_asks_when():
    model = RankerModel(World(build_fleet(config({"recall20": 0.8}))))
    late = model.length(BLOCK + 3, 1)
    assert predicted({"recall20": 0.8})[0][BLOCK + 3] == late


def test_a_run_whose_ranker_errs_ends_as_the_other_and_is_the_same_each_time():
    result, again = simulate(config({"recall20": 0.5})), simulate(config({"recall20": 0.5}))
    assert result.failure is None
    assert result.lost_trajectories == 0
    assert result.events == again.events
    assert len(of(Predicted, result)) == 6 * 32


def test_one_that_has_to_learn_has_no_length_before():
    result = simulate(config({"examples": 24, "learn_s": 5.0}))
    assert result.failure is None
    failed, said = of(PredictionFailed, result), of(Predicted, result)
    assert {each.prompt for each in failed} >= set(range(32))
    assert "expected 24 prompts' worth to learn from" in failed[0].reason
    assert {each.prompt for each in said} >= set(range(64, 6 * 32))
    assert [(each.phase, each.progress) for each in of(Activity, result) if each.role == "ranker"] == [("trained", 1)]


def test_one_that_drifts_learns_anew_when_it_has_lost_too_much():
    drifts = {"recall20": 0.87, "drift": 0.4}
    learns, never = simulate(config(drifts)), simulate(config(drifts | {"band": 1.0}))
    updates = [each.phase for each in of(Activity, learns) if each.role == "ranker"]
    assert set(updates) == {"updated"}
    assert [each for each in of(Activity, never) if each.role == "ranker"] == []
    assert never.failure is None


@pytest.mark.parametrize(
    ("ranker", "changes", "message"),
    [
        ({"recall20": 0.9}, {"ranker": False}, "found 'ranker' in a run without one, expected a table"),
        ({"recall20": 0.9, "recall5": 0.06}, {}, "expected some that one ranker can have"),
        ({"drift": 0.1}, {}, r"found ranker.drift = 0.1 without a recall"),
        ({"recall20": 0.1}, {}, "recall20"),
        ({"recal20": 0.9}, {}, "recal20.*recall20"),
    ],
)
def test_what_cannot_be_is_one_line(ranker, changes, message):
    with pytest.raises((FleetError, ConfigError), match=message) as raised:
        build_fleet(config(ranker, **changes))
    assert len(str(raised.value).splitlines()) == 1
