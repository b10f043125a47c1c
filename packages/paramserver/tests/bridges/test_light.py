"""The bridges cost nothing until their framework is there."""

import subprocess
import sys


def test_bridges_import_nothing_heavy():
    code = (
        "import sys\n"
        "from tailrace.paramserver.bridges import sglang, torch_module, verl_engine, vllm\n"
        "print(sorted({'torch', 'numpy', 'ray', 'transformers', 'vllm', 'verl'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.strip() == "[]"
