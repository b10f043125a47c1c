"""The arithmetic of a run beside sums by hand, for the shipped 7B configuration and changes of it."""

from pathlib import Path

import pytest

from tailrace.fleetsim.errors import DoesNotFitError, FleetError, UnknownNameError
from tailrace.fleetsim.footprint import Machines, footprint, read_machines
from tailrace.fleetsim.footprint.hosts import checkpoint_plan
from tailrace.fleetsim.footprint.memory import MemoryPlace, OwnedBytes
from tailrace.fleetsim.footprint.placement import stand
from tailrace.fleetsim.hardware import device, model, shape_of
from tailrace.pipeline.config.target import configuration

ROOT = Path(__file__).parents[4]
SEVEN = 7_615_616_512  # parameters of Qwen2.5-7B, of its safetensors


def counted(devices="8xH100", *settings, target="laminar"):
    """The footprint of a 7B model on paper: four ranks and four replicas, a GPU each."""
    base = (
        "model.path=/nowhere/Qwen2.5-7B", "rollout.engine=vllm", "rollout.replicas=4", "trainer.processes=4",
        "executor.trainer_gpus=1.0", "executor.replica_gpus=1.0", "executor.device=cuda", "trainer.options.dtype=bfloat16",
        "rollout.options.max_model_len=1536", "rollout.max_tokens=1024", "rollout.options.gpu_memory_utilization=0.85",
    )  # fmt: skip
    return footprint(configuration(target, settings=(*base, *settings)), read_machines(devices))


def bytes_of(place, owner, what):
    return sum(part.size for part in place.parts if part.owner == owner and what in part.what)


def test_a_device_has_its_rank_and_another_its_replica():
    found = counted()
    rank, replica = found.place("GPU 0 to 3"), found.place("GPU 4 to 7")
    state = sum(bytes_of(rank, "trainer", what) for what in ("parameters", "moments")) + bytes_of(
        rank, "trainer", "gradients"
    )
    assert state - bytes_of(rank, "trainer", "whole gradients") == pytest.approx(16 * SEVEN / 4, rel=1e-6)
    assert bytes_of(replica, "replica", "weights") == 2 * SEVEN
    # what the engine takes in all is its share of the device, whatever the weights leave of it
    assert replica.peak == pytest.approx(0.85 * device("H100").memory_bytes)
    assert found.shortages == ()


def test_a_kv_cache_is_the_simulators():
    from tailrace.fleetsim.cost import kv_capacity_tokens

    replica = counted("8xH100", "rollout.options.gpu_memory_utilization=0.9").place("GPU 4 to 7")
    tokens = kv_capacity_tokens(model("Qwen2.5-7B"), device("H100"), 1)  # whose share of memory is 0.9
    assert any(f"{tokens:,} tokens" in part.what for part in replica.parts)


def test_the_largest_phase_counts():
    place = MemoryPlace(
        "GPU 0",
        (
            OwnedBytes("trainer", "state", 10),
            OwnedBytes("trainer", "a", 5, "computing"),
            OwnedBytes("trainer", "b", 7, "reducing"),
        ),
        16,
    )
    assert place.phases == {"computing": 15, "reducing": 17}
    assert place.peak == 17
    assert place.owners() == {"trainer": 17}
    assert "expected at most" in place.shortage()
    assert MemoryPlace("GPU 0", place.parts, 17).shortage() is None
    assert MemoryPlace("GPU 0", place.parts, None).shortage() is None


def test_hosts_hold_versions_and_copies():
    found = counted("8xH100", "relay.count=2", "checkpoint.keep=3")
    shared = found.place("/dev/shm")
    assert shared.peak == (2 * 2 + 1) * 2 * SEVEN  # two versions in each relay, one that is staged, in bfloat16
    host = found.place("host memory")
    assert bytes_of(host, "trainer", "a copy of its state") == pytest.approx(12 * SEVEN)
    assert bytes_of(host, "relays", "version") == shared.peak
    disk = found.place("disk")
    assert bytes_of(disk, "trainer", "") == (3 + 2) * 14 * SEVEN
    one_step = counted("8xH100", "pipeline.steps=1", "checkpoint.keep=3").place("disk")
    assert bytes_of(one_step, "trainer", "") == (1 + 2) * 14 * SEVEN


