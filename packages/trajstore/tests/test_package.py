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


def test_the_bridge_to_torchrl_names_its_extra(tmp_path):
    code = "import sys; sys.modules['torchrl'] = sys.modules['torch'] = None\ntry:\n    import tailrace.trajstore.torchrl\n"
    code += "except ImportError as error:\n    print(error)"
    assert run(code, tmp_path) == (
        "found no module 'torch', expected that of an extra: pip install 'tailrace-trajstore[torchrl]'\n"
    )
