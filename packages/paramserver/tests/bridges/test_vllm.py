"""vLLM on CPU takes versions from a relay: log-probabilities are those of plain transformers with the new weights."""

import os
from importlib.util import find_spec

import pytest

pytest.importorskip("torch")

import torch

from tailrace.paramserver import AuthenticationFailed, Publisher, VersionNotYet, new_token
from tailrace.paramserver.bridges.torch_module import publish_module
from tailrace.paramserver.bridges.vllm import BACKEND, register
from tailrace.paramserver.errors import BridgeStateInvalid, WeightsMismatch

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("transformers", "vllm")), reason="needs transformers and vLLM"
)
TOLERANCE = 1e-4
VOCABULARY = 149
PROMPTS = [(3, 1, 4), (1, 5, 9, 2, 6, 5, 3, 5), tuple(range(40))]
LENGTH = 16


def save_model(path, seed, *, tied):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=128,
            tie_word_embeddings=tied,
            initializer_range=0.15,
            bos_token_id=None,
            eos_token_id=None,
        )
        model = Qwen3ForCausalLM(config).eval()
    model.save_pretrained(path)
    return model


def expected(model, prompt, response):
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        return torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(response)[:, None])[:, 0].tolist()


class Engine:
    """vLLM in process, and how far its log-probabilities are from a model's."""

    def __init__(self, path):
        from vllm import LLM, SamplingParams
        from vllm.config import WeightTransferConfig

        self.sampling = SamplingParams(temperature=0, max_tokens=LENGTH, logprobs=0, detokenize=False)
        self.llm = LLM(
            str(path),
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            max_model_len=128,
            max_num_seqs=4,
            kv_cache_memory_bytes=32 << 20,
            logprobs_mode="processed_logprobs",
            generation_config="vllm",
            distributed_executor_backend="uni",
            async_scheduling=False,
            disable_log_stats=True,
            weight_transfer_config=WeightTransferConfig(backend=BACKEND),
        )

    def gap(self, model):
        prompts = [{"prompt_token_ids": list(prompt)} for prompt in PROMPTS]
        worst = 0.0
        for prompt, request in zip(PROMPTS, self.llm.generate(prompts, self.sampling, use_tqdm=False), strict=True):
            (output,) = request.outputs
            assert len(output.token_ids) == LENGTH
            found = [by_token[token].logprob for token, by_token in zip(output.token_ids, output.logprobs, strict=True)]
            wanted = expected(model, prompt, tuple(output.token_ids))
            worst = max(worst, *(abs(a - b) for a, b in zip(found, wanted, strict=True)))
        return worst

    def connect(self, relay, token, **info):
        self.llm.init_weight_transfer_engine({"init_info": {"address": relay.address, "token": token, **info}})

    def update(self, version, **info):
        self.llm.start_weight_update()
        self.llm.update_weights({"update_info": {"version": version, **info}})
        self.llm.finish_weight_update(weight_version=str(version))
        assert self.llm.reset_prefix_cache()


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    environment = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    before, set_num_threads = {name: os.environ.get(name) for name in environment}, torch.set_num_threads
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    register()
    register()
    engines = []

    def make(*, tied):
        folder = tmp_path_factory.mktemp("models")
        models = [save_model(folder / str(seed), seed, tied=tied) for seed in (1, 2, 3)]
        engines.append(Engine(folder / "1"))
        return engines[-1], models

    yield make
    for engine in engines:  # all at the end: the first that goes takes vLLM's process groups with it
        engine.llm.llm_engine.engine_core.shutdown()
    torch.set_num_threads = set_num_threads  # vLLM on CPU replaces it by one that does nothing
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)


@pytest.fixture(scope="module")
def built(build):
    return build(tied=True)


@pytest.fixture
def trained(built, serve, token):
    """The engine with the first model's weights, the models, and a publisher on the engine's relay."""
    engine, models = built
    relay = serve()
    with Publisher(relay.address, token=token) as publisher:
        engine.connect(relay, token)
        publish_module(publisher, 0, models[0])
        engine.update(0)
        yield engine, models, publisher, relay
        engine.llm.shutdown_weight_transfer_engine()


