"""``tailrace --help`` answers at once: it loads nothing heavy."""

import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "ray",
    "transformers",
    "vllm",
    "numpy",
    "plotly",
    "reasoning_gym",
    "tailrace.pipeline",
    "tailrace.fleetsim",
)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run", "--help"],
        ["simulate", "--help"],
        ["--version"],
        ["plugins"],
        ["sandbox", "--help"],
        ["serve", "--help"],
    ],
)
def test_nothing_heavy_is_loaded(arguments):
    code = (
        "import sys\n"
        "from tailrace.cli.main import main\n"
        f"status = main({arguments!r})\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "assert not heavy, heavy\n"
        "sys.exit(status)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
