"""The package as a newcomer meets it: examples run, importing it is light, and its names are what they were."""

import json
import re
import subprocess
import sys
from pathlib import Path

import tailrace.staleness

PACKAGE = Path(__file__).parents[1]


def run(code, folder):
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def code_below(heading):
    section = (PACKAGE / "README.md").read_text().split(f"\n## {heading}\n")[1]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)


def test_readme_examples_print_what_it_says(tmp_path):
    shown = re.findall(r"```python\n([^`]*)```\n\nprints\n\n(.*?)\n\n", (PACKAGE / "README.md").read_text(), re.DOTALL)
    assert len(shown) == 2
    for code, said in shown:
        assert run(code, tmp_path).strip() == "\n".join(line.strip() for line in said.splitlines())


def test_a_loop_of_its_own(tmp_path):
    code = code_below("In a rollout loop of your own")
    assert len(code.splitlines()) < 40
    imports = re.findall(r"^(?:from|import) (\S+)", code, re.MULTILINE)
    assert imports == ["asyncio", "random", "tailrace.staleness"]
    told = "\nimport json; print(json.dumps([trained, BOUND, BATCH, STEPS]))"
    printed = run(code + told, tmp_path).splitlines()
    trained, bound, batch, steps = json.loads(printed[-1])
    assert len(trained) == batch * steps
    assert len({prompt for prompt, _ in trained}) == len(trained)
    ages = [age for _, age in trained]
    assert 0 <= min(ages) <= max(ages) <= bound
    assert max(ages) > 0, "generation did not run beside training"
    slow = [prompt for prompt, _ in trained if prompt % 10 == 0]
    assert slow
    assert len(slow) < len(trained)
    assert printed[0].startswith(f"trained on {len(trained)} prompts")


def test_importing_it_loads_nothing_heavy(tmp_path):
    heavy = ("torch", "numpy", "ray", "transformers", "vllm", "pydantic")
    loaded = run(f"import sys, tailrace.staleness; print([name for name in {heavy} if name in sys.modules])", tmp_path)
    assert loaded.strip() == "[]"


def test_public_names():
    assert sorted(tailrace.staleness.__all__) == [
        "Bounded",
        "BufferState",
        "DuplicateError",
        "Entry",
        "GroupTracker",
        "InFlightCap",
        "Inherent",
        "LimitError",
        "NotReadyError",
        "OnPolicy",
        "OneStep",
        "OutdatedForkError",
        "RedundantError",
        "SamplerError",
        "StalenessBoundExceeded",
        "StalenessError",
        "StalenessManager",
        "StateError",
        "Tentative",
        "UnknownBufferError",
        "UnknownEntryError",
        "VersionError",
    ]
    for name in tailrace.staleness.__all__:
        assert getattr(tailrace.staleness, name).__doc__
