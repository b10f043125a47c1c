"""What `[[rollout.pools]]` and `[relay.sites]` become: the pipeline's pools, and how the replicas of each are started."""

import dataclasses

import pytest

from tailrace.contracts import Place
from tailrace.controller.spec import RolloutPool
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.pools import check_labels, check_pools, pool_replicas, relay_count, replica_gpus
from tailrace.runtime.executor.deployment import REPLICA, Deployment
from tailrace.runtime.executor.seam import RoleSpec

NEAR = {"name": "near", "tp": 2, "options": {"max_num_seqs": 8}}
FAR = {"name": "far", "count": 3, "site": "west", "device": "H20", "prompts_per_replica": 2}


def configured(*pools, **tables):
    rollout = {"pools": list(pools), "options": {"max_num_seqs": 16, "max_model_len": 64}, **tables.pop("rollout", {})}
    return validate([("c.toml", {"rollout": rollout, "relay": {"count": 2, "sites": {"west": 2}}, **tables})])


def test_pools_come_with_their_own_sizes_and_count_as_the_runs_replicas():
    config = configured(NEAR, FAR)
    check_pools(config)
    spec = build_spec(config)
    assert spec.pools == (RolloutPool("near", 1, "", 2, 16 * 8), RolloutPool("far", 3, "west", 1, 2 * 8, standby=False))
    assert config.rollout.replicas == spec.provisioning.count == 4
    assert spec.relay_sites == ("", "", "west", "west")
    assert relay_count(config) == 4
    assert [spec.relay_site(index) for index in (0, 2, 9)] == ["", "west", ""]


def test_without_pools_nothing_is_another():
    config = configured(relay={})
    assert (config.rollout.replicas, build_spec(config).pools, build_spec(config).relay_sites) == (2, (), ())
    check_pools(config)


def test_the_resolved_configuration_reads_back():
    config = configured(NEAR, FAR)
    assert validate([("config.json", config.model_dump(mode="json"))]) == config


@dataclasses.dataclass(frozen=True)
class Options:
    options: dict


class NoHost:
    def caller(self, role, id_="0"):
        return (role, id_)


def test_each_pools_replicas_have_their_engine_and_devices_and_are_resized_from_these():
    config = configured(NEAR, FAR, executor={"replica_gpus": 1.0})
    role = RoleSpec.of(dict, Options({"seed": 3, **config.rollout.options}), gpus=1.0)
    deployment = Deployment("run", "token", {REPLICA: role}, pools=pool_replicas(config, role))
    near, far, plain = (
        deployment.role(NoHost(), REPLICA, "r0", 1, place=Place(pool=pool)) for pool in ("near", "far", "")
    )
    shared = {"seed": 3, "max_model_len": 64}
    assert near.settings.options == {**shared, "max_num_seqs": 8, "tensor_parallel_size": 2}
    assert far.settings.options == {**shared, "max_num_seqs": 16} == plain.settings.options
    assert [(spec.gpus, spec.device) for spec in (near, far, plain)] == [(2.0, ""), (1.0, "H20"), (1.0, "")]
    assert replica_gpus(config) == 5.0
    halved = deployment.role(NoHost(), REPLICA, "r0", 1, tp=1, place=Place(pool="near"))
    assert (halved.gpus, halved.arguments["start"].tp) == (1.0, 1)
    assert dataclasses.replace(halved, arguments={}) == dataclasses.replace(plain, arguments={})


def test_every_site_needs_a_machine_in_a_cluster():
    config = configured(NEAR, FAR)
    check_labels(config, {"west": 1, "east": 2})
    with pytest.raises(ConfigError, match=r"no machine with the label tailrace-site=west .* found the sites east"):
        check_labels(config, {"east": 2})
    check_labels(configured(relay={}), {})


@pytest.mark.parametrize(
    ("pools", "says"),
    [
        ([{"name": "a"}, {"name": "a"}], "found 2 with the name 'a'"),
        ([{"name": ""}], "found 1 with the name ''"),
        ([{"name": "a", "site": "wst"}], "key 'rollout.pools.0.site': found the unknown site 'wst'"),
        ([{"name": "a"}, {"name": "b", "options": {"max_seqs": 1}}], "key 'rollout.pools.1.options': .*'max_seqs'"),
        ([{"name": "a", "tp": 2, "options": {"tensor_parallel_size": 2}}], "found both"),
    ],
)
def test_what_is_wrong_is_one_line(pools, says):
    with pytest.raises(ConfigError, match=says) as failed:
        check_pools(configured(*pools))
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize("pools", [3, [3], [{}], [{"name": "a", "count": "2"}], [{"name": "a", "count": 0}]])
def test_what_are_no_pools_is_said_of_the_pools_alone(pools):
    with pytest.raises(ConfigError, match=r"rollout\.pools") as failed:
        validate([("c.toml", {"rollout": {"pools": pools}})])
    assert "rollout.replicas" not in str(failed.value)


def test_of_several_pools_balanced_is_told_which_comes_and_goes():
    balanced = {"pipeline": {"provisioning": {"name": "balanced"}}}
    with pytest.raises(ConfigError, match=r"found 2 pools and 'balanced', expected the one whose replicas come and go"):
        build_spec(configured(NEAR, FAR, **balanced))
    chosen = {"pipeline": {"provisioning": {"name": "balanced", "pool": "far"}}}
    spec = build_spec(configured(NEAR, FAR, **chosen))
    assert (spec.provisioning.growth().start, spec.provisioning.growth().most) == (4, 7)
    with pytest.raises(ConfigError, match=r"found pool='fra', expected one of several pools of the run \(near, far\)"):
        build_spec(configured(NEAR, FAR, pipeline={"provisioning": {"name": "balanced", "pool": "fra"}}))


def test_unequal_numbers_and_shared_devices_are_refused():
    with pytest.raises(ConfigError, match="found 3 replicas and 4 in the pools"):
        check_pools(configured(NEAR, FAR, rollout={"replicas": 3}))
    with pytest.raises(ConfigError, match=r"trainer\.colocated"):
        check_pools(configured(NEAR, trainer={"colocated": True}))
