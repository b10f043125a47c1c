"""Sparse TOML in, strict models inside, one line for what is wrong."""

import dataclasses
import re
from pathlib import Path

import pytest

from tailrace.pipeline.config.loading import merge, parse_setting, read_toml, validate
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.options import read_options
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.build import build_spec, check
from tailrace.pipeline.run.facts import facts_of
from tailrace.pipeline.run.resume_changes import with_changes
from tailrace.pipeline.run.scripted_faults import build_faults


def test_later_layers_win_and_the_rest_stays():
    config = validate([("a", {"pipeline": {"steps": 5, "sync": "barrier"}}), ("b", {"pipeline": {"steps": 7}})])
    assert (config.pipeline.steps, config.pipeline.sync.name) == (7, "barrier")


@pytest.mark.parametrize(
    ("before", "change", "says"),
    [
        ("ppo", "trainer.loss.name=dapo", "found a trainer without one, expected one with a critic as before"),
        ("ppo", "trainer.advantages=group", "found a trainer without one, expected one with a critic as before"),
        ("dapo", "trainer.loss.name=ppo", "found a trainer with a critic, expected one without one as before"),
        ("dapo", "trainer.advantages=gae", "found a trainer with a critic, expected one without one as before"),
        ("ppo", "trainer.loss.clip_high=0.3", None),
        ("dapo", "trainer.loss.name=grpo", None),
    ],
)
def test_a_resumed_run_keeps_its_critic_and_gets_none(before, change, says):
    config = validate([("a", {"trainer": {"loss": before}})])
    if says is None:
        with_changes(config, [change], done=3)
        return
    with pytest.raises(ConfigError, match=f"^keys 'trainer.loss' and 'trainer.advantages': {says}"):
        with_changes(config, [change], done=3)


def test_options_of_a_policy_are_laid_over_the_same_policy_only():
    base = {"relocation": {"name": "best-fit", "period_s": 5.0}}
    assert merge(base, {"relocation": {"name": "best-fit", "headroom": 0.1}})["relocation"]["period_s"] == 5.0
    assert merge(base, {"relocation": {"name": "none"}})["relocation"] == {"name": "none"}
    assert merge(base, {"relocation": {"headroom": 0.1}})["relocation"] == {**base["relocation"], "headroom": 0.1}


def test_a_measured_machine_takes_the_place_of_a_modelled_fleet_and_not_the_other_way_round():
    modelled, measured = {"fleet": {"model": "Qwen2.5-7B", "warm_up": 1}}, {"fleet": {"profile": "two-cores"}}
    assert merge(modelled, measured) == {"fleet": {"profile": "two-cores", "warm_up": 1}}
    assert (
        merge(measured, modelled)["fleet"]["model"] == "Qwen2.5-7B"
    )  # over a quick start, whose profile is not read then


def test_another_host_keeps_what_hosts_have_in_common():
    below = {
        "executor": {"name": "ray", "device": "cpu", "machines": 3, "replica_gpus": 1.0, "machine_checks": ["disk"]}
    }
    over = {"executor": {"name": "local", "machine_check_s": 9.0}}
    assert merge(below, over) == {
        "executor": {"name": "local", "device": "cpu", "machine_checks": ["disk"], "machine_check_s": 9.0}
    }


def test_one_table_is_laid_over_each_of_several_and_each_of_several_over_one():
    one = {"rollout": {"device": "H800", "gpus": 8}}
    several = {"rollout": [{"gpus": 16}, {"device": "H20"}]}
    laid = [{"device": "H800", "gpus": 16}, {"device": "H20", "gpus": 8}]
    assert merge(one, several) == {"rollout": laid}
    assert merge({"rollout": laid}, {"rollout": {"gpus": 4}})["rollout"] == [{**each, "gpus": 4} for each in laid]
    assert merge({"rollout": laid}, several) == several  # a list takes the place of a list


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"pipelin": {}}, r"unknown key 'pipelin'.*did you mean 'pipeline'"),
        ({"pipeline": {"stepz": 3}}, r"unknown key 'pipeline.stepz'.*did you mean 'steps'"),
        ({"tracking": {"to": "wandb"}}, r"key 'tracking.to': found 'wandb', expected: a list"),
        ({"pipeline": {"steps": "many"}}, r"key 'pipeline.steps': found 'many', expected: a valid integer"),
        (
            {"seed": 1 << 64},
            r"key 'seed': found 18446744073709551616, expected: less than or equal to 4611686018427387904",
        ),
        ({"seed": -1}, r"key 'seed': found -1, expected: greater than or equal to 0"),
        ({"pipeline": {"steps": 0}}, r"key 'pipeline.steps': found 0, expected: greater than 0"),
        ({"checkpoint": {"keep_gb": float("inf")}}, r"key 'checkpoint.keep_gb': found inf, expected: a finite number"),
        (
            {"reward": {"code": {"timeout_factor": float("inf")}}},
            r"timeout_factor': found inf, expected: a finite number",
        ),
        (
            {"task": {"mix": {"programs": float("inf")}}},
            r"key 'task.mix.programs': found inf, expected: a finite number",
        ),
        (
            {"rollout": {"cost_model": {"k1": float("inf"), "k2": 0, "k3": 0, "k4": 0}}},
            r"cost_model.k1': found inf, expected: a finite number",
        ),
        ({"environment": {"call_s": float("nan")}}, r"key 'environment.call_s': found nan, expected: a finite number"),
        (
            {"tracking": {"patience_s": 1e10}},
            r"patience_s': found 10000000000.0, expected: less than or equal to 1000000000",
        ),
        ({"deadlines": {"step_s": -1.0}}, r"key 'deadlines.step_s': found -1.0"),
        ({"executor": {"machines": 100_000}}, r"machines': found 100000, expected: less than or equal to 100"),
        ({"model": {"small": {"head_dim": 3}}}, r"head_dim': found 3, expected: a multiple of 2"),
        ({"executor": {"name": "slurm"}}, r"key 'executor.name': found 'slurm', expected: 'ray' or 'local'"),
    ],
)
def test_what_is_wrong_is_one_line_with_file_key_found_and_expected(content, says):
    with pytest.raises(ConfigError, match=says) as error:
        validate([("my.toml", content)])
    assert str(error.value).startswith("my.toml: ")
    assert "\n" not in str(error.value)


