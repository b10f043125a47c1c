"""A model directory for the fake engine, so that weights travel through files as those of a real model do."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tailrace.contracts import Delta, Engine
from tailrace.rollout.testing.fakes import FakeEngine

CONTEXT, VOCABULARY = 64, 100_000


def fake_weights(value: int) -> dict[str, Any]:
    """The tensors of a version: two parameters, the first of which is the one of `FakeEngine`."""
    import torch

    return {"w": torch.tensor([value]), "v": torch.zeros(2, 3)}


def save_fake_model(path: Path, value: int = 100) -> Path:
    """Write a model directory for `TensorFakeEngine`. Token 7 ends a response."""
    from safetensors.torch import save_file

    path.mkdir(parents=True, exist_ok=True)
    shape = {"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 4, "max_position_embeddings": CONTEXT}
    (path / "config.json").write_text(json.dumps({**shape, "vocab_size": VOCABULARY, "eos_token_id": 7}))
    save_file(fake_weights(value), path / "model.safetensors")
    return path


class TensorFakeEngine(FakeEngine):
    """The fake engine with weights from files.

    Args:
        step_s: seconds that a step takes.
        options: as for `FakeEngine`.
    """

    def __init__(self, *, step_s: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self.step_s = step_s

    def step(self) -> Sequence[Delta]:
        """One token for each running request, after `step_s`."""
        time.sleep(self.step_s)
        return super().step()

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Take ``"w"`` and leave the others."""
        super().load_weights([(name, int(tensor)) for name, tensor in weights if name == "w"])


def build_fake_engine(model_path: str, options: Mapping[str, Any]) -> Engine:
    """An engine factory for `TensorFakeEngine`, which leaves the options that it does not know. It takes `load_s` seconds."""
    del model_path
    time.sleep(options.get("load_s", 0.0))
    known = ("step_s", "max_num_seqs", "max_model_len", "unseen")
    return TensorFakeEngine(**{name: options[name] for name in known if name in options})
