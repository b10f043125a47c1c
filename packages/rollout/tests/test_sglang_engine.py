"""The SGLang engine on a stand-in whose fields are SGLang's own: what it sends, reads and refuses, and what it notices when."""

import json
import random
import re
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("torch")
pytest.importorskip("tailrace.paramserver")

import torch
from safetensors.torch import save_file

from tailrace.contracts import AdapterWeights, FinishReason, Request, Sampling, UnreadableWeightsError, WeightSlice
from tailrace.paramserver.testing import SGLangStandIn
from tailrace.paramserver.testing.sglang_server import CONTEXT, VOCABULARY, next_token, weights_of
from tailrace.rollout import (
    EngineDiedError,
    EngineMissingError,
    ModelLoadError,
    OptionError,
    build_engine,
    digest_of,
    generate,
    sglang_plugin,
)
from tailrace.rollout.engine_selection import check_engine_options
from tailrace.rollout.errors import EngineAsleepError, EngineBusyError, RequestError, WeightsDifferError, WeightsError
from tailrace.rollout.served_weights import WeightSample
from tailrace.rollout.sglang_server import KEY_VARIABLE
from tailrace.rollout.sglang_stream import BrokenStreamError, EventStream

pytestmark = pytest.mark.long
KEY, SEED, TIMEOUT_S = "key-of-the-test", 7, 60.0
OUT = "model.layers.0.self_attn.o_proj.weight"


def weights(seed):
    draw = torch.Generator().manual_seed(seed)
    return {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, 4, generator=draw),
        OUT: torch.randn(4, 4, generator=draw),
        "model.norm.weight": torch.ones(4),
    }


def response(model, prompt, length, kept=()):
    """What the server generates behind a prompt, one token after another."""
    digest, tokens, logprobs = weights_of(model), [*prompt, *kept], []
    for _ in range(length):
        token, logprob = next_token(digest, tokens)
        tokens.append(token)
        logprobs.append(logprob)
    return tuple(tokens[len(prompt) + len(kept) :]), tuple(logprobs)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 4, "max_position_embeddings": CONTEXT}
    other = {"model_type": "qwen3", "vocab_size": VOCABULARY, "eos_token_id": 3, "tie_word_embeddings": True}
    (path / "config.json").write_text(json.dumps({**sizes, **other}))
    save_file(weights(0), path / "model.safetensors")
    return str(path)


@pytest.fixture(scope="module")
def started():
    with SGLangStandIn(1, KEY) as server:
        yield server


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def joined(standing, model, **options):
    engine = build_engine("sglang", model, {"server": standing.url, "answer_s": 20.0, **options})
    engine.load_weights(weights(1))
    return engine


@pytest.fixture
def server(started):
    started.fail()
    return started


@pytest.fixture
def engine(server, model):
    engine = joined(server, model)
    yield engine
    server.fail()
    engine.close()


def prompts(count):
    draw = random.Random(SEED)
    return [tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 20))) for _ in range(count)]


def requests(count, length, **sampling):
    return [Request(str(i), prompt, Sampling(max_tokens=length, **sampling)) for i, prompt in enumerate(prompts(count))]


@pytest.mark.parametrize("plan", [{}, {"incremental": False}, {"events_of": 7}, {"incremental": False, "events_of": 3}])
def test_each_token_comes_once_whether_or_not_streams_repeat_them(server, engine, plan):
    server.fail(__generate=plan)
    asked = requests(12, 30)
    found = generate(engine, asked, TIMEOUT_S)
    for request in asked:
        tokens, logprobs = response(weights(1), request.prompt, 30)
        assert (found[request.id].tokens, found[request.id].logprobs) == (tokens, logprobs)
        assert found[request.id].finish is FinishReason.LENGTH


