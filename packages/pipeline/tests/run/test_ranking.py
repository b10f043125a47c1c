"""Table `[ranker]` of a configuration: what it starts, and what is wrong with it before minutes of preparation."""

import pytest

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.roles.ranker import RankerSettings
from tailrace.pipeline.run.build import build_spec, check
from tailrace.pipeline.run.ranking import check_ranker, ranker_settings
from tailrace.ranker import Example, LengthRanker

TASK = {"task": {"name": "short-chain-sum"}}


def config(**ranker):
    return RunConfig.model_validate({**TASK, "ranker": ranker, "rollout": {"max_tokens": 77}, "seed": 5})


def test_without_the_table_there_is_no_ranker():
    assert not build_spec(RunConfig()).ranker
    check_ranker(RunConfig())


def test_with_it_the_run_has_one_and_the_evaluation_of_controls_has_none():
    assert build_spec(config()).ranker
    assert not build_spec(config(), controls=True).ranker


def test_what_the_role_is_told(tmp_path):
    told = ranker_settings(config(prompts=9, method="lexical"), tmp_path / "model", tmp_path / "ranker")
    assert told == RankerSettings(
        saved=tmp_path / "ranker", path=None, method="lexical", prompts=9, samples=8, look_s=2.0,
        budget_s=60.0, policy=tmp_path / "model", seed=5,
    )  # fmt: skip


def test_a_ranker_that_was_saved_is_taken(tmp_path):
    examples = [Example("a " * n, (10 * n,)) for n in range(1, 9)]
    LengthRanker.train(examples, method="prompt-length").save(tmp_path / "saved")
    check_ranker(config(path=str(tmp_path / "saved")))


@pytest.mark.parametrize(
    ("ranker", "message"),
    [
        (
            {"method": "lexcal"},
            r"key 'ranker.method': found 'lexcal', expected one of auto, .*; did you mean 'lexical'\?",
        ),
        ({"path": "/no/ranker/here"}, r"key 'ranker.path': .*/no/ranker/here"),
    ],
)
def test_a_wrong_value_is_one_line(ranker, message):
    with pytest.raises(ConfigError, match=message) as raised:
        check(config(**ranker))
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("axis", "policy"),
    [
        ("routing", {"name": "marginal-throughput", "predicted": True}),
        ("relocation", {"name": "best-fit", "projected": True}),
    ],
)
def test_a_policy_that_plans_with_predictions_needs_a_ranker(axis, policy):
    table, option = {**TASK, "pipeline": {axis: policy}}, list(policy)[1]
    words = rf"key 'pipeline\.{axis}': found .*, which plans with predicted lengths, in a run without a ranker"
    with pytest.raises(ConfigError, match=words):
        check_ranker(RunConfig.model_validate(table))
    check_ranker(RunConfig.model_validate({**table, "ranker": {}}))
    check_ranker(RunConfig.model_validate({**TASK, "pipeline": {axis: {**policy, option: False}}}))


def test_a_fault_of_a_ranker_that_is_not_there_is_one_line():
    faults = {**TASK, "faults": ("ranker@step1",)}
    with pytest.raises(ConfigError, match="found no ranker in this run, expected one of data, scorer, trainer"):
        check(RunConfig.model_validate(faults))
    check(RunConfig.model_validate({**faults, "ranker": {}}))


def test_skew_aware_routing_is_told_what_a_pool_costs():
    cost = {"k1": 0.0, "k2": 0.0, "k3": 4e-4, "k4": 0.01}
    pools = [{"name": "a", "count": 2}, {"name": "b", "cost_model": {**cost, "k4": 0.002}}]
    table = {
        **TASK,
        "pipeline": {"routing": "skew-aware"},
        "rollout": {"cost_model": cost, "pools": pools},
        "ranker": {},
    }
    assert build_spec(RunConfig.model_validate(table)).routing.pool_costs == (("b", 0.0, 0.0, 4e-4, 0.002),)
    least = {**table, "pipeline": {"routing": "least-loaded"}}
    assert build_spec(RunConfig.model_validate(least)).routing is not None
