"""Every mistake of a user is one line on stderr, exit status 2, no traceback, and nothing is written or overwritten."""

import json
import socket
import time
from pathlib import Path

import pytest

from tailrace.cli.main import main
from tailrace.contracts import Tick, Up
from tailrace.pipeline import __version__
from tailrace.pipeline.config.models import RunConfig, TaskConfig  # type: ignore[attr-defined]
from tailrace.pipeline.run.directory import RunDirectory, write_json
from tailrace.pipeline.run.eventlog import EventLog
from tailrace.pipeline.run.replay import controller_of


@pytest.fixture
def fails(capsys, tmp_path, monkeypatch):
    """Runs a command that must fail with one line; returns the line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TAILRACE_DEBUG", raising=False)

    def run(*arguments, status=2):
        before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
        assert main(list(arguments)) == status
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("tailrace: ")
        assert err.count("\n") == 1, err
        assert "Traceback" not in err
        after = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
        assert before == {path: content for path, content in after.items() if path in before}
        written = [path for path in after if path not in before and path.name != "lock"]
        assert not written, f"left behind: {written}"
        return err

    return run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], ["TARGET", "--resume"]),
        (["run", "laminar", "--resume", "x"], ["either a TARGET"]),
        (["run", "--resume", "x", "--seed", "3"], ["x: no such run directory"]),
        (["attach", "x"], ["x: no such run directory"]),
        (["run", "--resume", "x", "--dry-run"], ["found --dry-run", "--set or --plain at most"]),
        (["runn"], ["No such command 'runn'", "--help"]),
        (["run", "laminar", "--sede", "3"], ["No such option: --sede"]),
        (["run", "laminar", "--seed", "three"], ["--seed"]),
        (["run", "laminra"], ["'laminra'", "did you mean 'laminar'?"]),
        (["run", "nowhere.toml"], ["nowhere.toml", "no such file"]),
        (["explain", "nowhere", "0.0"], ["nowhere", "no such run directory"]),
        (["fit-cost", "nowhere"], ["nowhere", "no such run directory"]),
        (["run", "staleflow", "--set", "pipeline.admission.bound=-1"], ["'pipeline.admission'", "-1", "at least 0"]),
        (["run", "staleflow", "--set", "pipeline.routing.mu=much"], ["'pipeline.routing'", "'much'"]),
        (["run", "staleflow", "--set", "rollout.cost_model.k1=-1"], ["rollout.cost_model.k1", "-1"]),
        (["run", "laminar", "--set", "pipeline.buffer_prompts=31"], ["found 31 and 32", "at least one batch"]),
        (["run", "laminar", "--set", "pipeline.steps"], ["key=value"]),
        (["run", "laminar", "--set", "=3"], ["key=value"]),
        (["run", "laminar", "--set", "pipeline.stpes=3"], ["'pipeline.stpes'", "did you mean 'steps'?"]),
        (["run", "laminar", "--set", "pipelin.steps=3"], ["'pipelin'", "did you mean 'pipeline'?"]),
        (["run", "laminar", "--set", "pipeline.steps=many"], ["--set pipeline.steps=many", "'many'", "integer"]),
        (["run", "laminar", "--set", "pipeline.steps=2.5"], ["2.5", "integer"]),
        (["run", "laminar", "--set", "pipeline.steps=-4"], ["-4", "greater than 0"]),
        (["run", "laminar", "--set", "deadlines.step_s=10min"], ["'10min'", "number"]),
        (["run", "laminar", "--set", "rollout.temperature=0"], ["greater than 0"]),
        (["run", "laminar", "--set", "app=other"], ["TARGET to name the app"]),
        (["run", "laminar", "--set", "pipeline.sync=on-idel"], ["'on-idel'", "did you mean 'on-idle'?"]),
        (["run", "laminar", "--set", "pipeline.relocation.kv_treshold=0.9"], ["pipeline.relocation", "kv_treshold"]),
        (["run", "laminar", "--set", "rollout.engine=vlm"], ["'vlm'", "did you mean 'vllm'?"]),
        (["run", "laminar", "--set", "trainer.backend=fsdp"], ["'fsdp'", "did you mean 'fsdp2'?"]),
        (["run", "laminar", "--set", "trainer.options.zero_stage=3"], ["with backend fsdp2", "backend deepspeed"]),
        (
            ["run", "laminar", "--set", "trainer.backend=deepspeed", "--set", "trainer.options.dtype=float64"],
            ["found dtype = 'float64' with backend deepspeed", "expected 'float32' or 'bfloat16'"],
        ),
        (["run", "laminar", "--executor", "slurm"], ["'slurm'", "'ray' or 'local'"]),
        (["run", "laminar", "--kill", "replica@60"], ["--kill replica@60", "@SECONDSs"]),
        (["run", "laminar", "--kill", "replcia@60s"], ["'replcia'", "replica"]),
        (["run", "laminar", "--raise", "trainer@step3:decode"], ["--raise", "phase 'decode' of a trainer", "backward"]),
        (["run", "laminar", "--kill", "machine@60s"], ["machine@60s", "found no machine of this run's own"]),
        (["run", "laminar", "--kill", "environment@60s"], ["found no environment in this run"]),
        (["run", "laminar", "--mtbf", "0"], ["--mtbf"]),
        (["run", "laminar", "--set", 'faults=["replica"]'], ["faults", "'replica'"]),
        (["run", "laminar", "--set", "model.path=gone"], ["model.path", "gone"]),
        (["run", "--resume", "nowhere"], ["nowhere", "no such run directory"]),
        (["status", "nowhere"], ["nowhere", "no such run directory"]),
        (["report", "nowhere"], ["nowhere", "no such run directory"]),
    ],
)
def test_a_wrong_command_line(fails, arguments, words):
    line = fails(*arguments)
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["found no key 'app'", "laminar"]),
        ("app = 3", ["app = 3"]),
        ('app = "lamina"', ["key 'app'", "did you mean 'laminar'?"]),
        ('app = "laminar"\n[pipeline]\nstep = 3', ["mine.toml", "'pipeline.step'", "did you mean 'steps'?"]),
        ('app = "laminar"\n[pipeline\n', ["mine.toml", "not TOML"]),
        (
            'app = "laminar"\nbase = "quickstart"\n[pipeline]\nsync = "on-idel"',
            ["mine.toml", "did you mean 'on-idle'?"],
        ),
        ('app = "laminar"\n[executor]\nreplica_gpus = "two"', ["mine.toml", "'two'", "number"]),
    ],
)
def test_a_wrong_file(fails, tmp_path, content, words):
    (tmp_path / "mine.toml").write_text(content)
    line = fails("run", "mine.toml")
    for word in words:
        assert word in line


def test_a_missing_or_unknown_task_leaves_no_run_behind(fails):
    assert "chian" in fails("run", "laminar", "--set", "task.name=chian", "--run-dir", "mine", "--plain")
    assert not Path("mine").exists()


def test_nobody_at_the_ray_address(fails):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert "no Ray cluster answers" in fails("run", "laminar", "--ray-address", address)
    assert "HOST:PORT" in fails("run", "laminar", "--ray-address", "cluster")


def test_a_ray_address_that_swallows_packets_is_given_up_soon(fails, monkeypatch):
    monkeypatch.setattr("tailrace.cli.runs.preflight.CONNECT_S", 0.2)
    with socket.socket() as deaf:  # its queue is full: nobody ever accepts
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(deaf.getsockname())
        time.sleep(0.1)
        assert "no Ray cluster answers" in fails(
            "run", "laminar", "--ray-address", f"127.0.0.1:{deaf.getsockname()[1]}"
        )
        for one in waiting:
            one.close()


def test_relays_that_could_listen_nowhere_here(fails):
    line = fails("run", "laminar", "--set", "relay.host=198.51.100.7")
    assert "key 'relay.host': found '198.51.100.7', where nothing can listen here" in line


def test_cuda_where_there_is_none(fails, monkeypatch):
    monkeypatch.setattr("tailrace.cli.runs.preflight._gpus_here", lambda: 0)
    assert "no CUDA device here" in fails("run", "laminar", "--set", "executor.device=cuda")
    assert "no CUDA device here" in fails("run", "laminar", "--set", "trainer.options.device=cuda")
    three = ("--set", "rollout.replicas=3", "--set", "executor.replica_gpus=1")
    assert "3 GPUs asked for and 0 here" in fails("run", "laminar", *three)


def model_directory(path):
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "tokenizer.json").write_text('{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}')
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    whole = len(header).to_bytes(8, "little") + header + bytes(8)
    (path / "model.safetensors").write_bytes(whole)
    return whole


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda path, _: (path / "config.json").write_text("{"), ["config.json", "damaged"]),
        pytest.param(lambda path, _: (path / "tokenizer.json").unlink(), ["tokenizer.json"], marks=pytest.mark.deep),
        pytest.param(
            lambda path, _: (path / "model.safetensors").unlink(), ["found no weights"], marks=pytest.mark.deep
        ),
        (lambda path, whole: (path / "model.safetensors").write_bytes(whole[:-3]), ["damaged", "expected"]),
        pytest.param(
            lambda path, whole: (path / "model.safetensors").write_bytes(whole[:20]),
            ["cut short"],
            marks=pytest.mark.deep,
        ),
        pytest.param(
            lambda path, _: (path / "model.safetensors").write_bytes(b"<html>not found</html>"),
            ["model.safetensors"],
            marks=pytest.mark.deep,
        ),
        (
            lambda path, _: (path / "model.safetensors.index.json").write_text(
                '{"weight_map": {"w": "part-2.safetensors"}}'
            ),
            ["part-2.safetensors", "missing"],
        ),
    ],
)
@pytest.mark.cases(2)
def test_a_model_that_does_not_load(fails, tmp_path, break_it, words):
    whole = model_directory(tmp_path / "model")
    (tmp_path / "p.jsonl").write_text('{"prompt": "1 + 1 =", "answer": "2"}\n')
    (tmp_path / "mine.toml").write_text('app = "laminar"\n[task]\ntrain = "p.jsonl"\n[model]\npath = "model"\n')
    break_it(tmp_path / "model", whole)
    line = fails("run", "mine.toml")
    for word in ("model.path", *words):
        assert word in line


@pytest.fixture
def a_run(tmp_path):
    config = RunConfig(task=TaskConfig(name="long-chain-sum"))
    directory = RunDirectory.create(tmp_path / "run", config.model_dump(mode="json"))
    directory.unlock()
    return directory


@pytest.mark.parametrize("command", [["run", "--resume"], ["report"], ["status"]])
@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"format": 1}', '{"format": 99, "run": {}}', b"\xff\xfe", '{"format": 1, "run": {"seed": "no"}}'],
)
def test_a_damaged_configuration(fails, a_run, command, content):
    a_run.config.write_bytes(content if isinstance(content, bytes) else content.encode())
    line = fails(*command, "run")
    assert "config.json" in line or "status.json" in line


def test_a_log_that_is_damaged_in_the_middle(fails, a_run):
    controller = controller_of(a_run)
    with EventLog(a_run.events) as log:
        for now in range(20):
            log.append(float(now), [Tick()], controller.handle_all([Tick()], float(now)))
    lines = a_run.events.read_text().splitlines(keepends=True)
    a_run.events.write_text("".join([*lines[:5], "rubbish\n", *lines[5:]]))
    assert "events.jsonl, line 6" in fails("report", "run")


def test_a_log_of_another_version(fails, a_run):
    with EventLog(a_run.events) as log:
        log.append(1.0, [Up("trainer", "0", version=7)], [])
    for command in (["report", "run"], ["explain", "run", "0.0"]):
        line = fails(*command)
        assert "events.jsonl, line 2" in line
        assert f"version {__version__} wrote it" in line or f"wrote it (version {__version__})" in line


def test_two_runs_in_one_directory(fails, a_run):
    assert "found a run" in fails("run", "laminar", "--run-dir", "run")
    a_run.lock()
    assert "under way" in fails("run", "--resume", "run")
    a_run.unlock()


def test_a_directory_that_holds_something_else(fails, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    assert "found files" in fails("run", "laminar", "--run-dir", "mine")
    assert "found the file" in fails("run", "laminar", "--run-dir", "mine/thesis.tex/run")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "precious"


def test_there_is_nothing_to_attach_to(fails, a_run):
    assert "found no member of it that lives" in fails("attach", "run", "--plain")
    a_run.summary.write_text("{}")
    assert "found a finished run (summary.json)" in fails("attach", "run", "--plain")


def test_a_finished_run_is_not_resumed(fails, a_run):
    write_json(a_run.summary, {"steps": RunConfig().pipeline.steps})
    assert "found a finished run" in fails("run", "--resume", "run", "--plain")


def test_a_status_that_was_never_written(fails, a_run):
    assert "has not written its status yet" in fails("status", "run")


def test_debug_shows_where_an_error_came_from(capsys, monkeypatch):
    monkeypatch.setenv("TAILRACE_DEBUG", "1")
    assert main(["run", "laminra"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("debug", [False, True])
def test_no_command_ends_with_a_traceback_whatever_broke(debug, capsys, monkeypatch):
    if debug:
        monkeypatch.setenv("TAILRACE_DEBUG", "1")

    def breaks(*_, **__):
        return {}["12024.0"]  # type: ignore[index]

    monkeypatch.setattr("tailrace.cli.simulations.reproduce.show_reproduction", breaks)
    assert main(["reproduce", "laminar"]) == 1
    err = capsys.readouterr().err
    assert "tailrace: a fault of Tailrace itself: KeyError: '12024.0' (" in err
    assert "test_errors.py:" in err
    assert ("Traceback" in err) is debug
    assert debug or err.count("\n") == 1


def test_without_arguments_it_helps(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    _, commands = (out + err).split("Commands:\n")
    names = [line.split()[0] for line in commands.splitlines() if line.startswith("  ") and line[2] != " "]
    assert names[0] == "run"  # what a newcomer looks for; those about single components stand last
    assert names.index("status") < names.index("simulate") < names.index("serve")


def test_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tailrace 0.")


def based(path, base):
    path.write_text(f'app = "staleflow"\nbase = "{base}"\n')


def test_files_that_are_based_on_each_other_in_a_circle(fails, tmp_path):
    based(tmp_path / "a.toml", "b.toml")
    based(tmp_path / "b.toml", "a.toml")
    assert "key 'base': found a circle of files" in fails("run", "a.toml")


@pytest.mark.parametrize(("base", "words"), [("quick", "expected 'quickstart'"), ("gone.toml", "no such file")])
def test_a_base_that_is_none(fails, tmp_path, base, words):
    based(tmp_path / "a.toml", base)
    assert words in fails("run", "a.toml")


def test_all_faults_are_told_at_once(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = ("pipeline.admission=bounde", "rollout.engine=vlm", "trainer.options.lr=fast", "model.path=nowhere")
    assert main(["run", "laminar", *(part for text in settings for part in ("--set", text))]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4, lines
    for line, word in zip(lines, ("'bounded'", "'vllm'", "option 'lr': found 'fast'", "nowhere"), strict=True):
        assert line.startswith("tailrace: laminar: key"), line
        assert word in line
    assert not list(tmp_path.iterdir())


def test_faults_that_cannot_happen_are_told_at_once(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "laminar", "--kill", "replica:7@3s", "--hang", "trainer@step99", "--stall", "replica@1s"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "replica:7@3s: found replica '7', expected one of r0, r1" in first
    assert "hang:trainer@step99: found step 99, expected one below pipeline.steps" in second
    assert not list(tmp_path.iterdir())


VERIFIERS = """
import time

