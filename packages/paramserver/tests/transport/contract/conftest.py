import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tailrace.paramserver import ParamServerError
from tailrace.paramserver.transport.protocol import load

THIRD_PARTY = '''
from tailrace.paramserver.transport.tcp import Tcp

class Other(Tcp):
    """Somebody else's transport: found by its entry point only."""
    name = "other"
    def export(self, memory):
        export = super().export(memory)
        export.descriptor["transport"] = "other"
        return export
'''


@pytest.fixture
def third_party(tmp_path, monkeypatch):
    """A distribution that registers the transport `other`, on the path of this process and of its children."""
    (tmp_path / "other_transport.py").write_text(THIRD_PARTY)
    metadata = tmp_path / "other_transport-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other-transport\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[tailrace.transport]\nother = other_transport:Other\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return "other"


# Shared memory and TCP need nothing beside Python. The others do the same by libraries, or are TCP by another name: they read
# ranges each time, and do the rest with --deep.
RARELY = [pytest.param(name, marks=pytest.mark.deep) for name in ("ucx", "nixl", "other")]


@pytest.fixture(params=["shm", "tcp", *RARELY])
def name(request):
    """Every transport; one that cannot be used here is skipped with its reason."""
    if request.param == "other":
        request.getfixturevalue("third_party")
    try:
        load(request.param)
    except ParamServerError as error:
        pytest.skip(str(error))
    return request.param


class Exporter:
    """A process that exports memory whose bytes follow from its seed.

    `struck` is whether a test sent it a signal.
    """

    struck = False

    def __init__(self, name):
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("exporter.py")), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, **command):
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def export(self, nbytes, seed):
        return self.ask(do="export", nbytes=nbytes, seed=seed)["descriptor"], random.Random(seed).randbytes(nbytes)

    def close_all(self):
        """Closes what it still exports."""
        self.ask(do="close all")

    def signal(self, number):
        self.struck = True
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait()
        while number == signal.SIGSTOP and not all(self._stopped(task) for task in self._tasks()):
            time.sleep(0.001)  # a thread that was running stops a little later

    def _tasks(self):
        return Path(f"/proc/{self.process.pid}/task").iterdir()

    @staticmethod
    def _stopped(task):
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"

    def close(self):
        self.process.kill()  # also while it is stopped
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def exporters():
    """Processes that no test has struck yet, by the transport's name: starting one takes longer than most tests."""
    running = {}
    yield running
    for exporter in running.values():
        exporter.close()


@pytest.fixture
def exporter(name, exporters):
    made = exporters.pop(name, None) or Exporter(name)
    yield made
    if made.struck or made.process.poll() is not None:
        made.close()
        return
    made.close_all()
    exporters[name] = made


@pytest.fixture
def doomed(name):
    """A reader's process that has begun to read, and is still at it."""
    processes = []

    def start(descriptor):
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("reader.py")), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        processes.append(process)
        process.stdin.write(json.dumps(descriptor).encode() + b"\n")
        process.stdin.close()
        assert process.stdout.readline() == b"read\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def transport(name):
    return load(name)
