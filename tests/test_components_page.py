"""The programs of the page on components run as they are shown."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/components.md"


def programs():
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_several_components_make_a_loop_that_learns_within_its_bound(tmp_path):
    loop, _ = programs()
    script = tmp_path / "loop.py"
    script.write_text(loop.replace('"loop", token', f'"loop-{tmp_path.name}", token'))
    found = subprocess.run(
        [sys.executable, "-W", "error", script], cwd=tmp_path, check=False, capture_output=True, text=True, timeout=60
    )
    assert (found.returncode, found.stderr) == (0, "")
    *steps, last = found.stdout.splitlines()
    assert [line.split(":")[0] for line in steps] == [f"step {step}" for step in range(1, 11)]
    assert last == PAGE.read_text().split("and last\n\n    ")[1].split("\n")[0]


def test_a_reward_function_of_trl_takes_texts_and_messages():
    _, reward = programs()
    found = {}
    exec(reward, found)
    with found["scorer"]:
        said = ["<answer>12</answer>", [{"role": "assistant", "content": r"\boxed{13}"}], "12"]
        assert found["reward"](said, answer=["12", "12", ""], prompts=["?"] * 3) == [1.0, 0.0, None]