@pytest.mark.parametrize("incremental", [True, False])
def test_an_abort_keeps_what_came_and_leaves_others_whose_ids_begin_alike(server, engine, incremental):
    server.fail(__generate={"incremental": incremental, "token_s": 0.005})
    asked, made = requests(12, 40), {str(i): [] for i in range(12)}
    engine.submit(asked)
    while len(made["0"]) < 5:
        for delta in engine.step():
            made[delta.id] += delta.tokens
    for delta in engine.abort(["0", "1", "11", "nobody"]):
        made[delta.id] += delta.tokens
    assert 5 <= len(made["0"]) < 40
    assert made["11"] == [], "it waited for its turn"
    kept = tuple(made["0"])
    engine.submit([Request("0", asked[0].prompt, asked[0].sampling, kept), asked[1], asked[11]])
    deadline = time.monotonic() + TIMEOUT_S
    while engine.stats().running + engine.stats().waiting:
        for delta in engine.step():
            made[delta.id] += delta.tokens if delta.id != "1" else ()
        assert time.monotonic() < deadline
    for request in asked:
        if request.id != "1":
            assert tuple(made[request.id]) == response(weights(1), request.prompt, 40)[0]


def test_what_the_server_has_not_read_yet_is_aborted_too(server, engine):
    engine.submit(requests(3, 40))
    assert engine.abort(["0", "1", "2"]) is not None
    assert engine.step() == []
    deadline = time.monotonic() + TIMEOUT_S
    while server.state()["running"]:
        assert time.monotonic() < deadline, "the server goes on with what was aborted"


def test_a_stop_token_ends_a_response_and_one_of_the_models_own_does_not(server, engine):
    prompt = (5, 6, 7)
    whole, logprobs = response(weights(1), prompt, 20)
    stop, own = whole[9], whole[4]
    assert stop not in whole[:9], f"seed {SEED}"
    server.fail(__generate={"end_tokens": [own]})
    for stops, length in (((stop,), 10), ((), 20), ((stop, 2**40, -1), 10)):
        found = generate(engine, [Request("r", prompt, Sampling(max_tokens=20, stop_token_ids=stops))], TIMEOUT_S)["r"]
        assert (found.tokens, found.logprobs) == (whole[:length], logprobs[:length])
        assert found.finish is (FinishReason.STOP if stops else FinishReason.LENGTH)


def test_a_request_that_somebody_else_aborts_goes_on(server, engine):
    server.fail(__generate={"abort_after": 6})
    found = generate(engine, [Request("r", (1, 2), Sampling(max_tokens=20))], TIMEOUT_S)["r"]
    assert found.tokens == response(weights(1), (1, 2), 20)[0]
    server.fail(__generate={"abort_after": 0})
    with pytest.raises(EngineDiedError, match="without a token again and again"):
        generate(engine, [Request("s", (1, 2), Sampling(max_tokens=20))], TIMEOUT_S)


def test_tokens_that_the_model_lacks_never_reach_the_server(server, engine):
    for tokens, kept in (((1, VOCABULARY), ()), ((-1,), ()), ((1,), (2, VOCABULARY + 7))):
        with pytest.raises(RequestError, match=f"expected 0 to {VOCABULARY - 1}"):
            engine.submit([Request("r", tokens, Sampling(), kept)])
    assert server.state()["log"].count("/generate") == 0
    assert len(generate(engine, [Request("r", (1,), Sampling(max_tokens=3))], TIMEOUT_S)["r"].tokens) == 3


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"cut_after": 5}, "ended within an answer"),
        ({"kill_after": 5}, "failed"),
        ({"hang_after": 5, "hang_s": 30}, r"yielded nothing for .* with 6 requests in flight"),
        ({"status": 503}, "answered 503"),
        ({"version": "9", "meta": {"weight_version": "9"}}, "generates with the weights '9'"),
        ({"meta": {"completion_tokens": 11}}, "expected at least the"),
        ({"meta": {"completion_tokens": None}}, "without output_ids, output_token_logprobs or completion_tokens"),
        ({"meta": {"output_token_logprobs": [[-0.5, 51, None]] * 40}}, "of other tokens than came"),
        ({"meta": {"output_token_logprobs": []}}, "0 log-probabilities"),
    ],
)
@pytest.mark.cases(5)
def test_a_server_that_fails_in_generation_is_noticed(server, model, plan, message):
    ends = "kill_after" in plan or "hang_after" in plan
    with SGLangStandIn(1, KEY) if ends else nullcontext(server) as server:
        engine = joined(server, model, answer_s=2.0)
        server.fail(__generate=plan)
        started = time.monotonic()
        with pytest.raises(EngineDiedError, match=message):
            generate(engine, requests(6, 30), TIMEOUT_S)
        assert time.monotonic() - started < 6
        engine.close()