def test_replicas_that_offer_weights_hold_two_versions_each():
    alone, peers = (counted("8xH100", f"relay.mode={mode}") for mode in ("relay", "peer"))
    more = bytes_of(peers.place("/dev/shm"), "replicas", "versions to offer")
    assert more > 0
    assert more % (2 * 2 * SEVEN) == 0  # two of them in bfloat16, of each replica
    assert peers.place("/dev/shm").peak == alone.place("/dev/shm").peak + more


def test_weights_alone_take_less_and_a_limit_by_bytes_holds_but_for_two_with_full_state():
    each = ("checkpoint.keep=3", "checkpoint.full_every=10", "pipeline.steps=100")
    disk = counted("8xH100", *each).place("disk")
    assert bytes_of(disk, "trainer", "with full state and 27 of weights") == pytest.approx((3 * 14 + 27 * 2) * SEVEN)
    assert bytes_of(disk, "trainer", "being written") == pytest.approx((14 + 2) * SEVEN)
    limited = counted("8xH100", *each, "checkpoint.keep_gb=300")
    assert bytes_of(limited.place("disk"), "trainer", "with full state") == pytest.approx(300e9)
    assert limited.place("checkpoint.keep_gb").shortage() is None
    line = counted("8xH100", *each, "checkpoint.keep_gb=200").place("checkpoint.keep_gb").shortage()
    missing = (2 * 14 * SEVEN - 200e9) / 1e9
    assert line.startswith("keys 'checkpoint.keep_gb': found members that take ")
    assert f"expected at most 200.0 GB: {missing:.1f} GB are missing; set checkpoint.keep_gb = 214" in line


def test_an_adapter_has_neither_versions_nor_checkpoints_of_the_models_size():
    found = counted("8xH100", "trainer.adapter.rank=8")
    assert found.place("/dev/shm").peak == 0
    assert bytes_of(found.place("disk"), "trainer", "") == 0
    assert "activations of Qwen2.5-7B" in found.notes[0]


@pytest.mark.parametrize(
    ("backend", "whole"),
    [(["fsdp2"], False), (["deepspeed"], True), (["deepspeed", "trainer.options.zero_stage=3"], False)],
    ids=["fsdp2", "deepspeed", "deepspeed of stage 3"],
)
def test_every_rank_has_the_whole_frozen_base_unless_its_parameters_are_split(backend, whole):
    name, *options = backend
    found = counted("8xH100", "trainer.adapter.rank=8", f"trainer.backend={name}", *options)
    ranks = len(found.standing.ranks)
    assert ranks > 1
    base = {part.size for part in found.place("GPU 0").parts if part.what.startswith("the frozen base")}
    assert base == {2 * SEVEN / (1 if whole else ranks)}


def test_a_critic_beside_an_adapter_is_trained_whole():
    found = counted("8xH100", "trainer.adapter.rank=8", "trainer.loss.name=ppo")
    of_critic = SEVEN - 152_064 * 3_584 + 3_584  # a head of one row in place of the output layer
    assert bytes_of(found.place("GPU 0"), "trainer", "the critic's state") == 16 * of_critic / len(found.standing.ranks)


@pytest.mark.parametrize(
    ("placement", "seats"),
    [("pack", [(0, 0), (0, 1), (0, 2), (0, 3)]), ("spread", [(0, 0), (1, 0), (0, 1), (1, 1)])],
)
def test_ranks_stand_as_placement_says(placement, seats):
    found = counted("16xH100", f"executor.placement={placement}")
    ranks = {rank: (seat.node, seat.index) for seat in found.standing.seats for rank in seat.members}
    assert [ranks[rank] for rank in found.standing.ranks] == seats


