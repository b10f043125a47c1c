"""Programs that children of the tests run, and looks at processes from outside."""

import sys
import time
from pathlib import Path

DEADLINE_S = 60.0
ECHO = "from tailrace.processes import serve\nserve(lambda request: {'echo': request})"


def python(program, *words):
    return [sys.executable, "-c", program, *map(str, words)]


def gone(pid):
    """Whether a process has ended, a zombie that nobody has reaped included."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return True


def descriptors():
    """How many this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def wait_until(holds, what):
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, f"not within {DEADLINE_S:.0f} s: {what}"
        time.sleep(0.02)


# Starts a child that sleeps, says both ids, and sleeps.
WITH_A_CHILD = """
import json, os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(json.dumps({"own": os.getpid(), "child": child.pid}), flush=True)
time.sleep(600)
"""
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('{"ready": true}', flush=True)
time.sleep(600)
"""
HOSTILE = {
    "no JSON": "print('hello', flush=True)",
    "no object": "print('[1, 2]', flush=True)",
    "a number of many digits": "print('{\"a\": ' + '9' * 5000 + '}', flush=True)",
    "no UTF-8": 'import os; os.write(1, b\'{"a": "\\xff\\xfe"}\\n\')',
    "deep": "print('{\"a\":' * 10_000, flush=True)",
    "empty": "print(flush=True)",
    "too long": "print('{\"a\": \"' + 'x' * 70_000 + '\"}', flush=True)",
    "endless": "import os\nwhile True:\n    os.write(1, b'x' * 65536)",
}
