"""``tailrace watch``: its address, its mistakes, and that its end is none of the run's."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from tailrace.cli.main import main
from tailrace.fleetsim.results.run_directory import log_into
from tailrace.pipeline.config.loading import validate
from tailrace.report.watch.following import FollowedRun
from tailrace.report.watch.frame import Cursor, Frames

CONFIG = {
    "app": "laminar",
    "task": {"name": "long-chain-sum", "held_out_size": 4},
    "pipeline": {"steps": 2, "prompts_per_step": 4, "samples_per_prompt": 2, "prompts_per_replica": 4},
    "rollout": {"max_tokens": 1024, "replicas": 2},
    "fleet": {
        "model": "Qwen2.5-7B",
        "trainer": {"gpus": 4},
        "rollout": {"gpus": 2},
        "workload": {"response": [{"median": 200, "sigma": 0.5}]},
        "steady": False,
        "warm_up": 0,
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return log_into(tmp_path_factory.mktemp("runs") / "run", validate([("test", CONFIG)])).root


def watching(*words, **variables):
    process = subprocess.Popen(
        [sys.executable, "-m", "tailrace.cli.main", "watch", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )
    url = re.search(r"http://\S+", process.stdout.readline()).group(0)
    return process, url


def ended(process, number=signal.SIGINT):
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def test_a_steady_simulation_has_as_many_steps_as_its_configuration(tmp_path):
    steady = {"fleet": {"steady": True}}
    directory = log_into(tmp_path / "run", validate([("test", CONFIG), ("steady", steady)]))
    followed = FollowedRun(directory)
    followed.advance(3600)
    progress = Frames(followed).frame(Cursor())["progress"]
    assert (progress["step"], progress["steps"]) == (2, 2)


def test_it_says_where_serves_and_ends_with_ctrl_c(run):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    process, url = watching(run, "--no-token")
    with urllib.request.urlopen(f"{url}api/frame", timeout=60) as answer:
        frame = json.load(answer)
    assert frame["about"]["run"] == run.name
    assert frame["progress"]["step"] == frame["progress"]["steps"] == 2
    assert ended(process) == (0, "Ctrl-C ends the page and does nothing to the run.\n")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_only_the_address_with_the_token_opens(run):
    process, url = watching(run)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", url)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(url.partition("?")[0] + "api/frame", timeout=60)
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(url, timeout=60) as answer:
        assert b"tailrace watch" in answer.read()
    assert ended(process)[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.deep)])
def test_of_a_demo_nothing_is_left_however_it_ends(tmp_path, number):
    process, url = watching("--demo", "--no-token", TMPDIR=str(tmp_path))
    urllib.request.urlopen(f"{url}watch.js", timeout=60).close()
    assert [path.name.partition("-demo-")[0] for path in tmp_path.iterdir()] == ["tailrace"]
    assert ended(process, number) == (0, "Ctrl-C ends the page and does nothing to the run.\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "found neither RUN nor --demo, expected one of them"),
        (["somewhere", "--demo"], "found RUN and --demo, expected one of them"),
        (["no-such-run"], "no-such-run: no such run directory"),
        (["--demo", "--host", "203.0.113.7"], "cannot listen at 203.0.113.7:0: "),
    ],
)
def test_mistakes_are_one_line(words, said, capsys):
    assert main(["watch", *words]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1