def test_an_abort_that_the_server_does_not_carry_out_has_a_deadline(model):
    with SGLangStandIn(1, KEY) as server:
        engine = joined(server, model, answer_s=1.0)
        server.fail(__abort_request={"status": 200}, __generate={"token_s": 0.1})
        engine.submit(requests(2, 40))
        with pytest.raises(EngineDiedError, match="did not stop 2 requests within 1 s"):
            engine.abort(["0", "1"])
        engine.close()


def sampled(tensors, nbytes=1 << 20):
    sample = WeightSample(1, nbytes, "test")
    for name, tensor in tensors.items():
        sample.take(WeightSlice(name, tuple(tensor.shape), (), tensor))
    return sample


def test_digests_are_those_of_what_the_server_has(server, engine):
    for nbytes in (1 << 20, 32):
        served, other = sampled(weights(1), nbytes), sampled(weights(2), nbytes)
        served.check(engine.digests(served.boxes()))
        with pytest.raises(WeightsDifferError, match=r"'model\.embed_tokens\.weight' of version 1"):
            other.check(engine.digests(other.boxes()))
    for lie, error in (
        ({"raw": '{"success": true}'}, "found no ranks with checksums"),
        ({"status": 500}, "answered 500"),
        ({"raw": json.dumps(refusal())}, "int8"),
    ):
        server.fail(__weights_checker=lie)
        with pytest.raises((EngineDiedError, UnreadableWeightsError), match=error):
            engine.digests(served.boxes())


def refusal():
    """An answer of a server that keeps a parameter in a form that cannot be compared."""
    told = {"checksums": {"0": "!SGLang keeps int8"}, "parallelism_info": [{"tp_rank": 0}]}
    return {"success": True, "message": "", "ranks": [told]}


def test_a_seed_goes_to_the_server_and_one_without_the_plugin_refuses_it_and_digests(server, engine, model):
    asked = [Request(str(i), (i,), Sampling(max_tokens=2, seed=seed)) for i, seed in enumerate((7, None, -(2**63)))]
    generate(engine, asked, TIMEOUT_S)
    assert sorted(map(str, server.state()["seeds"])) == sorted(map(str, (7, None, -(2**63))))
    server.fail(without=["plugin"])
    plain = joined(server, model)
    generate(plain, [Request("r", (1,), Sampling(max_tokens=2))], TIMEOUT_S)
    with pytest.raises(EngineMissingError, match="found a seed in request 's', and a server that keeps none"):
        plain.submit([Request("s", (1,), Sampling(seed=3))])
    with pytest.raises(UnreadableWeightsError, match="no tailrace-rollout in its environment"):
        plain.digests(sampled(weights(1)).boxes())
    plain.close()


def adapter_of(rank, rows=4):
    pair = torch.ones(rank, 4), torch.ones(rows, rank)
    return AdapterWeights({OUT: pair}, rank, 2.0, lambda: weights(1).items())


