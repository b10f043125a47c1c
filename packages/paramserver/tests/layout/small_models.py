"""Small configs of every kind that the tables know, with sizes that leave room for uneven splits."""

DENSE = {
    "model_type": "qwen2",
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 150,
    "tie_word_embeddings": False,
}
TIED = {**DENSE, "model_type": "qwen3", "head_dim": 4, "tie_word_embeddings": True}
MOE = {
    **TIED,
    "model_type": "qwen3_moe",
    "tie_word_embeddings": False,
    "num_experts": 4,
    "moe_intermediate_size": 8,
    "mlp_only_layers": [1],
}
SHARED = {key: value for key, value in MOE.items() if key not in ("head_dim", "mlp_only_layers")}
SHARED |= {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 16}
MODELS = {"dense": DENSE, "tied": TIED, "moe": MOE, "shared": SHARED}