def test_on_a_cluster_of_unknown_machines_every_placement_is_counted():
    settings = (
        "model.path=/nowhere/Qwen2.5-7B", "trainer.processes=2", "executor.trainer_gpus=1.0", "trainer.options.dtype=bfloat16",
        "executor.device=cuda", "executor.placement=strict-spread", "rollout.engine=vllm", "executor.replica_gpus=1.0",
    )  # fmt: skip
    config = configuration("laminar", settings=settings)
    standing = stand(config, Machines(devices=4))
    assert len(standing.ranks) == 2
    assert sum(len(seat.members) for seat in standing.seats) == len(standing.ranks) + len(standing.replicas)


def test_a_checkpoint_of_weights_alone_has_no_critic():
    found = counted(
        "8xH100", "trainer.loss.name=ppo", "trainer.advantages=gae", "checkpoint.full_every=10", "checkpoint.keep=3",
        "pipeline.steps=100",
    )  # fmt: skip
    plan = checkpoint_plan(found.config, found.model)
    critic = found.model.dense.critic_parameters
    assert (plan.full_bytes, plan.weights_bytes) == (14 * SEVEN + 12 * critic, 2 * SEVEN)
    assert (plan.full, plan.weights) == (3, 27)


def test_what_may_come_at_most_is_told_and_refuses_no_run():
    parts = OwnedBytes("data", "sure", 10), OwnedBytes("data", "if all are longest", 90, at_most=True)
    for capacity, short, told in ((9, True, False), (10, False, True), (99, False, True), (100, False, False)):
        place = MemoryPlace("disk", parts, capacity)
        assert (place.shortage() is not None, place.caution() is not None) == (short, told)
        assert place.peak == 100
    assert MemoryPlace("disk", parts).caution() is None


def test_an_engine_does_not_span_machines():
    # 5 ranks leave 3 devices of the first machine: an engine over 4 stands on the second
    found = counted(
        "16xH100", "trainer.processes=5", "rollout.replicas=2", "rollout.options.tensor_parallel_size=4",
        "executor.replica_gpus=4.0",
    )  # fmt: skip
    assert [found.standing.nodes[replica] for replica in found.standing.replicas] == [1, 1]
    with pytest.raises(DoesNotFitError, match="no machine with 4 free devices for replica r2"):
        counted(
            "16xH100", "trainer.processes=2", "rollout.replicas=3", "executor.placement=spread",
            "rollout.options.tensor_parallel_size=4", "executor.replica_gpus=4.0",
            "trainer.processes=4",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("devices", "settings", "error", "words"),
    [
        ("4xH100", (), DoesNotFitError, r"found 8 devices asked for \(4 ranks, 4 replicas\).* 4 are missing"),
        ("8", (), FleetError, "--devices: found '8', expected a number and a kind of device, such as 8xH100"),
        ("0xH100", (), FleetError, "--devices: found '0xH100'"),
        ("12xH100", (), FleetError, "12 x H100, expected at most 8, those of one machine, or a multiple"),
        (
            "8xH100,8xH20",
            (),
            FleetError,
            "--devices: found '8xH100,8xH20', expected the trainer's site first and without a name",
        ),
        ("8xH100,8xH20@a,8xH20@a", (), FleetError, "and each other one once"),
        (
            "8xH100",
            ("relay.sites={cloud = 1}",),
            FleetError,
            "'cloud', and no machines of it among 8 x H100, expected them too: --devices 8xH100,8xH100@cloud",
        ),
        (
            "8xH100,8xH20@cloud",
            ("relay.sites={cloud = 1}", 'rollout.pools=[{name="far", count=4, site="cloud", device="A100"}]'),
            FleetError,
            "key 'rollout.pools.0.device': found 'A100' among 8 x H20 at cloud, expected 'H20', or none",
        ),
        (
            "8xH100,2xH20@cloud",
            ("relay.sites={cloud = 1}", 'rollout.pools=[{name="far", count=4, site="cloud"}]'),
            DoesNotFitError,
            r"found 4 devices asked for \(4 replicas\), expected at most 2, those of 2 x H20 at cloud: 2 are missing",
        ),
        (
            "8xH100",
            ('rollout.pools=[{name="far", count=4, device="H20"}]',),
            FleetError,
            "key 'rollout.pools.0.device': found 'H20' among 8 x H100, expected 'H100', or none",
        ),
        ("8xH1000", (), UnknownNameError, "unknown device 'H1000', did you mean 'H100'"),
        ("8xH100", ("model.path=/nowhere/Qwen9",), FleetError, "'Qwen9' is none of the known models"),
        (
            "16xH100",
            ("rollout.options.tensor_parallel_size=3", "executor.replica_gpus=3.0"),
            FleetError,
            "found 3 for Qwen2.5-7B, which has 28 attention heads and 4 key-value heads, expected .*, such as 2",
        ),
        (
            "8xH100",
            ("rollout.options.gpu_memory_utilization=0.2",),
            DoesNotFitError,
            "15.2 GB are weights and 2.0 GB the engine's own, expected room for the 1,536 tokens of one trajectory: found 0",
        ),
    ],
)
def test_what_cannot_be_is_one_line(devices, settings, error, words):
    with pytest.raises(error, match=words) as caught:
        counted(devices, *settings)
    assert "\n" not in str(caught.value)


