"""Links and nodes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.hardware import CROSS_DATACENTER, NETWORK_EFFICIENCY, Link, Node, device


def test_a_transfer_is_its_bytes_and_its_messages():
    assert Link("line", 100.0, 0.5).transfer_s(1000) == 10.5
    assert Link("line", 100.0, 0.5).transfer_s(1000, messages=4) == 12.0


@pytest.mark.parametrize(
    ("bandwidth", "startup_s"), [(0, 0), (-1, 0), (math.inf, 0), (math.nan, 0), (1, -1), (1, math.nan), (1, math.inf)]
)
def test_an_impossible_link(bandwidth, startup_s):
    with pytest.raises(FleetError, match=r"link line: found a .*, expected a finite one") as error:
        Link("line", bandwidth, startup_s)
    assert "\n" not in str(error.value)


@given(st.floats(1, 1e12), st.floats(0, 1), st.floats(0, 1e12), st.floats(0, 1e12), st.integers(0, 100))
def test_more_takes_longer(bandwidth, startup_s, one, other, messages):
    link = Link("line", bandwidth, startup_s)
    less, more = sorted((one, other))
    assert link.transfer_s(less, messages) <= link.transfer_s(more, messages) <= link.transfer_s(more, messages + 1)


def test_the_cross_datacenter_line_of_streamrl():
    assert CROSS_DATACENTER.bandwidth * 8 == 80e9


def test_a_node_is_the_device_s_own():
    node = Node.of(device("H800"))
    assert (node.gpus, node.nics) == (8, 8)
    # Laminar, section 8: 8 x 400 Gbps, of which RobustRL's measurement gives the share that is achieved.
    assert node.network_bandwidth == pytest.approx(400e9 * NETWORK_EFFICIENCY)
    assert node.network_bandwidth_per_gpu == pytest.approx(50e9 * NETWORK_EFFICIENCY)


def test_a_testbed_may_have_other_nics():
    streamrl = Node.of(device("H800"), nics=8, nic_bandwidth=200e9 / 8)
    assert streamrl.network_bandwidth == pytest.approx(200e9 * NETWORK_EFFICIENCY)
    assert Node.of(device("H20"), gpus=4).network_bandwidth_per_gpu == pytest.approx(25e9 * NETWORK_EFFICIENCY)


@pytest.mark.parametrize("changes", [{"gpus": 0}, {"nics": 0}, {"nic_bandwidth": 0}])
def test_an_impossible_node(changes):
    with pytest.raises(FleetError, match="found a"):
        Node.of(device("H800"), **changes)
