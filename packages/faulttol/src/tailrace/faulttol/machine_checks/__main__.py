"""One check of this machine: ``python -m tailrace.faulttol.machine_checks DIRECTORY NAME`` prints its answer as JSON.

What the check itself prints, or a library or a tool that it calls, goes to standard error: it is not the answer.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tailrace.contracts import TailraceError, plugins
from tailrace.faulttol.machine_checks.check import GROUP, MachineCheck, UnfitError

if len(sys.argv) != 3:
    sys.exit(f"found {len(sys.argv) - 1} arguments, expected a directory and the name of a check")
answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
sys.stdout = sys.stderr
try:
    check: MachineCheck = plugins.load(GROUP, sys.argv[2])()
except TailraceError as error:
    sys.exit(str(error))
try:
    fit, found = True, check.run(Path(sys.argv[1]))
except UnfitError as error:
    fit, found = False, str(error)
print(json.dumps({"fit": fit, "found": found}), file=answers, flush=True)