def test_a_mixture_of_experts_is_counted_whole():
    found = counted("64xH100", "model.path=/nowhere/Qwen3-30B-A3B", "trainer.processes=32")
    assert found.model.parameters > 30e9
    assert found.model.dense.parameters == found.model.parameters
    assert found.notes == ()
    rank = found.place("GPU 0 to 7 of machine 0")
    layer = 2 * found.model.dense.layer_parameters
    assert bytes_of(rank, "trainer", "gathered") > 4 * layer  # every expert of a layer is gathered, whoever takes it


def test_sites_have_machines_relays_and_devices_of_their_own():
    pools = 'rollout.pools=[{name="near", count=2}, {name="far", count=9, site="cloud", device="H20"}]'
    settings = ("rollout.replicas=11", "relay.count=1", "relay.sites={cloud = 3}", pools)
    found = counted("8xH100,16xH20@cloud", *settings)
    machines = found.machines
    assert (machines.nodes, machines.in_all, machines.nodes_at(""), machines.nodes_at("cloud")) == (
        3,
        24,
        range(1),
        range(1, 3),
    )
    assert [machines.at(node).device.name for node in range(3)] == ["H100", "H20", "H20"]
    (home, beside), (first, _), (second, _) = found.standing.by_machine(found.config, machines)
    assert home == {number: [f"trainer 0{f'.{number}' if number else ''}"] for number in range(4)} | {
        4: ["replica r0"], 5: ["replica r1"], 6: [], 7: [],
    }  # fmt: skip
    assert first == {number: [f"replica r{number + 2}"] for number in range(8)}
    assert second == {0: ["replica r10"], **{number: [] for number in range(1, 8)}}
    assert beside == ["relay 0", "data", "scorer"]
    shared = [found.place(f"/dev/shm of machine {node}").peak for node in range(3)]
    slots = 3  # a site's relay keeps the base of the next delta
    assert shared == [(slots + 1) * 2 * SEVEN, 2 * slots * 2 * SEVEN, slots * 2 * SEVEN]
    by = {(one.what, one.by): one for one in found.transfers}
    assert by["send a version to the site", "one relay at cloud"].size == 2 * SEVEN
    assert by["pass a version on", "2 relays at cloud, in a chain"].seconds > 0
    assert ("pull a version", "each worker of a replica at cloud") in by


def test_the_link_to_a_site_is_that_of_the_fleet():
    settings = ("relay.sites={cloud = 1}", 'rollout.pools=[{name="far", count=4, site="cloud"}]')
    link = "fleet.sites={cloud = {bandwidth = 1e9, latency_s = 0.5, share = 0.25}}"
    found = counted("8xH100,8xH100@cloud", *settings, link)
    (crossing,) = [one for one in found.transfers if one.what == "send a version to the site"]
    assert (crossing.size, crossing.seconds) == (SEVEN / 2, pytest.approx(SEVEN / 2 / 1e9 + 0.5))


