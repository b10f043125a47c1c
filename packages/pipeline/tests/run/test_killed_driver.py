"""Nothing outlives a driver that is killed: no process, no shared memory."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="a real trainer trains a real model")
pytestmark = pytest.mark.skipif(
    not Path("/dev/shm").is_dir(), reason="this system lists no shared memory and processes"
)

MARK = "TAILRACE_TEST_OF_A_KILLED_DRIVER"
DRIVER = """
import sys
from pathlib import Path
from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.runtime.executor.executor import Executor
from tailrace.pipeline.run.eventlog import EventLog
from tailrace.pipeline.testing.small_run import LOG, make_deployment, make_files, make_spec

root = Path(sys.argv[1])
if sys.argv[2] == "local":
    from tailrace.runtime.hosts.local import LocalHost as Host
else:
    from tailrace.runtime.hosts.ray import RayHost as Host


class Watching:
    def observe(self, now, events, commands, run):
        if any(isinstance(event, c.Stepped) for event in events):
            print("a step is done", flush=True)

    def tick(self, now, executor):
        pass


model = make_files(root)
executor = Executor(Host(), make_deployment(root, model, name=sys.argv[3]), observers=[Watching()])
with EventLog(root / LOG) as log:
    executor.run(Controller(make_spec(steps=1000)), log)
"""


def processes(mark):
    """Processes that inherited the mark, except those that ended and wait to be reaped."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes():
                found.append(f"{path.name} {(path / 'cmdline').read_text()[:80]!r}")
        except OSError:
            continue
    return found


def segments(relay):
    """The segments of a relay, alive or not."""
    for owner in Path("/dev/shm").glob("tailrace-*/*-o"):
        try:
            record = json.loads(owner.read_bytes().rstrip(b"\0"))
        except (OSError, ValueError):
            continue
        if record["relay"].startswith(relay):
            return [path.name for path in owner.parent.glob(f"{owner.name[:-2]}-*")]
    return []


@pytest.mark.long
@pytest.mark.parametrize("host", ["local", pytest.param("ray", marks=[pytest.mark.deep, pytest.mark.timeout(600)])])
def test_nothing_outlives_a_driver_that_is_killed(tmp_path, host):
    if host == "ray":
        pytest.importorskip("ray")
    name = f"killed-{os.getpid()}-{time.monotonic_ns()}"
    environment = {
        **os.environ,
        MARK: name,
        "OMP_NUM_THREADS": "1",
        "RAY_TMPDIR": f"/tmp/k{os.getpid()}",
    }  # a short path
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path), host, name], stdout=subprocess.PIPE, env=environment, text=True
    )
    try:
        assert driver.stdout.readline() == "a step is done\n"
        assert segments(name)
        assert len(processes(name)) > 2  # driver, relay, verifier
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.communicate()
    deadline = time.monotonic() + 150.0  # Ray's agents look for their dead cluster for a minute
    while time.monotonic() < deadline and (processes(name) or segments(name)):
        time.sleep(0.1)
    shutil.rmtree(environment["RAY_TMPDIR"], ignore_errors=True)
    assert processes(name) == []
    assert segments(name) == []
