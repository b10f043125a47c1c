"""Small causal language models of several kinds, each with a tokenizer of words and a chat template."""

import pytest
import torch

WORDS = [*"0123456789+-=:?", "prompt", "response", "answer", "right", "user", "judge", "yes", "no"]
CHAT = (
    "{% for m in messages %}<|start|>{{ m['role'] }} {{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>judge{% endif %}"
)
TEMPLATE = "prompt {prompt} response {response} answer {answer} right ?"
LAYERS = 6


def write_tokenizer(directory):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|start|>", "<|end|>"]
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([" ".join(WORDS)] * 9, trainer)
    # The names of special tokens are those that Qwen2's tokenizer adds when they are missing.
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|endoftext|>", unk_token="<|endoftext|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|start|>", "<|end|>"]})
    fast.chat_template = CHAT
    fast.save_pretrained(directory)
    return len(fast)


def write_model(directory, kind, *, seed=0, **other):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
    positions = {"num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0}
    sizes |= positions | ({"head_dim": 32} if kind == "qwen3" else {}) | other
    config = AutoConfig.for_model(kind, vocab_size=write_tokenizer(directory), dtype="float32", **sizes)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():  # far from the initial scores of nearly a half
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    return str(directory)


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Threads that wait for each other on busy cores take ten times as long on models as small as these."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def judge_model(tmp_path_factory):
    """Maker of model directories, each made once."""
    made = {}

    def make(kind="qwen3", **other):
        key = (kind, *sorted(other.items()))
        if key not in made:
            made[key] = write_model(tmp_path_factory.mktemp(kind), kind, **other)
        return made[key]

    return make


@pytest.fixture
def template():
    return TEMPLATE


@pytest.fixture
def judged_items():
    from tailrace.reward.judge import JudgeItem

    return [JudgeItem(" ".join("0123456789"[: 1 + n] * (1 + n % 4)), f"{n} + 1", str(n)) for n in range(10)]