def check_versions(engine, models, publisher):
    for version, model in ((1, models[1]), (2, models[2]), (3, models[0])):
        publish_module(publisher, version, model)
        engine.update(version)
        for other in models:
            gap = engine.gap(other)
            assert gap < TOLERANCE if other is model else gap > 0.1
        assert engine.llm.get_weight_version() == str(version)


@pytest.mark.deep
def test_new_weights_of_a_tied_model_are_served_and_the_old_are_not(trained):
    engine, models, publisher, _ = trained
    assert engine.gap(models[0]) < TOLERANCE
    check_versions(engine, models, publisher)


def test_a_version_by_the_trainers_parameter_names_is_enough(trained, token):
    engine, models, publisher, relay = trained
    publisher.publish(1, models[1].named_parameters())
    engine.connect(relay, token)
    engine.update(1)
    assert engine.gap(models[1]) < TOLERANCE


def _drop(name):
    return lambda named: {key: value for key, value in named.items() if key != name}


DAMAGES = [
    (_drop("model.layers.0.self_attn.k_proj.weight"), "lacks 1 tensors, the first is 'model.layers.0.self_attn.k_proj"),
    (_drop("model.norm.weight"), "lacks 1 tensors, the first is 'model.norm.weight'"),
    (
        lambda named: {**named, "model.other.weight": torch.zeros(2)},
        "lacks 1 tensors, the first is 'model.other.weight",
    ),
    (
        lambda named: {**named, "model.norm.weight": torch.zeros(63)},
        r"'model.norm.weight': found the shape \[63\] in version 1, expected \[64\]",
    ),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_a_version_that_does_not_fit_changes_nothing(trained, damage, message):
    engine, models, publisher, _ = trained
    publisher.publish(1, damage(dict(models[1].named_parameters())).items())
    with pytest.raises(WeightsMismatch, match=message):
        engine.update(1, timeout_s=10)
    assert engine.gap(models[0]) < TOLERANCE
    publish_module(publisher, 2, models[1])
    engine.update(2)
    assert engine.gap(models[1]) < TOLERANCE


def test_a_version_that_is_missing_changes_nothing(trained):
    engine, models, _, _ = trained
    with pytest.raises(VersionNotYet, match="version 9"):
        engine.update(9, timeout_s=0.2)
    assert engine.gap(models[0]) < TOLERANCE


@pytest.mark.parametrize(
    "name", ["model.layers.1.self_attn.v_proj.weight", "model.layers.1.mlp.up_proj.weight", "model.norm.weight"]
)
def test_without_the_names_of_the_checkpoint_a_missing_part_still_shows(trained, token, name):
    engine, models, publisher, relay = trained
    engine.connect(relay, token, check_names=False)
    publisher.publish(1, _drop(name)(dict(models[1].named_parameters())).items())
    with pytest.raises(WeightsMismatch, match=r"for 1 layers, the first is 'model\.(layers\.1\.|norm)"):
        engine.update(1)
    publish_module(publisher, 2, models[1])
    engine.update(2)
    assert engine.gap(models[1]) < TOLERANCE


def test_an_engine_that_cannot_reach_its_relay_says_so(built, serve, token, monkeypatch):
    engine, _ = built
    relay = serve()
    monkeypatch.delenv("TAILRACE_RELAY_TOKEN", raising=False)
    with pytest.raises(BridgeStateInvalid, match="TAILRACE_RELAY_TOKEN"):
        engine.connect(relay, None)
    with pytest.raises(AuthenticationFailed):
        engine.connect(relay, new_token())
    with pytest.raises(BridgeStateInvalid, match="init_weight_transfer_engine first"):
        engine.update(1)
    with pytest.raises(ValueError, match="init_info"):
        engine.llm.init_weight_transfer_engine({"init_info": {"adress": relay.address}})
    monkeypatch.setenv("TAILRACE_RELAY_TOKEN", token)
    engine.connect(relay, None)
    engine.llm.shutdown_weight_transfer_engine()


@pytest.mark.deep
@pytest.mark.deep
def test_new_weights_of_an_untied_model_are_served_and_the_old_are_not(build, serve, token):
    engine, models = build(tied=False)
    relay = serve()
    with Publisher(relay.address, token=token) as publisher:
        engine.connect(relay, token)
        check_versions(engine, models, publisher)
