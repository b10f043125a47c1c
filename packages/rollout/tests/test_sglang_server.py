"""The SGLang engine on SGLang's own server, on a CPU: contract, attacks, and the fields of the stand-in."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tailrace.paramserver")

from tailrace.contracts import Request, Sampling
from tailrace.paramserver.testing.sglang_server import FIELDS
from tailrace.processes import Child
from tailrace.rollout import EngineDiedError, OptionError, build_engine, engine_abilities, generate
from tailrace.rollout.adapters import written
from tailrace.rollout.engine_selection import check_engine_options
from tailrace.rollout.errors import RequestError, WeightsError
from tailrace.rollout.sglang_server import KEY_VARIABLE
from tailrace.rollout.testing import EngineAbilitiesContract, EngineContract, save_tiny_model
from tailrace.rollout.testing.abilities_contract import make_adapter
from tailrace.rollout.testing.contract import VOCABULARY, log_probabilities
from tailrace.rollout.testing.sglang_environment import sglang_python

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1200)]
TOOLS = Path(__file__).resolve().parents[3] / "tools" / "sglang"
TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def python():
    return sglang_python(TOOLS)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return folder / "1", save_tiny_model(folder / "1", seed=1), save_tiny_model(folder / "2", seed=2)


OPTIONS = {"device": "cpu", "dtype": "float32", "max_num_seqs": 16, "answer_s": 30.0}


@contextlib.contextmanager
def started(path, python, **options):
    engine = build_engine("sglang", str(path), {**OPTIONS, "python": python, **options})
    try:
        yield engine
    finally:
        engine.close()


def processes_of(engine):
    """Commands of the server's processes, by id."""
    return {
        pid: Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        for pid in in_group(engine._server._child.pid)
    }


