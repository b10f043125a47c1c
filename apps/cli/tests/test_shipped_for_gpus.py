"""Every configuration that is shipped for GPUs holds by arithmetic on the machines that its first lines name."""

import re
from pathlib import Path

import pytest

from tailrace.cli.main import main
from tailrace.cli.runs.preflight import check_on_paper
from tailrace.fleetsim.footprint import read_machines
from tailrace.pipeline.config.target import configuration

CONFIGS = Path(__file__).parents[3] / "configs"
NAMED = {
    str(path.relative_to(CONFIGS)): found
    for path in sorted(CONFIGS.glob("*/*.toml"))
    if (
        found := re.findall(
            r"^#   tailrace run configs/(\S+) --dry-run --devices (\S+)$", path.read_text(), re.MULTILINE
        )
    )
}
PAGE = (CONFIGS.parent / "docs/eight-gpus.md").read_text()
# the forecast of a step in seconds by the table; a row may have two: configs/{laminar,staleflow}/...
FORECASTS = {
    app + file: float(seconds)
    for apps, file, all_seconds in re.findall(r"^\| `configs/([^/]+)(/\S+)` \| .* \| ([^|]+) \|$", PAGE, re.MULTILINE)
    for app, seconds in zip(apps.strip("{}").split(","), re.findall(r"(\d+) s", all_seconds), strict=True)
}
SEVEN, THIRTY = "Qwen2.5-7B", "Qwen2.5-32B"
TOLD = {"laminar/math-32b.toml", "rollpacker/judge.toml"}  # all have a test of what stands where
# model, machines, ranks, replicas, devices of a replica
SIZES = {
    "laminar/gsm8k-7b.toml": (SEVEN, 1, 4, 4, 1),
    "laminar/gsm8k-7b-h20.toml": (SEVEN, 1, 6, 2, 1),
    "laminar/math-32b.toml": (THIRTY, 4, 16, 8, 2),
    "staleflow/gsm8k-7b.toml": (SEVEN, 1, 4, 4, 1),
    "staleflow/gsm8k-7b-h20.toml": (SEVEN, 1, 6, 2, 1),
    "staleflow/math-32b.toml": (THIRTY, 4, 16, 8, 2),
    "staleflow/math-30b-a3b.toml": ("Qwen3-30B-A3B", 4, 8, 12, 2),
    "staleflow/math-30b-a3b-two-nodes.toml": ("Qwen3-30B-A3B", 2, 8, 4, 2),
    "streamrl/gsm8k-7b.toml": (SEVEN, 1, 4, 4, 1),
    "streamrl/gsm8k-7b-two-sites.toml": (SEVEN, 2, 8, 8, 1),
    "rollpacker/gsm8k-7b.toml": (SEVEN, 1, 8, 8, 1),
    "rollpacker/judge.toml": (SEVEN, 1, 8, 8, 1),
    "robustrl/gsm8k-7b-standby.toml": (SEVEN, 3, 8, 16, 1),
}


def test_what_is_shipped_is_what_is_tried():
    assert set(NAMED) == set(SIZES) == set(FORECASTS)
    for path in CONFIGS.glob("*/*.toml"):
        # whoever asks for GPUs says which
        asks = re.search(r"^trainer_gpus = ", path.read_text(), re.MULTILINE)
        assert not asks or str(path.relative_to(CONFIGS)) in NAMED


@pytest.mark.parametrize("name", NAMED)
def test_it_holds(name):
    (named, devices), size = NAMED[name][0], SIZES[name]
    assert named == name
    machines = read_machines(devices)
    found = check_on_paper(configuration(str(CONFIGS / name)), machines)
    assert found.shortages == ()
    assert found.notes == ()  # nothing is left uncounted
    model, nodes, ranks, replicas, spans = size
    assert (found.model.name, machines.nodes) == (model, nodes)
    assert (len(found.standing.ranks), len(found.standing.replicas)) == (ranks, replicas)
    assert all(member.spans == spans for member in found.standing.replicas)
    assert all(seat.members for seat in found.standing.seats)  # no device is left over
    assert all(seat.taken <= 1 + 1e-9 for seat in found.standing.seats)
    on_devices = [place for place in found.places if place.name.startswith("GPU")]
    for place in on_devices:
        assert 0.35 * place.capacity < place.peak < 0.96 * place.capacity
    # each rank and each engine as a whole stands on one machine, and every machine has a relay
    for member, node in found.standing.nodes.items():
        assert sum(member in seat.members for seat in found.standing.seats if seat.node == node) == member.spans
    assert all(found.place(f"/dev/shm of machine {node}" if nodes > 1 else "/dev/shm").peak for node in range(nodes))
    moved = {one.what: one for one in found.transfers}
    assert {"fetch a batch", "publish a version", "pull a version", "write a checkpoint"} <= moved.keys()
    assert all(one.seconds is not None for one in found.transfers)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.deep] * (name not in TOLD)) for name in NAMED])
def test_the_dry_run_tells_who_stands_where_what_moves_and_how_long_a_step_takes(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    _, devices = NAMED[name][0]
    assert main(["run", str(CONFIGS / name), "--dry-run", "--devices", devices]) == 0
    out = capsys.readouterr().out
    (seconds,) = re.findall(r"^Forecast of a step, simulated: ([\d.]+) s,", out, re.MULTILINE)
    assert float(seconds) == pytest.approx(FORECASTS[name], abs=0.51)  # docs/eight-gpus.md says it in whole seconds
    config = configuration(str(CONFIGS / name))
    for rank in range(config.trainer.processes):
        assert re.search(rf"\b\d+: trainer 0{f'.{rank}' if rank else ''}\b", out)
    for replica in range(config.rollout.replicas):
        assert re.search(rf"\breplica r{replica}\b", out)
    assert re.search(r"\brelay 0\b.*\bdata\b", out)
    assert re.search(r"\bscorer\b", out)
    assert list(tmp_path.iterdir()) == []


def test_members_that_share_a_device_stand_together_and_sites_have_their_own(capsys):
    found = check_on_paper(configuration(str(CONFIGS / "rollpacker/gsm8k-7b.toml")), read_machines("8xH100"))
    for number, seat in enumerate(found.standing.seats):
        assert [(one.role, one.name) for one in seat.members] == [
            ("trainer", f"0.{number}" if number else "0"),
            ("replica", f"r{number}"),
        ]
    config = configuration(str(CONFIGS / "streamrl/gsm8k-7b-two-sites.toml"))
    found = check_on_paper(config, read_machines("8xH100,8xH20@cloud"))
    assert {found.standing.nodes[replica] for replica in found.standing.replicas} == {1}
    assert found.place("GPU 0 to 7 of machine 0").capacity == 80e9
    assert found.place("GPU 0 to 7 of machine 1").capacity == 96e9
    crossing = next(one for one in found.transfers if one.what == "send a version to the site")
    assert crossing.seconds == pytest.approx(2 * 7_615_616_512 * 8 / 80e9, rel=0.02)  # 80 Gbps, and a latency
