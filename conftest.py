"""For all tests: processes that tests start keep bytecode, also where Python is told not to write it beside the sources.

Torch, Ray and vLLM would otherwise be compiled anew in each of them, which takes longer than the tests.
"""

import os
import sys
import tempfile
from pathlib import Path

if sys.dont_write_bytecode and not os.environ.get("PYTHONPYCACHEPREFIX"):
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir()) / "tailrace-tests-bytecode")
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""
