"""GRPO with clip-higher on FSDP2, for any Hugging Face causal LM: losses, gradients, checkpoints,
supervised warm start.
"""