def test_weights_of_replicas_that_sleep_lie_in_host_memory():
    lends = (
        "pipeline.provisioning=scale-down", "trainer.cells=2", "trainer.colocated=true", "executor.trainer_gpus=0.6",
        "executor.replica_gpus=0.4", "rollout.options.gpu_memory_utilization=0.35",
    )  # fmt: skip
    host = counted("8xH100", *lends, target="rollpacker").place("host memory")
    assert bytes_of(host, "replicas", "while their devices are lent") == 4 * 2 * SEVEN
    assert bytes_of(counted().place("host memory"), "replicas", "while their devices are lent") == 0


def test_the_state_of_cells_that_have_left_their_devices_lies_in_host_memory():
    lends = (
        "pipeline.provisioning=scale-down", "trainer.cells=2", "trainer.colocated=true", "executor.trainer_gpus=0.6",
        "executor.replica_gpus=0.4", "rollout.options.gpu_memory_utilization=0.35",
    )  # fmt: skip
    what = "its state, pinned, while replicas have its devices"

    def pinned(*settings: str) -> float:
        return bytes_of(counted("8xH100", *lends, *settings, target="rollpacker").place("host memory"), "trainer", what)

    assert pinned() == 2 * 16 * SEVEN  # two cells have all of it each
    assert pinned('trainer.options.offload=["optimizer"]') == 2 * 8 * SEVEN  # the moments are counted by themselves
    assert pinned("trainer.offloads=false") == 0
    assert bytes_of(counted().place("host memory"), "trainer", what) == 0


def test_devices_that_change_hands_move_the_state_and_the_weights_there_and_back():
    lends = (
        "pipeline.provisioning=scale-down", "trainer.cells=2", "trainer.colocated=true", "executor.trainer_gpus=0.6",
        "executor.replica_gpus=0.4", "rollout.options.gpu_memory_utilization=0.35",
    )  # fmt: skip
    kind = device("H100")
    found = {one.what: one for one in counted("8xH100", *lends, target="rollpacker").transfers}
    assert found["leave shared devices and come back"].size == 2 * 16 * SEVEN / 2  # a cell has two of the four ranks
    assert found["sleep and wake on shared devices"].seconds == pytest.approx(2 * 2 * SEVEN / kind.pcie_bandwidth)
    dropped = counted("8xH100", *lends, "rollout.sleep_level=2", target="rollpacker").transfers
    assert "sleep and wake on shared devices" not in {one.what for one in dropped}
    assert not [one for one in counted().transfers if "shared devices" in one.what]


def test_shares_of_a_half_or_less_stand_one_rank_to_a_device_with_their_replica_and_the_judge_on_the_first(tmp_path):
    shares = (
        "pipeline.provisioning=scale-down", "trainer.cells=2", "trainer.colocated=true", "executor.trainer_gpus=0.5",
        "executor.replica_gpus=0.3", "executor.scorer_gpus=0.2", "rollout.options.gpu_memory_utilization=0.3",
        f"reward.judge.model={tmp_path}", "reward.judge.template={response}", "reward.judge.memory_mib=6000",
    )  # fmt: skip
    found = counted("8xH100", *shares, target="rollpacker")
    here = [[f"{one.role} {one.name}" for one in seat.members] for seat in found.standing.seats]
    others = [[f"trainer 0.{number}", f"replica r{number}"] for number in (1, 2, 3)]
    assert here == [["trainer 0", "replica r0", "scorer 0"], *others, [], [], [], []]
    assert bytes_of(found.place("GPU 0"), "judge", "weights") == 6000 * 2**20


