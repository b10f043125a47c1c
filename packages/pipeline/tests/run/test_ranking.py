"""Table `[ranker]` of a configuration: what it starts, and what is wrong with it before minutes of preparation."""

import pytest

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.roles.ranker import RankerSettings
from tailrace.pipeline.run.build import build_spec, check
from tailrace.pipeline.run.pools import ranker_gpus
from tailrace.pipeline.run.ranker_memory import fine_tuning_memory
from tailrace.pipeline.run.ranking import check_ranker, ranker_chosen, ranker_settings
from tailrace.ranker import Example, LengthRanker, Sft
from tailrace.ranker.baselines.lexical import Lexical
from tailrace.ranker.learned.pretrained import Tuning
from tailrace.ranker.methods import Deadline, Setting
from tailrace.ranker.testing import language_model

TASK = {"task": {"name": "short-chain-sum"}}


@pytest.fixture(scope="module")
def small_ranker_model(tmp_path_factory):
    """The directory of a random language model with a tokenizer."""
    pytest.importorskip("torch")
    return language_model(tmp_path_factory.mktemp("ranker") / "model")


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
        saved=tmp_path / "ranker", path=None, method=Lexical(), prompts=9, samples=8, look_s=2.0,
        budget_s=60.0, policy=tmp_path / "model", seed=5,
    )  # fmt: skip


def test_the_language_model_and_every_option_reach_the_role(tmp_path, small_ranker_model):
    told = ranker_settings(
        config(
            method="sft",
            init=str(small_ranker_model),
            objective="pairwise",
            options={"lora_rank": 4, "steps": 9, "init_lr": 1e-3},
        ),
        tmp_path / "model",
        tmp_path / "ranker",
    )
    assert told.method == Sft(objective="pairwise", lora_rank=4, steps=9, init_lr=1e-3)
    assert told.init == small_ranker_model
    check_ranker(config(method="sft", init=str(small_ranker_model)))


def test_the_role_gets_its_threads_and_its_gpu():
    given = RunConfig.model_validate(
        {**TASK, "ranker": {"method": "lexical", "threads": 3}, "executor": {"ranker_gpus": 0.5}}
    )
    assert ranker_gpus(given) == 0.5
    assert ranker_gpus(RunConfig.model_validate({"executor": {"ranker_gpus": 0.5}})) == 0.0, (
        "without a ranker it needs none"
    )


def test_what_the_summary_says_of_the_ranker_is_what_was_saved_last(tmp_path):
    assert ranker_chosen(tmp_path) == {"ranker_method": None, "ranker_objective": None}
    examples = [Example("a " * n, (10 * n,)) for n in range(1, 9)]
    LengthRanker.train(examples, method="random").save(tmp_path / "1")
    LengthRanker.train(examples, method="prompt-length").save(tmp_path / "2")
    (tmp_path / "3" / "predictor").mkdir(parents=True)  # it was killed while it saved
    assert ranker_chosen(tmp_path) == {"ranker_method": "prompt-length", "ranker_objective": None}


def test_the_memory_of_adapters_is_that_of_the_layers_that_peft_makes(small_ranker_model):
    torch = pytest.importorskip("torch")
    model = Tuning(Sft(lora_rank=3), small_ranker_model, 0).causal_lm()
    learns = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    frozen = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
    adapters = fine_tuning_memory(small_ranker_model, Sft(lora_rank=3), gpu=False)
    assert (adapters.learns, adapters.weights) == (learns, 4 * frozen)
    assert fine_tuning_memory(small_ranker_model, Sft(lora_rank=3), gpu=True).weights == 2 * frozen
    whole = fine_tuning_memory(small_ranker_model, Sft(lora_rank=0), gpu=True)
    assert (whole.learns, whole.weights) == (frozen, 4 * frozen)
    head = fine_tuning_memory(small_ranker_model, Sft(lora_rank=3, objective="quantiles"), gpu=False)
    examples = [Example("a " * n, (10 * n,)) for n in range(1, 9)]
    predictor = Sft(lora_rank=3, objective="quantiles", steps=1).fit(
        examples, Setting(0, Deadline(600.0), init=small_ranker_model)
    )
    assert head.learns == sum(weight.numel() for weight in predictor._network.parameters() if weight.requires_grad)
    assert torch.is_tensor(predictor._network.head.out.weight)


def test_fewer_tokens_at_once_and_layers_that_compute_again_take_less(small_ranker_model):
    def activations(**options):
        return fine_tuning_memory(small_ranker_model, Sft(**options), gpu=False).activations

    base = activations(batch_tokens=8192)
    assert activations(batch_tokens=4096) < 0.6 * base
    assert activations(batch_tokens=8192, activation_checkpointing="on") < base


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
        ({"method": "sft", "init": "/no/model/here"}, r"key 'ranker.init': /no/model/here: found no tokenizer.json"),
        (
            {"method": "lexical", "init": "/no"},
            r"key 'ranker.init': found one beside the method 'lexical', expected 'sft'",
        ),
        (
            {"method": "sft", "objective": "pairwise"},
            r"key 'ranker.objective': found 'pairwise' without a model, expected",
        ),
        ({"options": {"batch": 8}}, r"key 'ranker.options': found one beside the method 'auto'"),
        (
            {"method": "sft", "options": {"lora_rnk": 8}},
            r"key 'ranker.options': found the option 'lora_rnk' of the method 'sft', .*did you mean 'lora_rank'\?",
        ),
        (
            {"method": "sft", "options": {"dtype": "int8"}},
            r"key 'ranker.options': found dtype = 'int8', expected one of",
        ),
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
