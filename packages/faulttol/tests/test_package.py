"""The package as a newcomer meets it: the README's examples run, importing it is light, and its names are what they were."""

import re
import subprocess
import sys
from pathlib import Path

import tailrace.faulttol

README = Path(__file__).parents[1] / "README.md"


def run(code, folder):
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def examples():
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_example_does_what_the_readme_says(tmp_path):
    example, _elastic = examples()  # the other runs in test_elastic.py, on real Ray
    (said,) = run(example, tmp_path).splitlines()
    assert said == "8 r1 {'silent_s': 5, 'limit_s': 5.0} restart"


def test_importing_it_loads_nothing_heavy(tmp_path):
    code = "import sys, tailrace.faulttol; print(*sys.modules)"
    heavy = {"torch", "ray", "transformers", "vllm", "numpy", "pandas", "pyarrow", "pydantic"}
    assert not heavy & set(run(code, tmp_path).split())


def test_every_public_name_is_there_and_documented():
    for name in tailrace.faulttol.__all__:
        assert getattr(tailrace.faulttol, name).__doc__, name
    assert len(set(tailrace.faulttol.__all__)) == len(tailrace.faulttol.__all__)
