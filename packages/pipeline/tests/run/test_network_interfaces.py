"""The interface of the trainer's ranks is checked before a run starts: on this machine, or on all of the cluster's."""

import subprocess
import sys

import pytest

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.machines import check_interface, check_interfaces


def config(interface, **executor):
    return RunConfig.model_validate(
        {"task": {"name": "chain_sum"}, "trainer": {"interface": interface}, "executor": executor}
    )


def test_this_machine_has_it_or_it_is_one_line():
    for told in ("", "lo", "127.0.0.0/8"):
        check_interface(config(told))
    with pytest.raises(
        ConfigError, match=r"key 'trainer.interface': found 'eth77', which does not exist; .*lo \(127.0.0.1\)"
    ) as told:
        check_interface(config("eth77"))
    assert "\n" not in str(told.value)
    check_interface(config("eth77", ray_address="10.0.0.1:6379"))  # its machines are asked once it is joined


def test_each_machine_of_a_cluster_that_lacks_it_has_a_line():
    there = {
        "10.0.0.1": {"eth0": ("10.0.0.1",)},
        "10.0.0.2": {"ens3": ("10.0.0.2",)},
        "10.0.0.3": {"ens4": ("10.0.0.3",)},
    }
    check_interfaces(config("10.0.0.0/24"), there)
    with pytest.raises(ConfigError) as told:
        check_interfaces(config("eth0"), there)
    lines = str(told.value).splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == ["10.0.0.2", "10.0.0.3"]
    assert "expected one of ens3 (10.0.0.2)" in lines[0]


ASK = """
from tailrace.runtime.hosts.ray import RayHost
from tailrace.trainer.network_interfaces import interfaces

host = RayHost(cpus=1)
try:
    assert host.on_machines(interfaces) == {"127.0.0.1": interfaces()}
finally:
    host.close()
"""


@pytest.mark.timeout(200)
@pytest.mark.deep
def test_the_machines_of_a_cluster_are_asked():
    pytest.importorskip("ray")
    asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, timeout=180, check=False)
    assert asked.returncode == 0, asked.stderr[-3000:]
