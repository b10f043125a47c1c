"""``tailrace --help`` answers at once: it loads nothing heavy."""

import subprocess
import sys

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


COMMANDS = (
    ["--help"],
    ["run", "--help"],
    ["simulate", "--help"],
    ["--version"],
    ["plugins"],
    ["sandbox", "--help"],
    ["serve", "--help"],
)


def test_nothing_heavy_is_loaded():
    code = (
        "import sys\n"
        "from tailrace.cli.main import main\n"
        f"for arguments in {COMMANDS!r}:\n"
        "    status = main(arguments)\n"
        f"    heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "    assert not heavy, (arguments, heavy)\n"
        "    assert status == 0, (arguments, status)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
