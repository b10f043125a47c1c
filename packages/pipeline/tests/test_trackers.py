"""Trackers: their figures arrive; one that fails, hangs or is slow costs the run nothing and is told once."""

import json
import os
import re
import resource
import shlex
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tailrace.contracts import plugins
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.build import tracker_names, tracker_of
from tailrace.pipeline.testing.tracker_contract import CONFIG, ROWS, check_tracker
from tailrace.pipeline.trackers import GROUP, TrackedRun, Trackers
from tailrace.pipeline.trackers.delivery import MOST_WAITING, tracker_plugin

# ---- each of the built-ins ------------------------------------------------------------------------------------------


def in_tensorboard(place):
    """Reads the files' records without TensorBoard: length, its checksum, an event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for path in sorted(Path(place.split()[-1]).iterdir(), key=lambda path: path.stat().st_mtime_ns):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + length])
            found |= {value.tag: value.simple_value for value in event.summary.value}
            data = data[16 + length :]
    return {name: pytest.approx(value, rel=1e-6) for name, value in found.items()}  # it has float32


def test_tensorboard(tmp_path):
    check_tracker(tracker_plugin("tensorboard", {}), tmp_path, kept=in_tensorboard)


def in_trackio(place):
    (file,) = Path(shlex.split(place)[0].removeprefix("TRACKIO_DIR=")).glob("*.db")
    with sqlite3.connect(file) as database:
        rows = database.execute("select run_name, step, metrics from metrics order by id").fetchall()
        assert len({name for name, *_ in rows}) == 1
    return {name: value for _, _, metrics in rows for name, value in json.loads(metrics).items()}


def test_trackio(tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    done = apart("trackio", {}, tmp_path / "a run")
    found = in_trackio(done)
    assert {name: found[name] for _, row in ROWS[2:] for name in row} == {
        n: v for _, row in ROWS[2:] for n, v in row.items()
    }


@pytest.mark.deep
def test_wandb_keeps_the_run_for_later_where_it_knows_no_key(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # no netrc
    place = apart("wandb", {"project": "tails"}, tmp_path / "a run")
    (folder,) = (tmp_path / "a run/wandb").glob("offline-run-*")
    assert shlex.split(place) == ["wandb", "sync", str(folder)]
    (file,) = folder.glob("run-*.wandb")
    data = file.read_bytes()
    for name in ("step/loss", "evaluation/sampled/accuracy", "trained_steps"):
        assert name.encode() in data


def ended(trackers, *patience_s):
    """The lines of trackers whose run is at its end."""
    return trackers.close(*patience_s, finished=True)


def apart(name, options, directory):
    """Hands rows to a tracker in its own process, as a run does. Returns its place."""
    directory.mkdir(exist_ok=True)
    trackers = Trackers({name: tracker_plugin(name, options)}, TrackedRun(directory, CONFIG), 120.0)
    for step, figures in ROWS:
        trackers.log(step, figures)
    assert ended(trackers) == []
    return trackers.places[name]


def on_page(place):
    with urllib.request.urlopen(place, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    found = dict(
        re.fullmatch(r'tailrace_(\w+)\{run="[^"]*"\} (\S+)', line).groups() for line in lines if line[0] != "#"
    )
    names = {name for _, row in ROWS for name in row}
    return {name: float(found[plain]) for name in names if (plain := name.replace("/", "_")) in found}


def test_prometheus(tmp_path):
    check_tracker(tracker_plugin("prometheus", {"port": 0}), tmp_path, live=on_page)


def test_prometheus_listens_on_loopback_and_answers_nothing_else(tmp_path):
    tracker = tracker_plugin("prometheus", {"port": 0}).open(TrackedRun(tmp_path / 'a"b\\', CONFIG))
    try:
        assert tracker.place.startswith("http://127.0.0.1:")
        tracker.log(1, {"step/loss": 0.5})
        assert on_page(tracker.place) == {"step/loss": 0.5}
        tracker.log(3, {})
        tracker.log(2, {"evaluation/sampled/accuracy": 0.5})  # it was measured while step 3 ran
        with urllib.request.urlopen(tracker.place, timeout=10) as answer:
            assert 'tailrace_steps{run="a_b_"} 3\n' in answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(tracker.place.replace("/metrics", "/"), timeout=10)
    finally:
        tracker.close(finished=True)


class FakeMlflow(BaseHTTPRequestHandler):
    """What the tracker calls of MLflow's REST interface."""

    runs: ClassVar[dict] = {}

    def do_GET(self):
        if "/mlflow/runs/get" in self.path:
            self.answer(200, {"run": self.runs["r"]["shown"]})
        else:
            self.answer(404, {"error_code": "RESOURCE_DOES_NOT_EXIST"})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        what = self.path.split("/mlflow/")[1]
        if what == "experiments/create":
            self.answer(200, {"experiment_id": "7"})
        elif what == "runs/search":
            self.answer(200, {"runs": [run["shown"] for run in self.runs.values() if run["tag"] in asked["filter"]]})
        elif what == "runs/create":
            (tag,) = [one["value"] for one in asked["tags"] if one["key"] == "tailrace.run"]
            shown = {"info": {"run_id": "r", "run_uuid": "r", "experiment_id": "7", "status": "RUNNING"}, "data": {}}
            self.runs["r"] = {"tag": tag, "shown": shown, "params": {}, "metrics": {}, "status": "RUNNING"}
            self.answer(200, {"run": shown})
        elif what == "runs/log-batch":
            run = self.runs[asked["run_id"]]
            run["params"] |= {one["key"]: one["value"] for one in asked.get("params", ())}
            run["metrics"] |= {one["key"]: one["value"] for one in asked.get("metrics", ())}
            self.answer(200, {})
        elif what == "runs/update":
            self.runs[asked["run_id"]]["status"] = asked["status"]
            self.answer(200, {"run_info": self.runs[asked["run_id"]]["shown"]["info"]})
        else:
            self.answer(404, {"error_code": "ENDPOINT_NOT_FOUND"})

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def mlflow_server():
    FakeMlflow.runs.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeMlflow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_mlflow_goes_on_with_the_run_of_an_earlier_driver(tmp_path, mlflow_server):
    pytest.importorskip("mlflow")
    check_tracker(
        tracker_plugin("mlflow", {"address": mlflow_server}), tmp_path, kept=lambda _: FakeMlflow.runs["r"]["metrics"]
    )
    (run,) = FakeMlflow.runs.values()
    assert run["status"] == "FINISHED"
    tracker = tracker_plugin("mlflow", {"address": mlflow_server}).open(TrackedRun(tmp_path, CONFIG))
    tracker.close(finished=False)
    assert run["status"] == "FAILED"
    assert run["params"]["trainer.options.betas"] == "[0.9, 0.95]"


