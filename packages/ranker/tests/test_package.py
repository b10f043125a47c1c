"""The package as a newcomer meets it: the README's example runs, importing it is light, and its names are what they were."""

import re
import subprocess
import sys
from pathlib import Path

import tailrace.ranker
from tailrace.ranker import method_names

README = Path(__file__).parents[1] / "README.md"
HEAVY = ("torch", "sklearn", "scipy", "numpy", "transformers", "tokenizers", "safetensors", "ray", "vllm", "pydantic")


def run(code, folder):
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_prints_what_the_readme_says(tmp_path):
    text = README.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    shown = re.search(r"\nprints\n\n((?:    .*\n)+)", text).group(1)
    assert run(code, tmp_path).splitlines() == [line.strip() for line in shown.splitlines()]


def test_importing_it_and_every_method_loads_nothing_heavy(tmp_path):
    code = f"""
import sys, tailrace.ranker
from tailrace.ranker.methods import load_method, method_names
for name in method_names():
    load_method(name)
print([name for name in {HEAVY} if name in sys.modules])
"""
    assert run(code, tmp_path).strip() == "[]"


def test_the_readme_has_every_method():
    assert set(re.findall(r"^\| `([a-z-]+)` \|", README.read_text(encoding="utf-8"), re.MULTILINE)) == set(
        method_names()
    )


def test_public_names():
    assert sorted(tailrace.ranker.__all__) == [
        "Comparison",
        "DamagedRankerError",
        "Example",
        "ExampleError",
        "LengthRanker",
        "MeasureError",
        "Method",
        "Prediction",
        "PredictionError",
        "Predictor",
        "RankerError",
        "RankerModelError",
        "RankerOptionError",
        "SPLIT",
        "SavedNote",
        "Setting",
        "Sft",
        "UnknownMethodError",
        "Update",
        "ceiling",
        "ceiling20",
        "check_lengths",
        "check_saved",
        "compare",
        "configured",
        "method_names",
        "read_note",
        "recall",
        "remaining_tokens",
        "tau_b",
    ]
    for name in tailrace.ranker.__all__:
        assert getattr(tailrace.ranker, name).__doc__, name
