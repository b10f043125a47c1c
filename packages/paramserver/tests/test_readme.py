import re
import subprocess
import sys
from pathlib import Path


def test_the_example_runs(tmp_path):
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (example,) = (block for block in blocks if "__main__" in block)  # the others are parts
    script = tmp_path / "example.py"
    script.write_text(
        example.replace('"first"', f'"first-{tmp_path.name}"').replace('"second"', f'"second-{tmp_path.name}"')
    )
    found = subprocess.run(
        [sys.executable, "-W", "error", script], check=True, capture_output=True, text=True, timeout=60
    )
    assert found.stdout.startswith("RawTensor(dtype='float32', shape=(2,)")
    assert found.stderr == ""
