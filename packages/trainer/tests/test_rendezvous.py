"""Ranks meet on one machine without an open port, and on two at their addresses alone; a wrong interface is one line."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tailrace.processes.namespaces import INTERFACE, machines, why_not
from tailrace.trainer.errors import ProcessGroupError, TrainerConfigError
from tailrace.trainer.network_interfaces import address_towards, interface_of, interfaces, network_id, told_interface
from tailrace.trainer.rendezvous import meet, meeting_url
from tailrace.trainer.small_model import build_model

sys.path.insert(0, str(Path(__file__).parent))
import trainer_processes

TESTS = str(Path(__file__).parent)
needs_namespaces = pytest.mark.skipif(bool(why_not()), reason=why_not() or "they can be made")

RANK = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
rank, model, rendezvous, out = json.loads(sys.argv[2])
import torch.distributed as dist
import trainer_processes
from tailrace.trainer.worker import TrainerWorker

close = TrainerWorker.close
def told(worker):  # what listens once the group works
    Path(out, f"listening-{rank}").write_text(Path("/proc/self/net/tcp").read_text() + Path("/proc/self/net/tcp6").read_text())
    Path(out, f"interface-{rank}").write_text(os.environ["GLOO_SOCKET_IFNAME"])
    dist.barrier()
    close(worker)
TrainerWorker.close = told
trainer_processes.train(rank, 2, Path(model), rendezvous, Path(out))
"""


def train_on(starters, model, urls, out):
    """Train a rank by each starter, at its own URL."""
    out.mkdir()
    ranks = []
    # a worker that an earlier test had in this process has set it to loopback
    without = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
    try:
        for rank, (start, url) in enumerate(zip(starters, urls, strict=True)):
            given = json.dumps([rank, str(model), url, str(out)])
            ranks.append(start([sys.executable, "-c", RANK, TESTS, given], env=without))
        assert [rank.wait(150) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return load_file(out / "result.safetensors")


def listening(out, rank):
    """Addresses at which anything of a machine listened."""
    found = set()
    for line in (out / f"listening-{rank}").read_text().splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[3] == "0A":
            packed, _, _ = fields[1].partition(":")
            words = bytes.fromhex(packed)
            raw = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
            found.add(socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw))
    return found


@needs_namespaces
@pytest.mark.timeout(400)
@pytest.mark.deep
def test_a_trainer_on_two_machines_computes_what_it_does_on_one(tmp_path):
    model = build_model(tmp_path / "model", vocab_size=31, hidden=15, layers=1, heads=2, head_dim=6, mlp=17)
    (tmp_path / "one").mkdir()
    trainer_processes.run_all(trainer_processes.train, 2, model, f"file://{tmp_path}/meet", tmp_path / "one")
    one = load_file(tmp_path / "one" / "result.safetensors")
    with machines(2) as both:
        first = tmp_path / "rendezvous" / "meeting-a-1"
        # the first learns its address from its cluster, the other one finds it by its route
        urls = [meeting_url(first, address=both[0].address), meeting_url(first)]
        two = train_on([machine.start for machine in both], model, urls, tmp_path / "two")
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name
    assert [(tmp_path / "two" / f"interface-{rank}").read_text() for rank in (0, 1)] == [INTERFACE] * 2
    assert [listening(tmp_path / "two", rank) for rank in (0, 1)] == [{"10.77.0.1"}, {"10.77.0.2"}]


MEET = """
import sys
from tailrace.trainer.rendezvous import meet
met = meet(sys.argv[1], int(sys.argv[2]), 2, 20.0)
print(met.interface, met.named, met.host, met.port)
"""


@needs_namespaces
def test_a_trainer_that_comes_back_elsewhere_meets_anew_on_the_same_port(tmp_path):
    ports = []
    with machines(2) as both:
        for number, order in enumerate((both, both, both[::-1])):
            url = meeting_url(tmp_path / f"meeting-{number}", "10.77.0.0/16")
            ranks = [
                machine.start([sys.executable, "-c", MEET, url, str(rank)], stdout=subprocess.PIPE, text=True)
                for rank, machine in enumerate(order)
            ]
            said = [rank.communicate(timeout=60)[0].split() for rank in ranks]
            assert said[0] == said[1]
            assert said[0][:3] == [INTERFACE, "True", order[0].address]
            ports.append(said[0][3])
    assert len(set(ports)) == 1
    assert [path.name for path in tmp_path.glob("meeting-*")] == ["meeting-2"]