def hangs(response, answer, metadata):
    print("waiting for a server", flush=True)
    time.sleep(60)

def prints(response, answer, metadata):
    print("NOISE", flush=True)
    return 1.0

def misspells(response, answer, metadata):
    return {"reward": 1.0, "corect": True}
"""


@pytest.mark.deep
def test_a_verifier_that_hangs_is_named_and_one_that_prints_is_not_heard(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine"]) == 0
    (tmp_path / "own.py").write_text(VERIFIERS)
    command = ["run", "mine/tailrace.toml", "--dry-run", "--set", "deadlines.verify_s=1"]
    capfd.readouterr()
    assert main([*command, "--set", "task.verifier=own.py:hangs"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "key 'task.verifier'" in line
    assert "the verifier 'own.py:hangs' gave no result within 1 s" in line
    assert "the last that it printed: waiting for a server" in line
    assert main([*command, "--set", "task.verifier=own.py:prints"]) == 0
    assert "NOISE" not in "".join(capfd.readouterr())


def test_a_verdict_that_is_none_is_quoted(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine"]) == 0
    (tmp_path / "own.py").write_text(VERIFIERS)
    capfd.readouterr()
    assert main(["run", "mine/tailrace.toml", "--run-dir", "new", "--set", "task.verifier=own.py:misspells"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "key 'task.verifier': tried on the first row of" in line
    assert "found an object with the keys 'reward', 'corect', expected 'reward' and, if it likes, 'correct'" in line
    assert not (tmp_path / "new").exists()


def test_prompts_that_are_too_long(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model_directory(tmp_path / "model")
    words = {"pre_tokenizer": {"type": "Whitespace"}, **json.loads((tmp_path / "model" / "tokenizer.json").read_text())}
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(words))
    (tmp_path / "model" / "config.json").write_text('{"max_position_embeddings": 60, "eos_token_id": 0}')
    rows = [{"prompt": text, "answer": "2"} for text in ("1 + 1 =", "1 + 1 = " * 200)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.toml").write_text(
        'app = "laminar"\n[task]\ntrain = "p.jsonl"\n[model]\npath = "model"\n[rollout]\nmax_tokens = 20\n'
    )
    command = ["run", "mine.toml", "--dry-run"]
    assert main(command) == 2
    assert "p.jsonl, line 2: found a prompt of " in capsys.readouterr().err
    for overlong, words in (("drop", "1 of 2 dropped"), ("truncate-left", "1 of 2 cut off at their beginning")):
        assert main([*command, "--set", f"task.overlong={overlong}"]) == 0
        assert words in " ".join(capsys.readouterr().out.split())  # type: ignore[operator]
    assert main([*command, "--set", "task.overlong=cut"]) == 2
    assert "expected: 'refuse', 'drop' or 'truncate-left'" in capsys.readouterr().err


def test_all_wrong_keys_and_kinds_are_told_at_once(capsys):
    assert main(["run", "laminar", "--set", "pipeline.steps=x", "--set", "rollouts.replicas=1"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "--set pipeline.steps=x: key 'pipeline.steps': found 'x'" in first
    assert "did you mean 'rollout'?" in second


def test_a_dry_run_checks_everything_and_leaves_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    steps, there = ["--set", "pipeline.steps=7", "--kill", "replica@step3"], ["--run-dir", "[dim]/[/INST]"]
    assert main(["run", "laminar", "--dry-run", *steps, *there]) == 0
    out = capsys.readouterr().out
    for words in (
        "7 of 32 prompts x 8 responses",
        "sync on-idle",
        "replica@step3",
        "[dim]/[/INST]",
        "Nothing was started",
    ):
        assert words in " ".join(out.split())
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    assert main(["run", "laminar", "--dry-run", "--run-dir", "used", "--set", "rollout.engine=vlm"]) == 2
    engine, directory = capsys.readouterr().err.splitlines()
    assert "'vlm'" in engine
    assert "used: found files, expected a new directory" in directory
    assert [path.name for path in tmp_path.iterdir()] == ["used"]