# ---- what is wrong with one -----------------------------------------------------------------------------------------


def served_apart(tmp_path, patience_s):
    trackers = Trackers(
        {"prometheus": tracker_plugin("prometheus", {"port": 0})}, TrackedRun(tmp_path, CONFIG), patience_s
    )
    deadline = time.monotonic() + 120
    while not trackers.places and time.monotonic() < deadline:
        time.sleep(0.05)
    port = int(trackers.places["prometheus"].split(":")[2].split("/")[0])
    return trackers, listener(port)


def listener(port):
    """The process that listens there."""
    inode = next(
        line.split()[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{port:04X}")
    )
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(str(fd.readlink()) == f"socket:[{inode}]" for fd in folder.iterdir()):
                return int(folder.parent.name)
        except OSError:
            continue
    raise AssertionError(f"found nobody at port {port}")


@pytest.mark.parametrize(("how", "said"), [(signal.SIGKILL, "has ended"), (signal.SIGSTOP, "no line within")])
def test_a_tracker_whose_process_dies_or_stands_still_is_one_line(tmp_path, how, said):
    trackers, pid = served_apart(tmp_path, 3.0)
    os.kill(pid, how)
    for step in range(5):
        trackers.log(step, {"step/loss": 0.5})
    (line,) = ended(trackers, 60.0)
    assert line.startswith("tracker prometheus has ended: ")
    assert said in line
    assert line.endswith("; metrics.jsonl has the same data")
    assert ended(trackers) == [line]
    assert not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes()


def answers(place):
    try:
        urllib.request.urlopen(place, timeout=10).close()
    except OSError:
        return False
    return True


def test_a_process_goes_with_whoever_started_it(tmp_path):
    code = (
        "import time, os, sys\nfrom pathlib import Path\nfrom tailrace.pipeline.trackers import *\n"
        "from tailrace.pipeline.trackers.delivery import tracker_plugin\n"
        "t = Trackers({'prometheus': tracker_plugin('prometheus', {'port': 0})}, TrackedRun(Path(sys.argv[1]), {}), 60.0)\n"
        "while not t.places: time.sleep(0.05)\n"
        "print(t.places['prometheus'], flush=True)\ntime.sleep(600)\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    place = driver.stdout.readline().strip()
    with urllib.request.urlopen(place, timeout=10) as answer:
        assert answer.status == 200
    driver.kill()
    driver.wait()
    driver.stdout.close()
    deadline = time.monotonic() + 30
    while answers(place):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@dataclass(frozen=True)
class Planned:
    """A tracker of this process that fails where it is told to."""

    fails: str = ""
    kind: type[BaseException] = RuntimeError
    gate: threading.Event | None = None
    taken: list | None = None
    apart: ClassVar[bool] = False
    place: ClassVar[str] = "here"

    def check(self):
        pass

    def open(self, run):
        self.meet("open")
        return self

    def log(self, step, figures):
        self.meet("log")
        if self.taken is not None:
            self.taken.append((step, dict(figures)))

    def close(self, *, finished):
        self.meet("close")

    def meet(self, what):
        if self.gate is not None:
            self.gate.wait(120)
        if self.fails == what:
            raise self.kind(f"no\n {what}")


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
@pytest.mark.parametrize("fails", ["open", "log", "close"])
def test_a_tracker_that_fails_is_one_line_and_the_others_get_all(tmp_path, fails, kind):
    taken = []
    trackers = Trackers({"bad": Planned(fails, kind), "good": Planned(taken=taken)}, TrackedRun(tmp_path, {}), 60.0)
    for step in range(20):
        trackers.log(step, {"step/loss": 1.0, "step/nan": float("nan"), "step/inf": float("inf")})
    assert ended(trackers) == [f"tracker bad has ended: no {fails}; metrics.jsonl has the same data"]
    assert taken == [(step, {"step/loss": 1.0}) for step in range(20)]


def test_rows_beyond_those_that_wait_are_left_out_of_a_slow_one(tmp_path):
    gate, taken = threading.Event(), []
    trackers = Trackers({"slow": Planned(gate=gate, taken=taken)}, TrackedRun(tmp_path, {}), 60.0)
    for step in range(MOST_WAITING + 50):
        trackers.log(step, {"step/loss": float(step)})
    gate.set()
    (line,) = ended(trackers)
    assert line.startswith(f"tracker slow is slower than the run: rows are left out of it from step {MOST_WAITING}")
    assert [step for step, _ in taken] == list(range(MOST_WAITING))


def test_a_tracker_that_hangs_ends_with_the_runs_patience(tmp_path):
    gate = threading.Event()
    trackers = Trackers({"hung": Planned(gate=gate)}, TrackedRun(tmp_path, {}), 0.2)
    trackers.log(1, {"step/loss": 1.0})
    assert ended(trackers) == ["tracker hung did not take its last rows in time; metrics.jsonl has the same data"]
    began = time.monotonic()
    assert len(ended(trackers, 60.0)) == 1  # it was waited for once
    assert time.monotonic() - began < 30
    gate.set()


def test_one_that_is_left_is_ended_without_a_word(tmp_path, mlflow_server):
    pytest.importorskip("mlflow")
    options = {"address": mlflow_server}
    trackers = Trackers({"mlflow": tracker_plugin("mlflow", options)}, TrackedRun(tmp_path, CONFIG), 60.0)
    deadline = time.monotonic() + 120
    while not trackers.places and time.monotonic() < deadline:
        time.sleep(0.05)
    trackers.leave()
    assert trackers.close(finished=False) == []
    time.sleep(0.5)
    assert FakeMlflow.runs["r"]["status"] == "RUNNING"  # the successor's


def asked_for(content):
    config = validate([("my.toml", content)])
    return [tracker_of(config, name) for name in tracker_names(config)]


# ---- before a run starts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tracking", "line"),
    [
        ({"to": ["wandbb"]}, "key 'tracking.to': found 'wandbb', expected one of mlflow, prometheus"),
        ({"to": ["prometheus"], "options": {"wandb": {}}}, "found 'wandb', expected one of tracking.to"),
        ({"to": ["prometheus"], "options": {"prometheus": {"prot": 1}}}, "prometheus': found the unknown option"),
        ({"to": ["prometheus"], "options": {"prometheus": {"port": 70_000}}}, "found 70000, expected 0 to 65535"),
        ({"to": ["mlflow"]}, "found no address of MLflow"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(tracking, line, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigError) as caught:
        asked_for({"tracking": tracking})
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_that_is_not_installed_is_refused_if_it_was_asked_for(monkeypatch):
    from tailrace.contracts import errors

    monkeypatch.setattr(errors, "find_spec", lambda _: None)
    assert asked_for({}) == []
    with pytest.raises(ConfigError, match=r"pip install 'tailrace-pipeline\[tensorboard\]'"):
        asked_for({"tracking": {"to": ["tensorboard"]}})


def test_built_ins_are_registered():
    assert plugins.names(GROUP) == ["mlflow", "prometheus", "tensorboard", "trackio", "wandb"]


# ---- TensorBoard's files --------------------------------------------------------------------------------------------

FULL = """
import sys
from pathlib import Path
from tailrace.pipeline.trackers.tensorboard import summary_writer

writer = summary_writer(Path(sys.argv[1]))
for step in range(2000):
    writer.add_scalar("step/loss", 0.5, step)
writer.flush()
print("done")
"""


@pytest.mark.deep
def test_a_full_disk_is_one_line(tmp_path):
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, preexec_fn=limit, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n")
    (line,) = done.stderr.splitlines()
    assert "is incomplete: File too large; metrics.jsonl has the same data" in line
