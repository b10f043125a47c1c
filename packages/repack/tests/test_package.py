"""The package as a newcomer meets it: the README's examples run, importing it is light, and its names are what they were."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace.repack

README = Path(__file__).parents[1] / "README.md"


def run(code, folder):
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def examples():
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize(("place", "first"), [(0, "gpu-"), (1, r"[ \d]\d running"), (2, "replica")])
def test_the_examples_print_what_the_readme_says(tmp_path, place, first):
    said = re.findall(rf"^    ({first}.*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(said) == 2 + place
    assert run(examples()[place], tmp_path).splitlines() == said


def test_importing_it_loads_nothing_heavy(tmp_path):
    code = "import sys, tailrace.repack; print(*sys.modules)"
    heavy = {"torch", "ray", "transformers", "vllm", "numpy", "pandas", "pyarrow", "pydantic"}
    assert not heavy & set(run(code, tmp_path).split())


def test_every_public_name_is_there_and_documented():
    for name in tailrace.repack.__all__:
        assert getattr(tailrace.repack, name).__doc__, name
    assert len(set(tailrace.repack.__all__)) == len(tailrace.repack.__all__)
