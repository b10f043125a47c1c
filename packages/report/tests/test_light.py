"""Reading a run loads nothing heavy: neither an engine nor what draws a page."""

import subprocess
import sys


def test_nothing_heavy_is_loaded():
    code = (
        "import sys, tailrace.report, tailrace.report.explain\n"
        "print(sorted({'torch', 'ray', 'transformers', 'vllm', 'numpy', 'plotly', 'jinja2'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "[]\n"