def test_each_request_names_the_adapter_that_was_loaded_last(server, engine, monkeypatch):
    monkeypatch.setattr(engine, "_adapter_rank", 2)
    seen = []
    for adapter in (adapter_of(1), adapter_of(2)):
        engine.load_adapter(adapter)
        generate(engine, requests(2, 3), TIMEOUT_S)
        state = server.state()
        (name,) = state["adapters"]
        assert state["asked"][-2:] == [name] * 2
        seen.append(name)
    assert seen[0] != seen[1], "SGLang would keep the adapter of a name that it knows"
    with pytest.raises(WeightsError, match="found an adapter of rank 3, expected at most 2"):
        engine.load_adapter(adapter_of(3))
    with pytest.raises(WeightsError, match=f"found an adapter of {OUT!r} with the shapes"):
        engine.load_adapter(adapter_of(2, rows=5))
    server.fail(__load_lora_adapter={"status": 400, "message": "no room"})
    with pytest.raises(WeightsError, match=r"SGLang answered 400: .*no room"):
        engine.load_adapter(adapter_of(1))
    server.fail()
    generate(engine, requests(1, 3), TIMEOUT_S)
    assert (server.state()["adapters"], server.state()["asked"]) == ([seen[1]], [seen[1]])
    engine.submit(requests(1, 40))
    with pytest.raises(EngineBusyError):
        engine.load_adapter(adapter_of(1))
    engine.abort(["0"])
    engine.load_weights(weights(2))
    generate(engine, requests(1, 3), TIMEOUT_S)
    assert (server.state()["adapters"], server.state()["asked"][-1]) == ([], None)


def test_the_plugin_tells_the_matrices_of_the_newest_adapter_as_they_are_applied():
    class Pool:
        uid_to_buffer_id: ClassVar = {"old": 0}
        A_buffer: ClassVar = {"qkv_proj": [torch.arange(2 * 12 * 5.0).view(2, 12, 5)], "o_proj": [torch.randn(2, 4, 6)]}
        B_buffer: ClassVar = {"qkv_proj": [torch.arange(2 * 10 * 4.0).view(2, 10, 4)], "o_proj": [torch.randn(2, 5, 4)]}

        def get_buffer_id(self, uid):
            return self.uid_to_buffer_id[uid]

    class Manager:
        memory_pool = Pool()
        loras: ClassVar = {
            name: SimpleNamespace(config=SimpleNamespace(r=rank), scaling=0.5)
            for name, rank in (("old", 4), ("new", 3))
        }

        def fetch_new_loras(self, names):
            (name,) = names
            Pool.uid_to_buffer_id[name] = 1

    model = torch.nn.Module()
    fused, out = torch.nn.Module(), torch.nn.Module()
    fused.base_layer, fused.output_offset_cpu = torch.nn.Linear(5, 10, bias=False), torch.tensor([0, 6, 8, 10])
    layer = torch.nn.Module()
    layer.qkv_proj, layer.o_proj = fused, out
    model.layers = torch.nn.ModuleList([layer])
    manager: Any = Manager()
    manager.base_model = model
    assert sglang_plugin.matrix(model, "layers.0.o_proj.lora_A.weight") is None
    assert sglang_plugin.name_plainly("done", manager) == "done"
    assert dict(model.named_parameters()).keys() == {"layers.0.qkv_proj.weight"}
    (a,), (b,) = Pool.A_buffer["qkv_proj"], Pool.B_buffer["qkv_proj"]
    for place, (name, rows) in enumerate({"q_proj": (0, 6), "k_proj": (6, 8), "v_proj": (8, 10)}.items()):
        assert torch.equal(
            sglang_plugin.matrix(model, f"layers.0.{name}.lora_A.weight"), a[1, 3 * place : 3 * place + 3]
        )
        expected = b[1, slice(*rows), :3] * 0.5
        assert torch.equal(sglang_plugin.matrix(model, f"layers.0.{name}.lora_B.weight"), expected)
    assert torch.equal(
        sglang_plugin.matrix(model, "layers.0.o_proj.lora_B.weight"), Pool.B_buffer["o_proj"][0][1, :, :3] * 0.5
    )