def all_meet(url, ranks, timeout_s=20.0):
    """What each rank knows, by its number; an error instead if it ended with one."""
    found = {}

    def one(rank):
        try:
            found[rank] = meet(url, rank, ranks, timeout_s)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
    for thread in threads[::-1]:  # the first comes last, and forgets what was there
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    return found


def test_ranks_of_one_machine_share_a_file_and_loopback_and_open_no_port(tmp_path):
    root = tmp_path / "a directory?of#one&"
    for number in range(2):  # a second meeting of the same name, after the ranks of the first one died
        directory = root / "meeting-again"
        found = all_meet(meeting_url(directory), 3)
        files = {met.file for met in found.values()}
        assert len(files) == 1, number
        assert files.pop().parent == directory
        assert {(met.interface, met.host, met.port, met.listener) for met in found.values()} == {("lo", "", 0, None)}
    assert not (root / "port").exists()


def test_a_rank_that_comes_while_the_first_one_clears_up_comes_again(tmp_path, monkeypatch):
    write, cleared = Path.write_text, []

    def first_cleared(path, *args, **kwargs):
        if path.name.startswith(".1.json") and not cleared:
            cleared.append(path)
            shutil.rmtree(path.parent)  # between its making and what is written into it
        return write(path, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", first_cleared)
    found = all_meet(meeting_url(tmp_path / "meeting-here"), 2)
    assert cleared
    assert found[0] == found[1]


def test_an_interface_that_was_named_is_used_on_one_machine_too(tmp_path):
    found = all_meet(meeting_url(tmp_path / "meet", "127.0.0.0/8"), 2)
    assert {(met.interface, met.host, met.port) for met in found.values()} == {("lo", "127.0.0.1", found[0].port)}
    assert found[0].listener.getsockname() == ("127.0.0.1", found[0].port)
    found[0].listener.close()


def test_who_is_missing_is_told(tmp_path):
    later = threading.Timer(0.1, lambda: (tmp_path / "meet" / "2.json").write_text('{"network": "n"}'))
    later.start()
    with pytest.raises(ProcessGroupError, match=r"waited 0 s for rank 1, 3 of the trainer to come to the meeting in"):
        meet(meeting_url(tmp_path / "meet"), 0, 4, 0.4)
    with pytest.raises(ProcessGroupError, match="waited 0 s for the first rank of the trainer"):
        meet(meeting_url(tmp_path / "other"), 1, 2, 0.2)


def test_loopback_is_no_address_for_other_machines(tmp_path):
    directory = tmp_path / "meet"
    place = '{"network": "of another machine", "came": "then"}'
    later = threading.Timer(0.2, lambda: (directory / "1.json").write_text(place))
    later.start()
    with pytest.raises(
        TrainerConfigError,
        match=r"found 127\.0\.0\.1 as the address of the trainer's first rank.*trainer\.interface.*lo",
    ):
        meet(meeting_url(directory, address="127.0.0.1"), 0, 2, 10.0)


def test_interfaces_are_those_that_the_system_has():
    there = interfaces()
    assert "127.0.0.1" in there["lo"]
    assert there.keys() <= {name for _, name in socket.if_nameindex()}
    listed = Path("/proc/net/if_inet6")
    if listed.exists():
        rows = [line.split() for line in listed.read_text().splitlines()]
        known = {(row[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0]))) for row in rows}
        assert {(name, one) for name, addresses in there.items() for one in addresses if ":" in one} <= known
    for name, addresses in there.items():  # a socket can be bound at each
        for one in addresses:
            if not one.startswith("fe80"):
                with socket.socket(socket.AF_INET6 if ":" in one else socket.AF_INET) as bound:
                    bound.bind((one, 0))
                assert interface_of(one, there) == name
    assert address_towards("127.0.0.9") in there["lo"]
    assert network_id() == network_id() != ""


@pytest.mark.parametrize("told", ["eth9", "10.9.0.0/16", "10.0.0.1/8", "nonsense/x"])
def test_an_interface_that_does_not_exist_is_one_line_with_those_that_do(tmp_path, told):
    there = {"eth0": ("10.1.0.5", "fe80::1"), "lo": ("127.0.0.1",)}
    with pytest.raises(TrainerConfigError, match=r"key 'trainer.interface': found '") as raised:
        told_interface(told, there)
    assert "\n" not in str(raised.value)
    assert told in str(raised.value)
    if told in ("eth9", "10.9.0.0/16"):
        assert "eth0 (10.1.0.5), lo (127.0.0.1)" in str(raised.value)
    with pytest.raises(TrainerConfigError):
        meet(meeting_url(tmp_path, told), 0, 1, 1.0)
    assert told_interface("eth0", there) == told_interface("10.0.0.0/8", there) == ("eth0", "10.1.0.5")
