"""``tailrace config``: every key with its meaning, as a file that can be read again."""

import json
from dataclasses import replace

import pytest

from tailrace.cli.main import main
from tailrace.pipeline.config.described import described
from tailrace.pipeline.config.target import configuration, target_layers
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.build import build_spec, check, trainer_config
from tailrace.rollout import EngineOptions
from tailrace.trainer.losses import open_loss

APPS = ("laminar", "robustrl", "rollpacker", "staleflow", "streamrl")


def keys(app):
    return described(target_layers(app))


@pytest.mark.parametrize("app", APPS)
def test_what_it_prints_is_the_same_configuration(app, capsys, tmp_path):
    settings = "pipeline.steps=7", "reward.judge.template=two\nlines, \x7f and \U0001f600 {response}"
    assert main(["config", app, *(word for setting in settings for word in ("--set", setting))]) == 0
    printed = tmp_path / "printed.toml"
    printed.write_text(capsys.readouterr().out)
    read, meant = configuration(str(printed)), configuration(app, settings=settings)
    assert build_spec(read) == build_spec(meant)
    trainers = [trainer_config(config) for config in (read, meant)]
    losses = [open_loss(trainer.loss, trainer.loss_options) for trainer in trainers]  # the defaults are printed
    assert losses[0] == losses[1]
    assert replace(trainers[0], loss_options={}) == replace(trainers[1], loss_options={})
    assert EngineOptions.read(read.rollout.options) == EngineOptions.read(meant.rollout.options)
    for table in (
        "app",
        "seed",
        "task",
        "evaluation",
        "checkpoint",
        "relay",
        "reward",
        "executor",
        "deadlines",
        "faults",
        "fleet",
    ):
        assert getattr(read, table) == getattr(meant, table)


@pytest.mark.parametrize("app", APPS)
def test_what_it_prints_runs_with_a_seed_and_a_device_of_its_own(app, capsys, tmp_path):
    assert main(["config", app]) == 0
    printed = tmp_path / "printed.toml"
    printed.write_text(capsys.readouterr().out)
    read = configuration(str(printed), settings=("executor.device=cpu",), seed=7)
    trainer = trainer_config(read)
    assert (trainer.seed, trainer.device, trainer.cells) == (7, "cpu", read.trainer.cells)
    assert not {"seed", "device"} & read.rollout.options.keys()  # which would be the engine's, whatever the run's are


def test_it_says_where_a_value_comes_from(capsys, tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'app = "laminar"\nbase = "quickstart"\n[pipeline]\nsteps = 3\nadmission = {name = "bounded", bound = 2}\n'
    )
    assert main(["config", str(mine), "--set", "seed=5", "--json"]) == 0
    found = {key["name"]: key for key in json.loads(capsys.readouterr().out)}
    assert found["pipeline.steps"]["source"] == str(mine)
    assert found["pipeline.admission.bound"] == {
        "name": "pipeline.admission.bound",
        "kind": "whole number",
        "default": 1,
        "value": 2,
        "source": str(mine),
        "meaning": found["pipeline.admission.bound"]["meaning"],
    }
    assert found["seed"]["source"] == "--set seed=5"
    assert found["rollout.replicas"]["source"] == "laminar's quick start"
    assert (found["checkpoint.keep"]["source"], found["checkpoint.keep"]["value"]) == ("default", 2)


@pytest.mark.parametrize("app", APPS)
def test_every_key_has_a_meaning_and_fits_a_terminal(app, capsys):
    assert [key.name for key in keys(app) if not key.meaning] == []
    assert main(["config", app]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("#") and len(line) > 80] == []


@pytest.mark.parametrize("app", [APPS[0], *(pytest.param(app, marks=pytest.mark.deep) for app in APPS[1:])])
def test_every_key_refuses_a_wrong_kind_by_name(app):
    """Text where a number belongs, and a number where text belongs."""
    for key in keys(app):
        numbers = any(word in key.kind for word in ("number", "true or false"))
        wrong = "x y" if numbers else "7"
        with pytest.raises(ConfigError) as error:
            check(configuration(app, settings=(f"{key.name}={wrong}",)))
        table, _, name = key.name.rpartition(".")
        assert key.name in str(error.value) or (table in str(error.value) and name in str(error.value)), key


def test_the_schema_names_every_table(capsys):
    assert main(["config", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    tables = {key.name.partition(".")[0] for key in keys("laminar")}
    assert tables | {"base"} == set(schema["properties"])
    assert schema["additionalProperties"] is False


def test_an_app_that_is_not_there(capsys):
    assert main(["config", "nowhere"]) == 2
    assert "laminar" in capsys.readouterr().err
