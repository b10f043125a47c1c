"""Table `[ranker]` of a configuration: what it starts, and what is wrong with it before minutes of preparation."""

import shutil

import pytest

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.roles.ranker import RankerSettings
from tailrace.pipeline.run import ranker_setup as memory
from tailrace.pipeline.run.build import build_spec, check
from tailrace.pipeline.run.pools import ranker_gpus
from tailrace.pipeline.run.ranker_setup import check_ranker, fine_tuning_memory, ranker_chosen, ranker_settings
from tailrace.ranker import Example, LengthRanker, Sft
from tailrace.ranker.baselines.lexical import Lexical
from tailrace.ranker.learned import pretrained
from tailrace.ranker.learned.pretrained import Tuning
from tailrace.ranker.methods import Deadline, Setting
from tailrace.ranker.testing import language_model
from tailrace.ranker.trials import try_methods
from tailrace.trainer.adapters import add_adapter
from tailrace.trainer.config import AdapterConfig
from tailrace.trainer.memory import shape_of

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


def test_more_prompts_than_lengths_are_kept_of_would_never_be_there():
    given = config(prompts=2048, method="lexical")  # of 8 samples each
    check_ranker(given)
    for prompts, samples, most in ((2049, 8, 2048), (1025, 16, 1024)):
        table = {
            **TASK,
            "ranker": {"method": "lexical", "prompts": prompts},
            "pipeline": {"samples_per_prompt": samples},
        }
        with pytest.raises(ConfigError, match=f"'ranker.prompts': found {prompts}, expected at most {most}"):
            check_ranker(RunConfig.model_validate(table))


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
    writes = Sft(lora_rank=3, objective="write")
    adapters = fine_tuning_memory(small_ranker_model, writes, gpu=False)
    assert (adapters.learns, adapters.weights, adapters.learning) == (learns, 4 * frozen, 24 * learns)
    assert fine_tuning_memory(small_ranker_model, writes, gpu=True).weights == 2 * frozen
    whole = fine_tuning_memory(small_ranker_model, Sft(lora_rank=0, objective="write"), gpu=True)
    assert (whole.learns, whole.weights, whole.learning) == (frozen, 0, 24 * frozen)
    head = fine_tuning_memory(small_ranker_model, Sft(lora_rank=3, objective="quantiles"), gpu=False)
    examples = [Example("a " * n, (10 * n,)) for n in range(1, 9)]
    predictor = Sft(lora_rank=3, objective="quantiles", steps=1).fit(
        examples, Setting(0, Deadline(600.0), init=small_ranker_model)
    )
    assert head.learns == sum(weight.numel() for weight in predictor._network.parameters() if weight.requires_grad)
    assert torch.is_tensor(predictor._network.head.out.weight)


@pytest.mark.parametrize("experts", [0, 4])
def test_adapters_are_those_that_peft_makes_of_a_mixture_too(experts):
    pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

    sizes = {"vocab_size": 31, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 8}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    mixture = {"moe_intermediate_size": 12, "num_experts": experts, "num_experts_per_tok": 2}
    config = Qwen3MoeConfig(**sizes, **mixture) if experts else Qwen3Config(**sizes)
    lm = AutoModelForCausalLM.from_config(config)
    add_adapter(lm, AdapterConfig(rank=3), 0)
    learns = sum(weight.numel() for weight in lm.parameters() if weight.requires_grad)
    assert memory.adapter_parameters(shape_of(config.to_dict()), 3) == learns


@pytest.mark.parametrize("rank", [0, 3])
def test_auto_has_the_models_of_all_objectives_in_memory_before_it_chooses(rank, small_ranker_model):
    pytest.importorskip("peft")
    options = {"lora_rank": rank, "steps": 1, "most_tokens": 64}
    examples = [Example("a " * n, (10 * n,)) for n in range(1, 9)]
    setting = Setting(0, Deadline(600.0), init=small_ranker_model)
    tried = try_methods({"sft": Sft(**options)}, examples, examples, setting).tried
    models = [trial.predictor._model if trial.name == "sft:write" else trial.predictor._network for trial in tried]
    weights = {weight.data_ptr(): weight for model in models for weight in model.parameters()}.values()
    told = fine_tuning_memory(small_ranker_model, Sft(**options), gpu=False)
    assert len(models) == 3
    assert told.learns == sum(weight.numel() for weight in weights if weight.requires_grad)
    assert told.weights == sum(4 * weight.numel() for weight in weights if not weight.requires_grad)
    one = fine_tuning_memory(small_ranker_model, Sft(**options, objective="quantiles"), gpu=False)
    assert told.peak - one.peak == 2 * one.weights + 4 * (told.learns - one.learns)


def test_a_model_that_is_not_small_computes_its_layers_again_where_the_ranker_does(small_ranker_model, monkeypatch):
    """The threshold is the ranker's own: a model just above it is predicted with layers that compute again."""
    assert memory.LARGE_PARAMETERS == pretrained.LARGE_PARAMETERS
    small = fine_tuning_memory(small_ranker_model, Sft(), gpu=False).activations
    monkeypatch.setattr(memory, "LARGE_PARAMETERS", 10)
    assert fine_tuning_memory(small_ranker_model, Sft(), gpu=False).activations < small


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


@pytest.mark.parametrize("objective", ["write", "pairwise"])
def test_a_saved_language_model_is_checked_and_not_loaded(objective, tmp_path, small_ranker_model, monkeypatch):
    pytest.importorskip("peft")
    examples = [Example("a " * n, (10 * n,)) for n in range(1, 9)]
    method = Sft(objective=objective, lora_rank=2, steps=1, most_tokens=64)
    LengthRanker.train(examples, method, init=small_ranker_model).save(tmp_path / "saved")
    other = tmp_path / "other"
    shutil.copytree(small_ranker_model, other)
    (other / "config.json").write_text((other / "config.json").read_text() + " ")
    monkeypatch.setattr(pretrained, "_loaded", lambda *_: pytest.fail("it was loaded"))
    check_ranker(config(path=str(tmp_path / "saved")))
    with pytest.raises(ConfigError, match=r"key 'ranker.path': .*found another model than the one"):
        check_ranker(config(path=str(tmp_path / "saved"), method="sft", init=str(other)))
    (tmp_path / "saved" / "predictor" / "weights.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"key 'ranker.path': .*found another content than was written"):
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
        (
            {"method": "sft", "options": {"objective": "quantiles"}},
            r"key 'ranker.options': found 'objective', expected the key 'ranker.objective'",
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
