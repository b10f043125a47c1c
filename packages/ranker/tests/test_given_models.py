"""A given language model that is fine-tuned: adapters, dtypes, parts of a batch, objectives, and what is refused."""

import dataclasses
import json
import shutil
import sys
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from tailrace.ranker import Example, LengthRanker, RankerModelError, RankerOptionError, Sft, compare, read_note, trials
from tailrace.ranker.learned import pretrained
from tailrace.ranker.learned.fitting import Plan, fit_network, parts
from tailrace.ranker.learned.options import OBJECTIVES
from tailrace.ranker.learned.pretrained import Tuning, copied
from tailrace.ranker.methods import Deadline, Setting
from tailrace.ranker.testing import made_examples

OPTIONS: dict[str, Any] = {"epochs": 2, "batch": 16, "most_tokens": 64, "lora_rank": 2, "init_lr": 1e-3}
PROMPTS = [example.prompt for example in made_examples(9, seed=4)]


def setting(init, seed=0, budget_s=600.0):
    return Setting(seed, Deadline(budget_s), init=init)


def test_parts_keep_the_budget_and_leave_none_out():
    sizes = [3, 9, 2, 2, 40, 1, 1, 1, 7]
    rows = torch.tensor([8, 0, 1, 2, 3, 4, 5, 6, 7])
    found = parts(rows, sizes, 20)
    assert torch.cat(found).tolist() == rows.tolist()
    assert [part.tolist() for part in found] == [[8, 0], [1, 2], [3], [4], [5, 6, 7]]
    assert [part.tolist() for part in parts(rows, sizes, 0)] == [rows.tolist()]
    assert parts(rows[:0], sizes, 20) == []


def test_a_step_of_parts_is_the_step_of_the_whole():
    """Gradients of parts add up to those of the mean over all rows, so the weights are the same up to rounding."""
    inputs, wanted = torch.randn(40, 5, generator=torch.Generator().manual_seed(1)), torch.arange(40.0)
    trained = []
    for batch_tokens in (0, 30):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = torch.nn.Linear(5, 1)
        fit_network(
            network,
            [3] * 40,
            lambda rows, learning, network=network: ((network(inputs[rows])[:, 0] - wanted[rows]) ** 2).mean(),
            Plan("line", 3, 16, 0.05, batch_tokens=batch_tokens),
            Setting(0, Deadline(600.0)),
        )
        trained.append(torch.cat([weight.detach().flatten() for weight in network.parameters()]))
    assert torch.allclose(trained[0], trained[1], atol=1e-5)


@pytest.mark.parametrize(
    "objective", [OBJECTIVES[0], *(pytest.param(each, marks=pytest.mark.deep) for each in OBJECTIVES[1:])]
)
def test_adapters_alone_learn_and_alone_are_saved(objective, small_model, tmp_path):
    examples = made_examples(90)
    ranker = LengthRanker.train(examples, Sft(objective=objective, **OPTIONS), init=small_model)
    assert (ranker.method, ranker.objective) == ("sft", objective)
    ranker.save(tmp_path / "ranker")
    saved = sum(file.stat().st_size for file in (tmp_path / "ranker" / "predictor").glob("*.safetensors"))
    whole = (small_model / "model.safetensors").stat().st_size
    assert saved < 0.6 * whole
    loaded = LengthRanker.load(tmp_path / "ranker")
    assert loaded.predict(PROMPTS) == ranker.predict(PROMPTS)
    assert loaded.update(made_examples(30, seed=2)) == ranker.update(made_examples(30, seed=2))
    assert read_note(tmp_path / "ranker").objective == objective