def test_a_server_sleeps_when_it_is_idle_and_wakes(server, engine, model):
    with pytest.raises(OptionError, match="expected 1 to 0, the engine option sleep_level of a server of its own"):
        engine.sleep(1)  # one that was joined
    with pytest.raises(OptionError, match="'sleep_level': found it beside 'server'"):
        joined(server, model, sleep_level=1)
    engine._deepest = 2  # as of a server of its own
    for level, tags in ((1, ["kv_cache"]), (2, ["kv_cache", "weights"])):
        engine.submit(requests(1, 40))
        with pytest.raises(EngineBusyError):
            engine.sleep(level)
        engine.abort(["0"])
        engine.sleep(level)
        assert server.state()["released"] == tags
        engine.sleep(1)
        assert server.state()["released"] == tags, "it sleeps deep enough"
        with pytest.raises(EngineAsleepError):
            engine.submit(requests(1, 5))
        with pytest.raises(EngineAsleepError):
            engine.load_weights(weights(2))
        engine.wake()
        engine.wake()
        assert server.state()["released"] == []
        if level == 2:
            with pytest.raises(EngineAsleepError, match="no weights"):
                engine.submit(requests(1, 5))
        engine.load_weights(weights(level))
        assert generate(engine, requests(1, 5), TIMEOUT_S)["0"].tokens == response(weights(level), prompts(1)[0], 5)[0]
    server.fail(__release_memory_occupation={"status": 400})
    with pytest.raises(EngineDiedError, match="answered 400 to /release_memory_occupation"):
        engine.sleep(1)


def test_the_plugin_tells_the_digests_that_engines_are_asked_for():
    model = torch.nn.Module()
    model.layer = torch.nn.Linear(6, 4, bias=False).to(torch.bfloat16)
    model.packed = torch.nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False)
    weight = model.layer.weight.detach()
    asked = [(1, "x", [(0, 1)]), (0, "layer.weight", [(1, 3), (2, 6)]), (0, "packed", [(0, 1)]), (0, "gone", [(0, 1)])]
    found = sglang_plugin.digests(model, 0, json.loads(json.dumps(asked)))
    assert found.pop("1") == f"bfloat16 {digest_of(weight[1:3, 2:6])}"
    assert [text[0] for text in found.values()] == [sglang_plugin.REFUSED] * 2
    assert "int8 (3,)" in found["2"]
    assert "nothing" in found["3"]


def test_new_weights_are_served_and_wrong_ones_refused(server, engine):
    before = server.state()
    good = weights(2)
    engine.load_weights(good)
    state = server.state()
    assert state["weights"] == weights_of(good)
    assert (state["flushed"], state["paused"], state["session"]) == (before["flushed"] + 1, None, False)
    assert generate(engine, requests(1, 5), TIMEOUT_S)["0"].tokens == response(good, prompts(1)[0], 5)[0]
    embed, out, norm = good.items()
    for wrong, message in (
        ([embed, out], "no weights for 1 parameters, the first is 'model.norm.weight'"),
        ([embed, out, norm, ("model.more", norm[1])], "'model.more', which the model does not have"),
        ([embed, out, ("model.norm.weight", norm[1][:-1])], r"shape \(3,\) for 'model.norm.weight', expected \(4,\)"),
    ):
        with pytest.raises(WeightsError, match=message):
            engine.load_weights(wrong)
        assert server.state()["paused"] == "retract"
        with pytest.raises(WeightsError, match="parts of two versions"):
            engine.submit(requests(1, 5))
    engine.load_weights([*weights(3).items(), ("lm_head.weight", weights(3)["model.embed_tokens.weight"])])
    assert (
        generate(engine, requests(1, 5), TIMEOUT_S)["0"].tokens
        == response({**weights(3), "lm_head.weight": weights(3)["model.embed_tokens.weight"]}, prompts(1)[0], 5)[0]
    )
    engine.submit(requests(1, 40))
    with pytest.raises(EngineBusyError):
        engine.load_weights(good)
    engine.abort(["0"])


