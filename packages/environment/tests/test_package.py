"""The package as a newcomer meets it: the README's example runs, importing it is light, and its names are documented."""

import re
import subprocess
import sys
from pathlib import Path

import tailrace.environment

README = Path(__file__).parents[1] / "README.md"


def run(code, folder):
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_does_what_the_readme_says(tmp_path):
    guess, example = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert max(len(guess.splitlines()), len(example.splitlines())) < 40
    (tmp_path / "guess.py").write_text(guess)
    more, right, counts = run(example, tmp_path).splitlines()
    assert more == "more"
    assert right == "StepResult(observation='right', done=True, reward=0.5, metadata={}, fresh=False)"
    assert counts == "1 restored, 0 lost"


def test_importing_it_loads_nothing_heavy(tmp_path):
    code = "import sys, tailrace.environment, tailrace.environment.python_tool; print(*sys.modules)"
    found = set(run(code, tmp_path).split())
    assert not {"torch", "ray", "transformers", "vllm", "numpy", "pydantic", "tailrace.reward"} & found


def test_every_public_name_is_there_and_documented():
    for name in tailrace.environment.__all__:
        assert getattr(tailrace.environment, name).__doc__, name
    assert len(set(tailrace.environment.__all__)) == len(tailrace.environment.__all__)


def test_the_worker_needs_nothing_but_the_standard_library():
    source = Path(tailrace.environment.__file__).with_name("worker.py").read_text()
    modules = set(re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE))
    assert modules <= sys.stdlib_module_names
