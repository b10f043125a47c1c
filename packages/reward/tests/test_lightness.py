"""Importing the package, and starting a worker for its own verifiers, loads nothing heavy."""

import subprocess
import sys

HEAVY = ("torch", "ray", "transformers", "vllm", "numpy", "reasoning_gym", "sympy", "math_verify")


def test_nothing_heavy_is_imported():
    program = f"""
import sys
import tailrace.reward, tailrace.reward.tasks, tailrace.reward.worker, tailrace.reward.judge
tailrace.reward.load_verifier("numeric")
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