def test_members_on_cores_are_counted_in_host_memory():
    on_cores = ("executor.device=cpu", "executor.trainer_gpus=0.5", "executor.replica_gpus=0.5")
    plain, pinned = (footprint(configuration("laminar", settings=settings)) for settings in ((), on_cores))
    assert not any(place.name.startswith("GPU") for place in pinned.places)
    assert pinned.place("host memory").peak == plain.place("host memory").peak
    assert [len(seat.members) for seat in pinned.standing.seats if seat.members]


def test_the_weights_of_replicas_that_lend_cores_are_counted_once():
    lends = ("pipeline.provisioning=scale-down", "trainer.cells=2", "trainer.colocated=true", "rollout.sleep_level=1")
    on_cores = ("executor.device=cpu", "executor.trainer_gpus=0.6", "executor.replica_gpus=0.4")
    host = footprint(configuration("rollpacker", settings=(*lends, *on_cores))).place("host memory")
    assert bytes_of(host, "replicas", "weights") > 0
    assert bytes_of(host, "replicas", "while their devices are lent") == 0


def test_what_does_not_fit_says_how_much_is_missing_and_what_to_set():
    found = counted(
        "8xH100", 'trainer.options.activation_checkpointing="off"', "trainer.options.micro_batch_tokens=8192"
    )
    (line,) = found.shortages
    place = found.place("GPU 0 to 3")
    assert f"{(place.peak - place.capacity) / 1e9:.1f} GB are missing" in line
    assert line.endswith('set trainer.options.activation_checkpointing = "on"')
    assert "activations" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("backend", "state", "advised"),
    [
        ("deepspeed", 2 + (4 + 4 + 8) / 4, "trainer.options.zero_stage = 3"),
        ("megatron", 2 + 4 + 4 + 8 / 4, "trainer.options.tensor_parallel = 4"),
    ],
)
def test_a_rank_is_counted_for_the_backend_that_trains_it(backend, state, advised):
    """ZeRO 2 has the parameters whole, and the rest in parts; Megatron-core without tensor parallelism the moments alone."""
    found = counted("8xH100", f"trainer.backend={backend}")
    rank = found.place("GPU 0 to 3")
    kinds = ("parameters", "gradients", "moments")
    total = sum(bytes_of(rank, "trainer", what) for what in kinds) - bytes_of(rank, "trainer", "whole gradients")
    assert total == pytest.approx(state * SEVEN, rel=1e-3)
    assert bytes_of(rank, "trainer", "activations") > 0
    assert found.notes == ()
    with_critic = counted(
        "8xH100", f"trainer.backend={backend}", "trainer.options.micro_batch_tokens=1536", "trainer.loss=ppo"
    )
    assert any(line.endswith(f"set {advised}") for line in with_critic.shortages), with_critic.shortages


def test_seconds_follow_from_bytes_and_the_record():
    found = {one.what: one for one in counted().transfers}
    kind = device("H100")
    assert found["publish a version"].seconds == pytest.approx(2 * SEVEN / 4 / kind.publish_bandwidth)
    assert found["pull a version"].seconds == pytest.approx(2 * SEVEN / kind.pull_bandwidth)
    assert found["copy the state"].seconds == pytest.approx(12 * SEVEN / 4 / kind.pcie_bandwidth)
    assert found["write a checkpoint"].seconds == pytest.approx(14 * SEVEN / kind.disk_bandwidth)
    # of ranks on two machines each writes to its own machine's disk
    spread = {one.what: one for one in counted("16xH100", "executor.placement=spread").transfers}
    assert spread["write a checkpoint"].seconds == pytest.approx(14 * SEVEN / 2 / kind.disk_bandwidth)
    assert "pass a version on" not in found


def test_seconds_of_a_machine_that_was_measured_are_its_profiles():
    from tailrace.fleetsim.profile.machine import load_machine

    machine = load_machine("two-cores")
    found = {one.what: one for one in footprint(configuration("laminar")).transfers}
    assert found["publish a version"].seconds == machine.weights.publish_s
    assert found["pull a version"].seconds == machine.weights.pull_s
    assert found["write a checkpoint"].seconds == machine.delays.durable_s
    assert found["pull a version"].source == "measured: profile two-cores"
    broken = footprint(configuration("laminar", settings=('fleet.profile="nowhere.toml"',)))
    assert {one.what: one.seconds for one in broken.transfers}["pull a version"] is None


