"""The package as a newcomer meets it: importing it is light, and its public names are documented."""

import subprocess
import sys

import tailrace.trajstore


def run(code, folder):
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_it_loads_nothing_heavy(tmp_path):
    code = "import sys, tailrace.trajstore; print(*sys.modules)"
    heavy = {"torch", "ray", "transformers", "vllm", "numpy", "pandas", "pyarrow", "pydantic"}
    assert not heavy & set(run(code, tmp_path).split())


def test_every_public_name_is_there_and_documented():
    for name in tailrace.trajstore.__all__:
        assert getattr(tailrace.trajstore, name).__doc__, name
    assert len(set(tailrace.trajstore.__all__)) == len(tailrace.trajstore.__all__)
