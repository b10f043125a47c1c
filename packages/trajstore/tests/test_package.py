"""The package as a newcomer meets it: the README's examples run, importing it is light, and its names are what they were."""

import re
import subprocess
import sys
from pathlib import Path

import tailrace.trajstore

README = Path(__file__).parents[1] / "README.md"


def run(code, folder):
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def examples():
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_examples_do_what_the_readme_says(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"question": "2 + 2?", "answer": 4}\n')
    store, _after_a_crash, prompts = examples()  # what comes after a crash has a test of its own
    row = (
        "ConsumedTrajectory(trajectory='0.0', group=0, oldest_version=3, completed_version=0, consumed_version=4, "
        "reward=1.0, tokens=3)"
    )
    assert run(store, tmp_path).splitlines() == ["(7, 8)", f"[{row}]"]
    assert run(prompts, tmp_path).splitlines() == ["2 + 2? 4", "10"]


def test_importing_it_loads_nothing_heavy(tmp_path):
    code = "import sys, tailrace.trajstore; print(*sys.modules)"
    heavy = {"torch", "ray", "transformers", "vllm", "numpy", "pandas", "pyarrow", "pydantic"}
    assert not heavy & set(run(code, tmp_path).split())


def test_every_public_name_is_there_and_documented():
    for name in tailrace.trajstore.__all__:
        assert getattr(tailrace.trajstore, name).__doc__, name
    assert len(set(tailrace.trajstore.__all__)) == len(tailrace.trajstore.__all__)
