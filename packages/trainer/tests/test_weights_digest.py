"""The digest of weights: names, types, shapes and bits, whatever files they are in."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tailrace.trainer import CheckpointError
from tailrace.trainer.weights_file import weights_sha256


@pytest.fixture
def weights():
    torch.manual_seed(0)
    return {"b": torch.randn(3, 2), "a": torch.randn(5).bfloat16(), "c": torch.zeros(0, 4)}


def written(directory, *files):
    directory.mkdir()
    for number, tensors in enumerate(files, 1):
        save_file(tensors, str(directory / f"model-{number:05d}-of-{len(files):05d}.safetensors"), metadata={"n": "1"})
    return weights_sha256(directory)


def test_it_depends_on_the_tensors_alone(tmp_path, weights):
    a, b, c = weights["a"], weights["b"], weights["c"]
    whole = written(tmp_path / "whole", weights)
    assert written(tmp_path / "split", {"b": b}, {"c": c, "a": a}) == whole
    changed = b.clone()
    changed.view(torch.int32)[2, 1] ^= 1  # one bit
    for number, other in enumerate(
        ({**weights, "b": changed}, {**weights, "b": b.reshape(2, 3)}, {"x": b, "a": a, "c": c}, {"a": a, "b": b},
         {**weights, "a": a.view(torch.float16)})
    ):  # fmt: skip
        assert written(tmp_path / str(number), other) != whole


@pytest.mark.parametrize("damage", ["none", "short", "header", "length"])
def test_damage_is_named(tmp_path, weights, damage):
    if damage != "none":
        written(tmp_path / "model", weights)
        path = tmp_path / "model" / "model-00001-of-00001.safetensors"
        content = path.read_bytes()
        spoilt = {
            "short": content[:-1],
            "header": content[:8] + b"[" + content[9:],
            "length": (2**40).to_bytes(8, "little") + content[8:],
        }
        path.write_bytes(spoilt[damage])
    with pytest.raises(CheckpointError, match="found no model.safetensors" if damage == "none" else "is damaged"):
        weights_sha256(tmp_path / "model")


def test_a_header_of_nothing_is_a_model_without_weights(tmp_path):
    (tmp_path / "model").mkdir()
    header = json.dumps({}).encode()
    (tmp_path / "model" / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert len(weights_sha256(tmp_path / "model")) == 64
