"""``tailrace profile`` at the terminal: what it says, what it writes, and what it refuses before it starts anything."""

import tomllib
from typing import Any

import pytest

from tailrace.cli.main import main
from tailrace.fleetsim.profile.fit import Profile
from tailrace.fleetsim.profile.fit_delays import Shared
from tailrace.fleetsim.profile.machine import load_machine
from tailrace.fleetsim.profile.parallelism import SizesMeasured
from tailrace.pipeline.config.parallelism import MeasuredSize, ParallelismProfile, read_parallelism
from tailrace.runtime.errors import RunFailedError


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Replaces the run by its outcome; returns what it was asked for."""
    monkeypatch.chdir(tmp_path)
    calls = []

    def replace(outcome=None, others_cores=0.0):
        def profile_machine(config, root, name, *, steps, progress):
            calls.append((config, name, steps))
            progress("starting roles", None)
            for step in range(1, 31):
                progress(f"step {step} of 30", step / 30)
            if isinstance(outcome, BaseException):
                raise outcome
            machine = load_machine("two-cores").model_copy(update={"name": name})
            return Profile(machine, [Shared(3, 0.55, 0.53, 20.0)], others_cores)

        monkeypatch.setattr("tailrace.fleetsim.profile.fit.profile_machine", profile_machine)
        return calls

    return replace


def test_it_writes_the_machine_and_says_how_well_it_fits(measured, capsys, tmp_path):
    calls = measured()
    assert main(["profile", "staleflow", "--out", "mine.toml", "--steps", "12", "--set", "rollout.replicas=1"]) == 0
    config, name, steps = calls[0]
    assert (config.app, config.rollout.replicas, name, steps) == ("staleflow", 1, "mine", 12)
    assert load_machine(tmp_path / "mine.toml").name == "mine"
    out, err = capsys.readouterr()
    for said in (
        "median error of the fit",
        "run the trainer at half of its full speed",
        "3 computing   each got 0.55 of its cores, the simulator gives 0.53",
    ):
        assert said in out
    begins = tomllib.loads(out.partition('with provisioning "balanced":')[2].partition("\n\nwrote")[0])
    decode = load_machine("two-cores").decode
    row = [1, decode.kv_capacity_tokens, decode.k1, decode.k2, decode.k3, decode.k4]
    assert begins["replica_costs"] == [pytest.approx(row, rel=1e-3)]
    assert begins["training_times"] == [[1, begins["train_s"]]]
    assert len(begins["lengths"]) == 50
    assert "tailrace simulate staleflow --set fleet.profile=mine.toml" in out
    assert "measure again" not in out
    assert out.count("step ") < 12  # not a line for each
    assert err == ""


def test_laminar_is_what_is_measured_by_default(measured, tmp_path):
    calls = measured()
    assert main(["profile"]) == 0
    assert calls[0][0].app == "laminar"
    assert (tmp_path / "laminar-machine.toml").exists()


def test_a_busy_machine_is_not_believed(measured, capsys):
    measured(others_cores=0.8)
    assert main(["profile", "--out", "mine.toml"]) == 0
    assert "other programs used 0.80 cores meanwhile: measure again" in " ".join(capsys.readouterr().out.split())


def test_nothing_is_overwritten(measured, capsys, tmp_path):
    calls = measured()
    (tmp_path / "mine.toml").write_text("mine")
    assert main(["profile", "--out", "mine.toml"]) == 2
    assert capsys.readouterr().err == (
        "tailrace: --out mine.toml: found a file that exists, expected a new file that ends in .toml\n"
    )
    assert main(["profile", "--out", "mine.json"]) == 2
    assert main(["profile", "--set", "rollout.engine=none"]) == 2
    assert main(["profile", "--out", "nowhere/mine.toml"]) == 2
    assert calls == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps", "4"], "--steps 4: expected at least 5"),
        (["--set", "pipeline.steps=3"], "key 'pipeline.steps': found 3, expected at least 5"),
    ],
)
def test_too_few_steps_name_what_to_raise(measured, capsys, arguments, words):
    calls = measured()
    assert main(["profile", *arguments]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
    assert calls == []


@pytest.mark.parametrize(("outcome", "status"), [(RunFailedError("the trainer died"), 1), (KeyboardInterrupt(), 130)])
def test_a_run_that_breaks_off_leaves_no_file(outcome, status, measured, capsys, tmp_path):
    measured(outcome)
    assert main(["profile", "--out", "mine.toml"]) == status
    assert not (tmp_path / "mine.toml").exists()
    assert capsys.readouterr().err.count("\n") == 1


@pytest.fixture
def sizes(monkeypatch, tmp_path):
    """Replaces the measurement of sizes by its outcome; returns what it was asked for."""
    monkeypatch.chdir(tmp_path)
    calls = []
    one: dict[str, Any] = {
        "kv_tokens": 4_000,
        "k1": 1e-6,
        "k2": 0.01,
        "k3": 1e-4,
        "k4": 0.0,
        "timings": ((8, 200, 0.5, 0.02),),
    }
    found = ParallelismProfile(
        engine="vllm", short=2, long=1, smallest=1, resize_s=9.25, longest=300, lengths=(4, 50, 190),
        sizes=tuple(MeasuredSize(tp=tp, start_s=7.0 + tp, end_s=0.75, **one) for tp in (1, 2)),
    )  # fmt: skip

    def profile_parallelism(config, root, *, progress):
        calls.append(config)
        progress("replica of 1 device", 0.0)
        return SizesMeasured(found, ["4 devices: found 2 cores, expected one for each"], 1.3)

    monkeypatch.setattr("tailrace.fleetsim.profile.parallelism.profile_parallelism", profile_parallelism)
    return calls


def test_sizes_are_measured_and_written_for_the_run(sizes, capsys, tmp_path):
    assert main(["profile", "rollpacker", "--parallelism", "--set", "rollout.max_tokens=96"]) == 0
    assert sizes[0].rollout.max_tokens == 96
    written = read_parallelism(tmp_path / "rollpacker-parallelism.toml")
    assert (written.short, written.long, written.resize_s) == (2, 1, 9.25)
    out = capsys.readouterr().out
    for said in (
        "short ones begin with 2, long ones with 1",
        "charged at 9.2 s",
        "other programs used 1.30 cores meanwhile: measure again",
        "left out      4 devices: found 2 cores",
        "tailrace run rollpacker --set rollout.parallelism=rollpacker-parallelism.toml",
    ):
        assert said in out
    assert main(["profile", "rollpacker", "--parallelism"]) == 2, "nothing is overwritten"
    assert main(["profile", "rollpacker", "--parallelism", "--steps", "20", "--out", "other.toml"]) == 2
    assert len(sizes) == 1