def test_scores_are_work_of_cores():
    few, many = (
        {one.what: one for one in counted("8xH100", f"reward.math.workers={workers}").transfers}["score a batch"]
        for workers in (1, 8)
    )
    assert few.seconds == pytest.approx(8 * many.seconds)
    programs = {one.what: one for one in counted("8xH100", 'task.verifier="code"', "reward.code.workers=4").transfers}
    assert "4 workers" in programs["score a batch"].by
    assert programs["score a batch"].by.endswith("programs each")


def test_the_forecast_is_a_simulation_of_the_same_run():
    found = counted("8xH100", "pipeline.prompts_per_step=16", "pipeline.samples_per_prompt=4")
    result = found.forecast()
    assert result.gpus == 8
    assert result.devices == {"H100": 8}
    assert result.step_s > 0
    assert result.lost_trajectories == 0
    slower = counted("8xA100", "pipeline.prompts_per_step=16", "pipeline.samples_per_prompt=4").forecast()
    assert slower.step_s > result.step_s


def test_a_forecast_is_of_the_settings_that_train():
    from tailrace.fleetsim.footprint.forecast import fleet_table

    def trained(*settings):
        found = counted("8xH200", *settings)
        return found, fleet_table(found.config, found.machines, found.standing, found.model, found.transfers)["trainer"]

    plain, table = trained()
    assert (table["gpus"], table["passes"], table["critic"]) == (
        4,
        1.0,
        False,
    )  # a pass of layers that keep their inputs
    assert table["data_s"] == pytest.approx(sum(one.seconds for one in plain.transfers[:2]))  # fetch and publish
    assert trained("trainer.options.kl_coefficient=0.1", "trainer.loss=decoupled-ppo")[1]["passes"] == 3.0
    critic, table = trained("trainer.loss=ppo")
    assert table["critic"]
    assert bytes_of(critic.place("GPU 0"), "trainer", "moments") > 1.8 * bytes_of(
        plain.place("GPU 0"), "trainer", "moments"
    )


def test_a_shape_is_that_of_config_json():
    known = model("Qwen3-30B-A3B")
    found = shape_of(
        known.name,
        {"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
         "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
         "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "tie_word_embeddings": False},
    )  # fmt: skip
    assert found == known
    assert shape_of("other", {"model_type": "gpt2"}) is None
    with pytest.raises(FleetError, match="does not tell its shape: KeyError"):
        shape_of("broken", {"model_type": "qwen3"})


def test_a_pull_takes_as_long_as_that_of_the_replica_with_fewest_devices():
    pools = "rollout.pools=[{name='small', count=2}, {name='large', count=1, tp=2}]"
    found = {one.what: one for one in counted("8xH100", "rollout.replicas=3", pools).transfers}
    assert found["pull a version"].size == 2 * SEVEN
    assert found["pull a version"].seconds == pytest.approx(2 * SEVEN / device("H100").pull_bandwidth)


def test_a_chain_passes_on_what_is_published():
    def chain(*settings):
        found = counted("16xH100", "relay.count=2", "executor.placement=spread", *settings).transfers
        (one,) = [one for one in found if one.what == "pass a version on"]
        return one

    whole, half = chain(), chain("relay.codec=fp8")
    assert half.size == whole.size / 2
    assert half.seconds == pytest.approx(whole.seconds / 2, rel=0.05)


def test_a_cache_of_an_engine_in_single_precision_is_of_its_numbers():
    found = counted("8xH100", "rollout.options.dtype=float32")
    (cache,) = [part for part in found.place("GPU 4 to 7").parts if "KV cache" in part.what]
    assert f"{int(cache.size / (2 * model('Qwen2.5-7B').kv_bytes_per_token)):,} tokens" in cache.what