@pytest.mark.parametrize(
    ("plan", "error", "message"),
    [
        ({"__update_weights_from_distributed": {"status": 400, "message": "no room"}}, WeightsError, "no room"),
        ({"__model_info": {"raw": '{"weight_version": "1"}'}}, WeightsError, "names its weights '1'"),
        ({"__update_weights_from_distributed": {"kill": True}}, EngineDiedError, "failed"),
        pytest.param({"__pause_generation": {"kill": True}}, EngineDiedError, "failed", marks=pytest.mark.deep),
        pytest.param({"__end_weight_update": {"kill": True}}, EngineDiedError, "failed", marks=pytest.mark.deep),
    ],
)
@pytest.mark.cases(3)
def test_a_server_that_fails_in_an_update_is_noticed(model, plan, error, message):
    with SGLangStandIn(1, KEY) as server:
        engine = joined(server, model)
        server.fail(**plan)
        started = time.monotonic()
        with pytest.raises(error, match=message):
            engine.load_weights(weights(2))
        assert time.monotonic() - started < 15
        if error is WeightsError:
            server.fail()
            engine.load_weights(weights(2))
            assert generate(engine, requests(1, 5), TIMEOUT_S)["0"].tokens == response(weights(2), prompts(1)[0], 5)[0]
        engine.close()


def test_the_plugin_draws_by_seed_and_place_alone_and_as_the_distribution_says():
    scores = torch.log(torch.tensor([[0.5, 0.25, 0.125, 0.125], [0.125, 0.125, 0.25, 0.5]]))
    count = 4000
    seeds, places = torch.arange(2 * count) - count, torch.arange(2 * count) % 7
    drawn = sglang_plugin.draw(pytest.fail, scores.repeat(count, 1), seeds, places)
    assert drawn.shape == (2 * count, 1)
    again = torch.randperm(2 * count, generator=torch.Generator().manual_seed(SEED))[:50]
    assert torch.equal(sglang_plugin.draw(pytest.fail, scores[again % 2], seeds[again], places[again]), drawn[again])
    assert not torch.equal(
        sglang_plugin.draw(pytest.fail, scores[again % 2], seeds[again], places[again] + 1), drawn[again]
    )
    for row, expected in enumerate(scores.exp()):
        found = torch.bincount(drawn[row::2, 0], minlength=4) / count
        assert (found - expected).abs().max() < 0.04, f"{found} of {count}: five standard deviations"


def test_the_plugin_frees_a_storage_with_its_views_and_gives_it_back_at_zero():
    whole = torch.ones(2, 3)
    halves = [whole[0], whole[1]]
    fill = sglang_plugin._emptied(halves[0])
    assert whole.untyped_storage().nbytes() == 0
    fill()
    assert torch.equal(whole, torch.zeros(2, 3))
    assert halves[1].data_ptr() == whole.data_ptr() + 12


def test_load_is_counted(server, engine):
    server.fail(__generate={"token_s": 0.05})
    engine.submit(requests(7, 40))
    seen = set()
    while len(seen) < 4:
        seen |= {delta.id for delta in engine.step()}
    stats = engine.stats()
    assert (stats.running + stats.waiting, stats.max_running, stats.kv_capacity_tokens) == (7, 4, 4096)
    assert stats.running == 4
    assert 0 < stats.kv < 1
    engine.abort([str(i) for i in range(7)])
    assert (engine.stats().running, engine.stats().waiting) == (0, 0)


