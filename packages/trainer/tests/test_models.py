"""Models whose shape forbids a shortcut are trained without it, and right."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, LlamaConfig, MistralConfig, Qwen3NextConfig

from tailrace.trainer import TrainerConfig
from tailrace.trainer.policy_model import Policy
from tailrace.trainer.testing import inside, make_experiences, reference_loss
from tailrace.trainer.worker import TrainerWorker

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
         "intermediate_size": 24, "max_position_embeddings": 64, "vocab_size": 31}  # fmt: skip
MODELS = {
    # name: (config, output layer applied directly, prompts shared and rows packed)
    "llama, untied": (LlamaConfig(**SMALL, tie_word_embeddings=False), True, True),
    "mistral, windowed": (MistralConfig(**SMALL, sliding_window=6), True, False),
    "gemma 2, capped logits, windowed": (Gemma2Config(**SMALL, final_logit_softcapping=0.05), False, False),
    "qwen 3 next, linear attention": (
        Qwen3NextConfig(
            **SMALL, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8, shared_expert_intermediate_size=8,
            linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=1, linear_num_value_heads=2,
            layer_types=["linear_attention", "full_attention"],
        ),
        True,
        False,
    ),
    "gpt 2": (GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=31, n_positions=64,
                         resid_pdrop=0, embd_pdrop=0, attn_pdrop=0), True, True),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_gradient_equals_the_slow_reference(name, tmp_path, caplog):
    config, direct, shared = MODELS[name]
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    settings = TrainerConfig(lr=0.01, device="cpu", grad_clip_norm=0.0)
    batch = make_experiences(2, 3, vocab_size=31, seed=3)
    lm = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).train()
    loss = reference_loss(lm, batch, settings)
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in lm.parameters() if p.grad is not None]).norm().item()
    with TrainerWorker(tmp_path, settings) as worker:
        policy = inside(worker).module
        assert (policy.direct_head, policy.shares_prompts, policy.packs) == (direct, shared, shared)
        said = [line for line in caplog.messages if "packing = true" in line]
        assert len(said) == (0 if shared else 1)
        assert worker.notes == said
        assert all(str(tmp_path) in line and "padded" in line for line in said)
        metrics = worker.step([batch])
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_a_model_with_dropout_in_its_attention_is_trained_in_packed_rows_and_goes_on_bit_for_bit(tmp_path):
    lm = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL, attention_dropout=0.2, tie_word_embeddings=False))
    lm.save_pretrained(tmp_path / "model")
    batch = make_experiences(2, 3, vocab_size=31, seed=3)
    with TrainerWorker(tmp_path / "model", TrainerConfig(lr=0.01, device="cpu")) as worker:
        assert inside(worker).packs
        norms = [worker.step([batch])["grad_norm"]]
        worker.save(tmp_path / "1", 1).result(60)
        norms += [worker.step([batch])["grad_norm"] for _ in range(2)]
        worker.load(tmp_path / "1")
        again = [worker.step([batch])["grad_norm"] for _ in range(2)]
    assert len(set(norms)) == 3
    assert again == norms[1:]


class Noise:
    """A forward hook that moves every logit a little, differently at each call, as kernels of other shapes do."""

    def __init__(self, size):
        self.size, self.draw = size, torch.Generator().manual_seed(0)

    def __call__(self, module, given, hidden):
        return hidden + self.size * torch.randn(hidden.shape, generator=self.draw)


@pytest.mark.parametrize(("size", "scaled", "direct"), [(0.0, 1.0, True), (3e-4, 1.0, True), (3e-4, 0.5, False)])
def test_rounding_of_a_deep_model_costs_no_shortcut_and_hides_no_other_logits(size, scaled, direct):
    torch.manual_seed(0)
    lm = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL, tie_word_embeddings=False))
    with torch.no_grad():
        lm.lm_head.weight.mul_(50.0)  # logits as large as those of a trained model
    lm.model.norm.register_forward_hook(Noise(size))
    lm.lm_head.register_forward_hook(lambda module, given, logits: scaled * logits)
    policy = Policy(lm)
    policy.probe()
    assert (policy.direct_head, policy.shares_prompts, policy.packs) == (direct, True, True)