def in_group(group):
    """Ids of the live processes of a group."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if int(state[2]) == group and state[0] not in ("Z", "X"):
                found.append(int(entry.name))
    return found


def steps(engine, until):
    while time.monotonic() < until:
        engine.step()


def requests(count, length):
    return [Request(str(i), (i + 1, 5, 9), Sampling(temperature=1.0, max_tokens=length)) for i in range(count)]


class TestSGLangEngine(EngineContract):
    # SGLang lets requests wait before a small cache is full, so the suite's case preempts none: tells_preemptions stays False
    seeds = digests = True

    def build(self, model_path, options):
        return build_engine("sglang", model_path, {"device": "cpu", "python": sglang_python(TOOLS), **options})


class TestSGLangAbilities(EngineAbilitiesContract):
    abilities = engine_abilities("sglang")

    def build(self, model_path, options):
        return build_engine("sglang", model_path, {"device": "cpu", "python": sglang_python(TOOLS), **options})


def test_the_stand_ins_fields_are_those_of_the_installed_sglang(python):
    found = subprocess.run([python, TOOLS / "fields"], capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stderr[-2000:]
    assert json.loads(found.stdout) == FIELDS


def test_an_argument_that_sglang_lacks_is_named_before_anything_starts(python):
    check_engine_options("sglang", {"python": python, "engine_args": {"schedule_policy": "fcfs", "log_level": "info"}})
    with pytest.raises(
        OptionError, match="'schedule_polic', which SGLang does not know; did you mean 'schedule_policy'"
    ):
        check_engine_options("sglang", {"python": python, "engine_args": {"schedule_polic": "fcfs"}})


def test_a_server_serves_a_second_engine_that_joins_and_the_first_notices(models, python, monkeypatch):
    path, _, second = models
    with started(path, python) as engine:
        with pytest.raises(RequestError, match=f"expected 0 to {VOCABULARY - 1}"):
            engine.submit([Request("r", (1, VOCABULARY), Sampling())])
        monkeypatch.setenv(KEY_VARIABLE, engine._server.key)
        joined = build_engine("sglang", str(path), {"server": engine._server.calls.url})
        joined.load_weights(second.named_parameters())
        found = generate(joined, requests(4, 60), TIMEOUT_S)
        for request in requests(4, 60):
            response = found[request.id]
            expected = log_probabilities(second, request.prompt, response.tokens, 1.0)
            assert response.logprobs == pytest.approx(expected, abs=1e-4)
        with pytest.raises(EngineDiedError, match="somebody else gave it others"):
            generate(engine, requests(1, 20), TIMEOUT_S)
        joined.close()  # and the first is dead to its replica


@pytest.mark.parametrize("how", ["scheduler killed", "server killed", "all stopped"])
def test_a_server_that_fails_in_generation_is_noticed_within_its_deadline(models, python, how):
    with started(models[0], python, answer_s=6.0) as engine:
        engine.submit(requests(8, 400))
        seen = 0
        while seen < 40:
            seen += sum(len(delta.tokens) for delta in engine.step())
        found = processes_of(engine)
        guard = engine._server._child.pid
        scheduler = [pid for pid, command in found.items() if "scheduler" in command]
        assert scheduler, found
        if how == "scheduler killed":
            os.kill(scheduler[0], signal.SIGKILL)
        elif how == "server killed":
            server = next(pid for pid in found if pid != guard and parent(pid) == guard)
            os.kill(server, signal.SIGKILL)
        else:
            for pid in found:
                if pid != guard:
                    os.kill(pid, signal.SIGSTOP)
        struck = time.monotonic()
        with pytest.raises(EngineDiedError):
            steps(engine, until=struck + 15)
    deadline = time.monotonic() + 20
    while processes_of(engine):
        assert time.monotonic() < deadline, f"the server's processes outlive it: {processes_of(engine)}"
        time.sleep(0.1)


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def test_a_server_killed_in_an_update_is_noticed(models, python):
    with started(models[0], python) as engine:
        engine.load_weights(models[1].named_parameters())

        def slowly():
            for index, pair in enumerate(models[2].named_parameters()):
                if index == 3:
                    for pid, command in processes_of(engine).items():
                        if "scheduler" in command:
                            os.kill(pid, signal.SIGKILL)
                yield pair

        engine._weights._bucket_bytes = 1 << 14
        struck = time.monotonic()
        with pytest.raises((EngineDiedError, WeightsError)):
            engine.load_weights(slowly())
        assert time.monotonic() - struck < 60


@pytest.mark.parametrize("when", ["asleep", "as it takes an adapter"])
def test_a_server_killed_in_other_work_is_noticed(models, python, monkeypatch, when):
    pytest.importorskip("peft")
    with started(models[0], python, sleep_level=2, adapter_rank=4) as engine:

        def kill():
            for pid, command in processes_of(engine).items():
                if "scheduler" in command:
                    os.kill(pid, signal.SIGKILL)

        @contextlib.contextmanager
        def written_and_killed(adapter):
            with written(adapter) as folder:
                kill()
                yield folder

        monkeypatch.setattr("tailrace.rollout.sglang.written", written_and_killed)
        adapter, struck = make_adapter(models[1], seed=3)[0], time.monotonic()
        if when == "asleep":
            engine.sleep(2)
            kill()
        with pytest.raises(EngineDiedError):
            engine.wake() if when == "asleep" else engine.load_adapter(adapter)
        assert time.monotonic() - struck < 60


def test_a_server_ends_with_its_killed_replica(models, python, tmp_path):
    program = (
        "import json, sys, time\nfrom tailrace.rollout import build_engine\n"
        "engine = build_engine('sglang', sys.argv[1], json.loads(sys.argv[2]))\n"
        "print(json.dumps({'guard': engine._server._child.pid}), flush=True)\ntime.sleep(600)"
    )
    options = json.dumps({**OPTIONS, "python": python})
    replica = Child([sys.executable, "-c", program, str(models[0]), options], stdout=subprocess.PIPE)
    try:
        guard = replica.receive(600)["guard"]
        replica.kill()
        deadline = time.monotonic() + 20
        while in_group(guard):
            assert time.monotonic() < deadline, "the server outlives its replica"
            time.sleep(0.1)
    finally:
        replica.kill()