def test_bad_settings_are_one_line(server, model, monkeypatch, tmp_path):
    server.fail(without=["/begin_weight_update", "/v1/loads"])
    with pytest.raises(EngineMissingError, match=r"has no /begin_weight_update, /v1/loads, expected the interface of"):
        joined(server, model)
    server.fail()
    for options, message in (
        ({"server": "10.0.0.1:30000"}, "expected http://HOST:PORT"),
        ({"server": "https://10.0.0.1:30000"}, "expected http://HOST:PORT"),
        ({"max_num_seqs": 4}, "'max_num_seqs': found it beside 'server'"),
        ({"answer_s": 0}, "expected seconds above 0"),
        ({"engine_args": ["x"]}, "expected a table"),
    ):
        with pytest.raises(OptionError, match=message):
            joined(server, model, **options)
    other = tmp_path / "llama"
    shutil.copytree(model, other)
    (other / "config.json").write_text((other / "config.json").read_text().replace("qwen3", "llama"))
    with pytest.raises(ModelLoadError, match="serves a model of type 'qwen3', expected 'llama'"):
        joined(server, str(other))
    monkeypatch.setenv(KEY_VARIABLE, "another")
    with pytest.raises(EngineDiedError, match="answered 401"):
        joined(server, model)
    with pytest.raises(EngineMissingError, match="found no program '/nowhere/python'"):
        build_engine("sglang", model, {"python": "/nowhere/python"})
    with pytest.raises(OptionError, match="one device on CPU"):
        build_engine("sglang", model, {"python": sys.executable, "device": "cpu", "tensor_parallel_size": 2})
    with pytest.raises(ModelLoadError, match=r"does not start with .*: it ended with status 1: ModuleNotFoundError"):
        build_engine("sglang", model, {"python": sys.executable, "device": "cpu"})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("host", "0.0.0.0", "expected it left out: the server listens on this machine alone"),
        ("api_key", "x", "expected it left out: the server listens on this machine alone"),
        ("incremental_streaming_output", False, "expected it left out: an engine counts the tokens of each event"),
        ("weight_version", "7", "expected it left out: an engine names each version"),
        ("enable_lora", True, "expected engine option 'adapter_rank'"),
        ("random_seed", 3, "expected engine option 'seed'"),
        ("tp_size", 2, "expected engine option 'tensor_parallel_size'"),
    ],
)
def test_an_argument_that_an_engine_relies_on_is_refused_before_anything_starts(name, value, says):
    options = {"python": sys.executable, "device": "cpu", "engine_args": {name: value}}
    for refuse in (lambda: check_engine_options("sglang", options), lambda: build_engine("sglang", "nowhere", options)):
        with pytest.raises(OptionError, match=f"found '{name}', {says}") as raised:
            refuse()
        assert "\n" not in str(raised.value)
    with pytest.raises(EngineMissingError, match="found no list of SGLang's arguments with"):
        check_engine_options("sglang", {**options, "engine_args": {"schedule_policy": "fcfs"}})


@pytest.mark.parametrize(("taken", "says"), [(2, "no such model"), (9, "address already in use")])
def test_a_server_whose_port_another_process_took_starts_again_with_another(tmp_path, model, taken, says):
    program, ports = tmp_path / "python", tmp_path / "ports"
    program.write_text(
        f"#!/bin/sh\ngrep -o '[0-9]*' \"$3\" | tr '\\n' ' ' >> {ports}; echo >> {ports}\n"
        f"[ $(wc -l < {ports}) -gt {taken} ] && echo no such model >&2 && exit 1\n"
        "echo '[Errno 98] bind: Address already in use' >&2; echo it ends >&2; exit 1\n"
    )
    program.chmod(0o755)
    with pytest.raises(ModelLoadError, match="does not start") as raised:
        build_engine("sglang", model, {"python": str(program), "device": "cpu"})
    assert (says in str(raised.value)) == (taken == 2), "the last line is told"
    tried = ports.read_text().splitlines()
    assert len(tried) == len(set(tried)) == 3


def test_events_may_come_in_any_pieces():
    draw = random.Random(SEED)
    objects = [{"i": i, "text": "x" * draw.randint(0, 30) + "\u00e9"} for i in range(40)]
    stream = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in objects) + b"data: [DONE]\n\n"
    for _ in range(20):
        events, found, rest = EventStream(), [], stream
        while rest:
            size = draw.randint(1, 90)
            found += events.feed(rest[:size])
            rest = rest[size:]
        assert (found, events.done) == (objects, True), f"seed {SEED}"
    for bad in (b"event: x\n\n", b"data: [1]\n\n", b"data: {\n\n"):
        with pytest.raises(BrokenStreamError):
            EventStream().feed(bad)


@pytest.mark.deep
def test_it_imports_nothing_heavy():
    code = (
        "import sys\nimport tailrace.rollout.sglang\n"
        "print(sorted({'torch', 'numpy', 'sglang', 'transformers', 'requests', 'httpx', 'aiohttp'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert re.sub(r"\s", "", found) == "[]"