def test_a_missing_file_and_broken_toml_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml: no such file"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("steps = = 3")
    with pytest.raises(ConfigError, match=r"broken\.toml: not TOML"):
        read_toml(tmp_path / "broken.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a.b=3", 3), ("a.b=1e-6", 1e-6), ("a.b=true", True), ("a.b=barrier", "barrier"), ('a.b=["x"]', ["x"])],
)
def test_settings_are_toml_values_or_bare_words(text, expected):
    assert parse_setting(text) == {"a": {"b": expected}}


@pytest.mark.parametrize("text", ["steps", "=3", "a..b=1"])
def test_a_setting_without_key_or_value_is_refused(text):
    with pytest.raises(ConfigError, match="expected key=value"):
        parse_setting(text)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pipeline": {"sync": "on-idel"}}, "on-idel.*did you mean 'on-idle'"),
        ({"pipeline": {"relocation": {"name": "best-fit", "period": 3}}}, "best-fit.*period"),
        ({"pipeline": {"relocation": {"name": "best-fit", "kv_threshold": 7.0}}}, r"kv_threshold=7\.0"),
    ],
)
def test_a_wrong_policy_is_named_with_its_key(changes, says):
    with pytest.raises(ConfigError, match=says) as error:
        build_spec(validate([("my.toml", changes)]))
    assert "key 'pipeline." in str(error.value)


def test_a_wrong_fault_is_named():
    with pytest.raises(ConfigError, match="key 'faults'"):
        build_faults(RunConfig(faults=("replica at noon",)))


def test_the_resolved_configuration_reads_back():
    config = validate(
        [("a", {"pipeline": {"relocation": {"name": "best-fit", "period_s": 2.0}}, "faults": ["replica@5s"]})]
    )
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


@dataclasses.dataclass(frozen=True)
class Scale:
    by: float
    steps: tuple[int, ...] = ()

    def __post_init__(self):
        if self.by < 0:
            raise ValueError(f"found by={self.by}, expected at least 0")


def scale(by):
    return ("scaled", by)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"by": "2"}, "option 'by': found '2', expected: a valid number"),
        ({"by": True}, "option 'by': found True, expected: a valid number"),
        ({"by": 1, "steps": [1, 2.5]}, "option 'steps.1': found 2.5, expected: a valid integer"),
        ({"by": 1, "step": [1]}, "found the unknown option 'step', expected one of by, steps; did you mean 'steps'?"),
        ({"by": -1}, "found by=-1.0, expected at least 0"),
        ({}, "found no option 'by', expected one"),
    ],
)
def test_options_of_a_plugin_that_is_a_dataclass(options, expected):
    with pytest.raises(ConfigError) as error:
        read_options(Scale, options, "key 'x'")
    assert str(error.value) == f"key 'x': {expected}"


def test_options_are_read_into_what_a_plugin_is():
    assert read_options(Scale, {"by": 2, "steps": [1, 2]}, "key 'x'") == Scale(2.0, (1, 2))
    assert read_options(scale, {"by": 2}, "key 'x'") == ("scaled", 2)
    with pytest.raises(ConfigError, match=r"key 'x'.*'times'"):
        read_options(scale, {"times": 2}, "key 'x'")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (
            "warm_start.options.bucket=x",
            "key 'warm_start.options': option 'bucket': found 'x', expected: a valid integer",
        ),
        (
            "model.tokenizer.vocab=3",
            "key 'model.tokenizer': found the unknown option 'vocab', expected one of vocab_size",
        ),
        (
            "model.tokenizer.vocab_size=5",
            "key 'model.tokenizer': found vocab_size = 5, expected at least 7: the special",
        ),
        ("trainer.options.lrr=1", "key 'trainer.options': found the unknown option 'lrr', expected one of lr, betas"),
    ],
)
def test_options_are_checked_before_anything_starts(setting, expected):
    with pytest.raises(ConfigError, match=re.escape(expected)):
        check(validate([("--set", {"app": "laminar", **parse_setting(setting)})]))


