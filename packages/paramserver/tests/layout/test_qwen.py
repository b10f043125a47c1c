"""The listed tensors beside those of the models that transformers builds."""

import pytest

from tailrace.paramserver.layout import LayoutInvalid
from tailrace.paramserver.layout.model_config import qwen_tensors

from .small_models import MODELS


@pytest.mark.parametrize("name", sorted(MODELS))
def test_are_those_of_transformers(name):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = MODELS[name]
    hugging_face = (
        transformers.AutoConfig.for_model(**config, decoder_sparse_step=1) if "moe" in config["model_type"] else None
    )
    hugging_face = hugging_face or transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(hugging_face)
    built = {}
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        if key.endswith(("experts.gate_up_proj", "experts.down_proj")):  # stacked in memory, one by one in checkpoints
            for expert, one in enumerate(tensor):
                prefix = key.rpartition(".")[0] + f".{expert}."
                if key.endswith("down_proj"):
                    built[prefix + "down_proj.weight"] = tuple(one.shape)
                else:
                    gate, up = one.chunk(2)
                    built |= {
                        prefix + "gate_proj.weight": tuple(gate.shape),
                        prefix + "up_proj.weight": tuple(up.shape),
                    }
            continue
        built[key] = tuple(tensor.shape)
    assert {tensor.name: tensor.shape for tensor in qwen_tensors(config)} == built
    # What a config object says of itself is enough too.
    assert qwen_tensors(hugging_face.to_dict()) == qwen_tensors(config)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "llama"}, "model_type: found 'llama'"),
        ({"hidden_size": None}, "hidden_size: found 'None'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_attention_heads": "8"}, "num_attention_heads"),
    ],
)
def test_configs_that_say_too_little_are_refused(change, says):
    with pytest.raises(LayoutInvalid, match=says):
        qwen_tensors({**MODELS["dense"], **change})
