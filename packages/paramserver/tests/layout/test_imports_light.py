import subprocess
import sys

CODE = """
import sys
from tailrace.paramserver.layout import *
tensors = qwen_tensors({"model_type": "qwen3", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
                        "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 8, "vocab_size": 10})
config = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4}
source = from_megatron(tensors, config, tp=2, pp=2)
plan = Planner().plan(source, from_vllm(tensors, config, tp=2, ranks=["a", "b"]))
parcel = message(plan, *next(iter(plan.pairs)))
pack(parcel, {b.name: bytearray(parcel.source_bytes.get(b.name, 0)) for b in source.shards[parcel.sender].buffers},
     bytearray(parcel.nbytes))
print(sorted({"torch", "numpy", "ray", "transformers", "vllm"} & set(sys.modules)))
"""


def test_planning_and_packing_need_nothing_heavy():
    found = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True).stdout
    assert found.strip() == "[]"