def test_what_provisioning_shares_out_is_known_to_whoever_reads_a_configuration():
    shares = (
        "{name='balanced', all_devices=8, training_times=[[1, 40.0], [2, 21.0], [4, 12.0]], lengths=[5, 50, 500], "
        "replica_costs=[[1, 0, 1e-5, 4e-3, 1e-3, 2e-3]]}"
    )
    config = configuration("laminar", settings=(f"pipeline.provisioning={shares}",))
    assert config.trainer.processes == build_spec(config).provisioning.trains_on() > 1


def test_paths_in_a_file_are_relative_to_the_file(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "run.toml").write_text(
        'app = "laminar"\nbase = "base.toml"\n[task]\ntrain = "train.jsonl"\nverifier = "mine.py:verify"\n'
        '[fleet]\nmodel = "Qwen2.5-7B"\n'
        'trainer.device = "H800"\nrollout.device = "own.toml"\nworkload.trace = "/data/trace.jsonl"\n'
        '[ranker]\ninit = "models/q"\npath = "ranker"\n[reward]\njudge.model = "models/judge"\njudge.template = "judge.txt"\n'
        '[environment]\noptions.folder = "."\n'
    )
    (tmp_path / "mine" / "base.toml").write_text('app = "laminar"\n[model]\npath = "../models/small"\n')
    monkeypatch.chdir(tmp_path)
    config = configuration("mine/run.toml", settings=("task.held_out=held.jsonl",))
    assert config.task.train == tmp_path / "mine" / "train.jsonl"
    assert config.task.verifier == f"{tmp_path / 'mine' / 'mine.py'}:verify"
    assert config.task.held_out == Path("held.jsonl")  # what a person types is relative to where they are
    assert config.model.path == tmp_path / "mine" / "../models/small"
    assert config.ranker.init == tmp_path / "mine" / "models/q"
    assert config.ranker.path == tmp_path / "mine" / "ranker"
    assert config.reward.judge.model == tmp_path / "mine" / "models/judge"
    assert config.reward.judge.template == str(tmp_path / "mine" / "judge.txt")
    assert config.environment.options["folder"] == str(tmp_path / "mine")
    assert config.fleet["model"] == "Qwen2.5-7B"
    assert config.fleet["trainer"]["device"] == "H800"
    assert config.fleet["rollout"]["device"] == str(tmp_path / "mine" / "own.toml")
    assert config.fleet["workload"]["trace"] == "/data/trace.jsonl"


def test_a_path_may_begin_at_a_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "ann"))
    (tmp_path / "run.toml").write_text(
        'app = "laminar"\nbase = "quickstart"\n[model]\npath = "~/models/small"\n'
        '[task]\nverifier = "~/mine.py:verify"\nheld_out = "~nobody-of-this-name/x.jsonl"\n'
        '[[task.sources]]\npath = "~/a.jsonl"\n[[task.sources]]\npath = "hf:~/saved:train[:10]"\n'
    )
    config = configuration(str(tmp_path / "run.toml"), settings=("environment.python=~/venv/bin/python",))
    home = tmp_path / "ann"
    assert config.model.path == home / "models/small"
    assert config.task.verifier == f"{home}/mine.py:verify"
    assert [str(source.path) for source in config.task.sources] == [f"{home}/a.jsonl", f"hf:{home}/saved:train[:10]"]
    assert config.task.held_out == tmp_path / "~nobody-of-this-name/x.jsonl"
    assert config.environment.python == home / "venv/bin/python"
    typed = configuration("laminar", settings=("task.train=~/t.jsonl", "model.path=~", "task.verifier=~/v.py:f"))
    assert (typed.task.train, typed.model.path, typed.task.verifier) == (home / "t.jsonl", home, f"{home}/v.py:f")


def test_without_any_app_installed_the_pip_line_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr("tailrace.contracts.plugins.names", lambda group: [])
    (tmp_path / "mine.toml").write_text('app = "laminar"')
    for target in ("laminar", str(tmp_path / "mine.toml")):
        with pytest.raises(
            ConfigError, match=r"no app installed, expected 'laminar': pip install 'tailrace-fleetsim\[apps\]'"
        ):
            configuration(target)


@pytest.mark.parametrize(("heads", "kv_heads", "divided"), [(28, 4, 28), (40, 10, 10), (8, 8, 8)])
def test_replicas_are_resized_to_what_splits_key_value_heads_too(heads, kv_heads, divided):
    config = configuration("laminar", settings=[f"model.small={{heads={heads}, kv_heads={kv_heads}}}"])
    assert facts_of(config).heads == divided
