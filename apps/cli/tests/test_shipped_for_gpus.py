"""Every configuration that is shipped for GPUs holds by arithmetic on the machines that its first lines name."""

import re
from pathlib import Path

import pytest

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
# model, machines, ranks, replicas, devices of a replica
SIZES = {
    "gsm8k-7b.toml": ("Qwen2.5-7B", 1, 4, 4, 1),
    "gsm8k-7b-h20.toml": ("Qwen2.5-7B", 1, 6, 2, 1),
    "math-32b.toml": ("Qwen2.5-32B", 4, 16, 8, 2),
}


def test_what_is_shipped_is_what_is_tried():
    assert set(NAMED) == {f"{app}/{name}" for app in ("laminar", "staleflow") for name in SIZES}
    for path in (one for app in ("laminar", "staleflow") for one in CONFIGS.glob(f"{app}/*.toml")):
        # whoever asks for GPUs says which
        asks = re.search(r"^trainer_gpus = ", path.read_text(), re.MULTILINE)
        assert not asks or str(path.relative_to(CONFIGS)) in NAMED


@pytest.mark.parametrize("name", NAMED)
def test_it_holds(name):
    (named, devices), size = NAMED[name][0], SIZES[Path(name).name]
    assert named == name
    machines = read_machines(devices)
    found = check_on_paper(configuration(str(CONFIGS / name)), machines)
    assert found.shortages == ()
    model, nodes, ranks, replicas, spans = size
    assert (found.model.name, machines.nodes) == (model, nodes)
    assert (len(found.standing.ranks), len(found.standing.replicas)) == (ranks, replicas)
    assert all(member.spans == spans for member in found.standing.replicas)
    assert ranks + replicas * spans == machines.devices  # no device is left over
    on_devices = [place for place in found.places if place.name.startswith("GPU")]
    for place in on_devices:
        assert 0.4 * place.capacity < place.peak < 0.95 * place.capacity
    # each rank and each engine as a whole stands on one machine, and every machine has a relay
    for member, node in found.standing.nodes.items():
        assert sum(member in seat.members for seat in found.standing.seats if seat.node == node) == member.spans
    assert all(found.place(f"/dev/shm of machine {node}" if nodes > 1 else "/dev/shm").peak for node in range(nodes))