def test_what_it_computes_is_what_peft_computes(small_model):
    """Log-probabilities of digits with trained adapters, beside PEFT's own model with the same adapters."""
    predictor = Sft(objective="write", **OPTIONS).fit(made_examples(60), setting(small_model))
    ours = dict(predictor._model.named_parameters())
    theirs = get_peft_model(
        AutoModelForCausalLM.from_pretrained(small_model, dtype=torch.float32),
        LoraConfig(
            r=2,
            lora_alpha=32.0,
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        ),
    ).eval()
    with torch.no_grad():
        moved = 0
        for name, weight in theirs.named_parameters():
            if "lora_" in name:
                weight.copy_(ours[name.removeprefix("base_model.model.")])
                moved += 1
    assert moved == sum(weight.requires_grad for weight in ours.values()) == 2 * 7 * 2
    (row,) = predictor._codec.encode(PROMPTS[:1])
    row = row + predictor._asks
    with torch.inference_mode():
        expected = theirs(input_ids=torch.tensor([row])).logits[0, -1, predictor._digits].log_softmax(0)
        found = predictor._logprobs([row], torch.zeros(1, predictor._places, dtype=torch.long))[0, 0]
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("can", "least", "options", "expected"),
    [
        ({"avx512_bf16": True}, 0, {}, torch.bfloat16),
        ({"amx_bf16": True}, 0, {}, torch.bfloat16),
        ({"avx512_bf16": True}, 10**12, {}, torch.float32),
        ({"avx512_bf16": True}, 0, {"lora_rank": 0}, torch.float32),
        ({"avx512_bf16": True}, 0, {"dtype": "float32"}, torch.float32),
        ({"avx512_f": True}, 0, {}, torch.float32),
    ],
)
def test_a_cpu_that_multiplies_in_bfloat16_computes_large_models_in_it(
    small_model, monkeypatch, can, least, options, expected
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: can)
    monkeypatch.setattr(pretrained, "LARGE_BYTES", least)
    assert Tuning(Sft(**OPTIONS | options), small_model, 0).dtype == expected


@pytest.mark.parametrize("objective", ["write", pytest.param("pairwise", marks=pytest.mark.deep)])
def test_layers_that_compute_again_learn_the_same(objective, small_model):
    found = [
        Sft(objective=objective, activation_checkpointing=again, **OPTIONS)
        .fit(made_examples(60), setting(small_model))
        .predict(PROMPTS)
        for again in ("off", "on")
    ]
    for one, other in zip(*found, strict=True):
        assert (one.p50, one.p90, one.score) == pytest.approx((other.p50, other.p90, other.score), rel=1e-3)


@pytest.mark.parametrize(
    ("objective", "rank"),
    [
        *((each, 2) for each in OBJECTIVES),
        (OBJECTIVES[0], 0),
        *(pytest.param(each, 0, marks=pytest.mark.deep) for each in OBJECTIVES[1:]),
    ],
)
@pytest.mark.cases(3)
def test_bfloat16_computes_in_it_and_keeps_what_learns_in_float32(objective, rank, small_model):
    method = Sft(objective=objective, dtype="bfloat16", **OPTIONS | {"lora_rank": rank})
    predictor = method.fit(made_examples(60), setting(small_model))
    network = predictor._model if hasattr(predictor, "_model") else predictor._network
    assert {weight.dtype for weight in network.parameters() if weight.requires_grad} == {torch.float32}
    frozen = {weight.dtype for weight in network.parameters() if not weight.requires_grad}
    assert frozen == ({torch.bfloat16} if rank else set())
    exact = dataclasses.replace(method, dtype="float32").fit(made_examples(60), setting(small_model)).predict(PROMPTS)
    for one, other in zip(predictor.predict(PROMPTS), exact, strict=True):
        assert one.p50 == pytest.approx(other.p50, rel=0.2)


def test_a_copy_shares_what_is_frozen(small_model):
    model = Tuning(Sft(**OPTIONS), small_model, 0).causal_lm()
    copy = copied(model)
    for (name, weight), other in zip(model.named_parameters(), copy.parameters(), strict=True):
        assert (weight is other) == (not weight.requires_grad), name
        assert torch.equal(weight, other)
    assert copy is not model


