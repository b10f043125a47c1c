"""A configuration file lies over what it is based on: the defaults, the quick start, another file."""

from pathlib import Path

import pytest

from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.run.build import build_spec, check
from tailrace.pipeline.run.engine_abilities import lends_devices, sleep_level


def write(path, **keys):
    path.write_text("".join(f"{key} = {value}\n" for key, value in keys.items()))
    return str(path)


def test_a_run_takes_every_configuration_that_is_shipped():
    """One with a fleet is for the simulator."""
    configs = [configuration(str(path)) for path in Path(__file__).parents[3].glob("configs/*/*.toml")]
    runs = [config for config in configs if "model" not in config.fleet]
    assert len(runs) > 30
    for config in runs:
        check(config)


def test_a_file_lies_over_the_defaults_alone(tmp_path):
    config = configuration(write(tmp_path / "a.toml", app='"staleflow"', seed=3))
    assert (config.app, config.seed, config.model.small) == ("staleflow", 3, None)


def test_a_file_may_lie_over_the_quick_start(tmp_path):
    config = configuration(write(tmp_path / "a.toml", app='"staleflow"', base='"quickstart"', seed=3))
    assert config.seed == 3
    assert config.model.small is not None
    assert config.task.name == "long-chain-sum"


def test_a_file_may_lie_over_a_file_beside_it(tmp_path):
    (tmp_path / "folder").mkdir()
    write(
        tmp_path / "folder" / "below.toml", app='"staleflow"', base='"quickstart"', seed=3, faults='["replica@step2"]'
    )
    config = configuration(write(tmp_path / "folder" / "above.toml", app='"staleflow"', base='"below.toml"', seed=4))
    assert (config.seed, config.faults) == (4, ("replica@step2",))
    assert config.model.small is not None


@pytest.mark.parametrize("app", ["laminar", "rollpacker", "robustrl", "staleflow", "streamrl"])
def test_trainer_and_replicas_of_every_app_may_take_turns_on_the_same_devices(tmp_path, app):
    keys = {"mode": "sync", "admission": "on-policy", "provisioning": "hybrid"}
    pipeline = "".join(f'{key} = "{value}"\n' for key, value in keys.items())
    (tmp_path / "a.toml").write_text(f'app = "{app}"\nbase = "quickstart"\n[pipeline]\n{pipeline}')
    config = configuration(str(tmp_path / "a.toml"))
    spec = build_spec(config)
    assert spec.colocated
    assert all(spec.stands_on_trainer(pool.name) for pool in spec.pools) or not spec.pools
    assert lends_devices(config)
    assert sleep_level(config, "transformers") == 1  # unless told otherwise
