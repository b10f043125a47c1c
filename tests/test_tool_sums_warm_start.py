"""The warm start of the tool task reads signs, on a seed whose embeddings once left a plus and a minus the same."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.prepare import prepare
from tailrace.reward.tasks import get_task
from tailrace.trainer.demonstrations import encode

CONFIG = Path(__file__).parents[1] / "configs" / "laminar" / "tool-sums.toml"
SHORT = ("warm_start.steps=181", "warm_start.flawless_steps=180", "warm_start.options.hold=1.0")


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_a_plus_is_told_from_a_minus_within_180_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("TAILRACE_CACHE", str(tmp_path / "cache"))
    config = configuration(str(CONFIG), settings=SHORT, seed=0)
    directory = RunDirectory(tmp_path / "run")
    directory.task.mkdir(parents=True)
    model = prepare(config, directory, lambda row: None).model
    plus = probabilities_of_a_plus(model)
    assert plus["-"] < 0.3 < 0.7 < plus["+"], plus  # with embeddings that begin at 0.02 the two are the same


def probabilities_of_a_plus(model):
    """The probability of a plus at its place, beside a minus, by the sign that is asked."""
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer, task = Tokenizer.from_file(str(model / "tokenizer.json")), get_task("tool-sums")
    ids = {sign: tokenizer.token_to_id(f" {sign}") for sign in "+-"}
    found = {sign: [] for sign in ids}
    lm = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    rows = task.generate("heldout", 32, 0)
    for prompt, response, learned in encode(model, task.demonstrations(rows, 0, 0.0)):
        with torch.no_grad():
            logits = lm(input_ids=torch.tensor([[*prompt, *response]])).logits[0]
        for place, token in enumerate(response):
            for sign, own in ids.items():
                if learned[place] and token == own:
                    before = logits[len(prompt) + place - 1]
                    found[sign].append(torch.sigmoid(before[ids["+"]] - before[ids["-"]]).item())
    return {sign: sum(each) / len(each) for sign, each in found.items()}