def test_adapters_begin_by_changing_nothing_and_the_same_on_every_try(small_model):
    first, again = (dict(Tuning(Sft(**OPTIONS), small_model, 3).causal_lm().named_parameters()) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert all(not weight.any() for name, weight in first.items() if "lora_B" in name)
    assert any("lora_A" in name for name in first)


def test_auto_takes_the_objective_that_finds_most_on_prompts_held_back(small_model):
    examples, lines = made_examples(60), []
    ranker = LengthRanker.train(examples, Sft(**OPTIONS), init=small_model, progress=lines.append)
    tried = {line["method"]: line["recall20"] for line in lines if line["phase"] == "tried"}
    assert set(tried) == {"sft:write", "sft:quantiles", "sft:pairwise"}
    assert tried[f"sft:{ranker.objective}"] == max(tried.values())
    assert ranker.method == "sft"


def test_without_peft_auto_tries_the_other_methods_and_warns(small_model, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setattr(trials, "method_names", lambda: ["prompt-length", "sft"])
    with pytest.warns(UserWarning, match=r"auto did not try sft: .*tailrace-ranker\[adapters\]"):
        ranker = LengthRanker.train(made_examples(60), init=small_model)
    assert ranker.method == "prompt-length"


@pytest.mark.deep
def test_a_comparison_has_a_row_for_each_objective(small_model):
    found = compare(made_examples(60), method="sft", options=OPTIONS, names=["lexical"], init=small_model)
    assert list(found.methods) == ["lexical", "sft:write", "sft:quantiles", "sft:pairwise"]
    assert found.as_json()["chosen"] == "sft"
    assert found.as_json()["objective"] in OBJECTIVES


def test_a_number_of_steps_is_a_budget_that_no_load_changes(small_model):
    lines: list[Any] = []
    method = Sft(objective="write", steps=5, **OPTIONS | {"epochs": 50})
    LengthRanker.train(made_examples(60), method, init=small_model, progress=lines.append)
    assert {line["steps"] for line in lines if line["phase"] == "step"} == {5}


class Passing:
    """A clock on which a second passes between two looks."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_budget_shorter_than_a_step_is_refused_before_anything_is_learned(objective, small_model):
    lines: list[Any] = []
    short = Setting(0, Deadline(2.0, Passing()), init=small_model, progress=lines.append)
    with pytest.raises(
        RankerOptionError, match=r"found .* s left of the budget .* expected more than the 3\.0 s of a step"
    ) as said:
        Sft(objective=objective, **OPTIONS).fit(made_examples(60), short)
    assert "\n" not in str(said.value)
    assert lines == []


@pytest.fixture
def without_seven(small_model, tmp_path):
    """A model whose vocabulary has no token for the digit 7."""
    directory = tmp_path / "no-seven"
    shutil.copytree(small_model, directory)
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["seven"] = vocabulary.pop("7")
    tokenizer["model"]["merges"] = [pair for pair in tokenizer["model"]["merges"] if "7" not in "".join(pair)]
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return directory


@pytest.mark.parametrize("objective", ["auto", "write"])
def test_a_vocabulary_without_a_digit_is_refused_before_anything_is_learned(objective, without_seven):
    lines: list[Any] = []
    with pytest.raises(
        RankerModelError, match="found no token for the digit 7, expected a vocabulary with all ten digits"
    ):
        LengthRanker.train(
            made_examples(20), Sft(objective=objective, **OPTIONS), init=without_seven, progress=lines.append
        )
    assert lines == []


def test_other_objectives_need_no_digits(without_seven):
    assert LengthRanker.train(made_examples(20), Sft(objective="quantiles", **OPTIONS), init=without_seven)


def test_a_head_needs_a_model():
    with pytest.raises(RankerOptionError, match="found no init, expected the directory of the language model"):
        LengthRanker.train(made_examples(20), Sft(objective="pairwise"))


def test_adapters_of_another_model_are_refused(small_model, tmp_path):
    LengthRanker.train(made_examples(20), Sft(objective="write", **OPTIONS), init=small_model).save(tmp_path / "ranker")
    other = tmp_path / "other"
    shutil.copytree(small_model, other)
    assert LengthRanker.load(tmp_path / "ranker", init=other).predict(PROMPTS)
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    with pytest.raises(RankerModelError, match="found another model than the one that the ranker's adapters are of"):
        LengthRanker.load(tmp_path / "ranker", init=other)
    shutil.rmtree(other)
    with pytest.raises(RankerModelError, match=r"config\.json: found no such file .* expected the model"):
        LengthRanker.load(tmp_path / "ranker", init=other)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.cases(2)
def test_it_learns(objective, small_model):
    """Longer prompts have longer responses: a random model with all its weights learns that from 80 of them."""
    examples = [Example("go " * size, (10 * size, 11 * size)) for size in range(1, 41) for _ in range(2)]
    method = Sft(objective=objective, epochs=6, batch=16, most_tokens=64, lora_rank=0, init_lr=3e-3)
    ranker = LengthRanker.train(examples, method, init=small_model, seed=1)
    assert ranker.report(examples)["tau_b"] > 0.6
