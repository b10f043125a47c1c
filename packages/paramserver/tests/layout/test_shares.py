"""Ranks publish their own shards; a relay shows the version once all are there; readers take what their ranks need of it."""

import contextlib
import random
import threading

import pytest

from tailrace.paramserver import (
    ManifestInvalid,
    Needs,
    ParamServerError,
    Publisher,
    RelayReader,
    TransportUnavailable,
    VersionNotYet,
    relay_status,
    set_chain,
    shares,
)
from tailrace.paramserver.clients.staging import StagedState
from tailrace.paramserver.layout import GlobalTensor, Layout, LayoutMismatch, from_vllm, qwen_tensors
from tailrace.paramserver.layout.fsdp2 import chunk
from tailrace.paramserver.manifest import byte_size
from tailrace.paramserver.wire import agreement

from .small_models import TIED

TENSORS = (
    GlobalTensor("a", "float32", (7, 5)),
    GlobalTensor("b", "bfloat16", (3,)),
    GlobalTensor("c", "uint8", (1, 9, 2)),
)


def split(tensors, ranks):
    """Each tensor's first dimension over the ranks, as FSDP2 cuts it."""
    boxes = {}
    for rank in range(ranks):
        held = {t.name: [(chunk(t.shape[0], ranks, rank), *((0, n) for n in t.shape[1:]))] for t in tensors}
        boxes[f"rank{rank}"] = {name: box for name, box in held.items() if box[0][0][0] < box[0][0][1]}
    return Layout.of_boxes(tensors, boxes)


def make(tensors, seed):
    source = random.Random(seed)
    return {t.name: source.randbytes(byte_size(t.dtype, t.shape)) for t in tensors}


def local(tensors, weights, ranks, rank):
    """The rows of a rank."""
    for tensor in tensors:
        first, last = chunk(tensor.shape[0], ranks, rank)
        row = tensor.nbytes // tensor.shape[0]
        if first < last:
            yield tensor.name, weights[tensor.name][first * row : last * row]


def test_a_tensor_without_elements_is_in_a_version_of_shares_too(serve, token):
    tensors = (*TENSORS, GlobalTensor("none", "float32", (0, 3)))
    weights, relay = make(TENSORS, 5), serve()
    with contextlib.ExitStack() as held:
        for rank, share in enumerate(shares(split(tensors, 2)).values()):
            publisher = held.enter_context(Publisher(relay.address, token=token))
            publisher.publish(1, local(TENSORS, weights, 2, rank), stamp=9, share=share)
        reader = held.enter_context(RelayReader(relay.address, token=token))
        lease = held.enter_context(reader.lease(1, timeout_s=30))
        found = lease.raw()
        assert {name: bytes(found[name].data) for name in found} == {**weights, "none": b""}
        assert found["none"].shape == (0, 3)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("chunk_bytes", [4096, 10_000, 2**20])
def test_a_version_of_several_ranks_has_next_to_no_gaps(ranks, chunk_bytes):
    tensors = tuple(GlobalTensor(f"w{number}", "bfloat16", (240, 64)) for number in range(12))
    found = shares(split(tensors, ranks), chunk_bytes=chunk_bytes)
    manifest = found["rank0"].manifest
    assert manifest.chunk_bytes <= chunk_bytes
    assert sum(tensor.nbytes for tensor in tensors) <= manifest.total_bytes
    assert manifest.total_bytes <= 1.02 * sum(tensor.nbytes for tensor in tensors)


@pytest.fixture
def trainer(serve, token):
    """Publishers of one layout, and how they publish a version."""
    publishers = []

    class Trainer:
        def __init__(self, tensors, ranks, address, chunk_bytes=64, **options):
            self.tensors, self.shares, self.stamp = tensors, shares(split(tensors, ranks), chunk_bytes=chunk_bytes), 0
            self.publishers = [Publisher(address, token=token, **options) for _ in range(ranks)]
            publishers.extend(self.publishers)

        def publish(self, version, weights, ranks=None, *, sealed=False):
            self.stamp += 1
            count = len(self.publishers)
            for rank in range(count) if ranks is None else ranks:
                rows, share = local(self.tensors, weights, count, rank), self.shares[f"rank{rank}"]
                self.publishers[rank].publish(version, rows, stamp=self.stamp, share=share, sealed=sealed)

    yield Trainer
    for publisher in publishers:
        publisher.close()


def holds(relay, token, version, weights, **options):
    with RelayReader(relay.address, token=token, **options) as reader, reader.lease(version, timeout_s=20) as held:
        assert {name: bytes(tensor.data) for name, tensor in held.raw().items()} == weights


@pytest.mark.parametrize("buffers", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_all_ranks_together_make_a_version(serve, token, trainer, ranks, buffers):
    first, second = serve(), serve()
    set_chain([first.address, second.address], token=token)
    run = trainer(TENSORS, ranks, first.address, buffers=buffers)
    for version in range(1, 6):
        weights = make(TENSORS, version)
        run.publish(version, weights)
        for publisher in run.publishers:
            publisher.wait(version, 20)
        for relay in (first, second):
            holds(relay, token, version, weights)
            holds(relay, token, version, weights, same_host=False)


def sealed_at(relay, token):
    return list(relay_status(relay.address, token=token).sealed)


def test_shares_that_are_sealed_are_seen_once_one_rank_reveals_them(serve, token, trainer, until):
    first, second = serve(), serve()
    set_chain([first.address, second.address], token=token)
    run = trainer(TENSORS, 2, first.address, buffers=1)
    for version in range(1, 6):
        weights = make(TENSORS, version)
        if version % 2:  # as is usual: whole everywhere, and revealed later
            run.publish(version, weights, sealed=True)
            for relay in (first, second):
                until(lambda relay=relay, version=version: sealed_at(relay, token) == [version], "a sealed version")
            run.publishers[0].reveal(version)
        else:  # before the second rank has sent its share
            run.publish(version, weights, ranks=[0], sealed=True)
            run.publishers[0].reveal(version)
            with RelayReader(first.address, token=token) as reader:
                assert reader.latest() == version - 1
            run.stamp -= 1
            run.publish(version, weights, ranks=[1], sealed=True)
        run.publishers[0].wait(version, 20)
        for relay in (first, second):
            holds(relay, token, version, weights)


@pytest.mark.parametrize("killed_first", [True, False])
def test_sealed_shares_survive_the_master(serve, token, trainer, until, killed_first):
    """Revealed before or after the next master has them."""
    first, second = serve(), serve()
    run = trainer(TENSORS, 2, first.address, buffers=1)
    weights = make(TENSORS, 1)
    run.publish(1, weights, sealed=True)
    until(lambda: sealed_at(first, token) == [1], "the sealed version")
    if not killed_first:
        run.publishers[0].reveal(1)
    # Before its end a reveal is owed to the next master, not refused.
    until(lambda: all(staged.state is StagedState.HELD for staged in run.publishers[0]._staged), "the end of its push")
    first.close()
    if killed_first:
        with pytest.raises(ParamServerError):
            run.publishers[0].reveal(1)
    for publisher in run.publishers:
        publisher.retarget(second.address)
    run.publishers[0].wait(1, 20)
    holds(second, token, 1, weights)


@pytest.mark.parametrize("transport", ["shm", "tcp", "ucx", "nixl"])
def test_shares_travel_by_any_transport(serve, token, trainer, transport, monkeypatch):
    # A library that begins later than this is not waited for: the bytes go by the connection.
    monkeypatch.setattr(agreement, "_OPEN_S", 20.0)
    try:
        first, second = serve(transports=(transport,)), serve(transports=(transport,))
    except TransportUnavailable as error:
        pytest.skip(str(error))
    set_chain([first.address, second.address], token=token)
    run = trainer(TENSORS, 2, first.address, buffers=1, transports=(transport,))
    for version in (1, 2):
        run.publish(version, make(TENSORS, version))
        holds(second, token, version, make(TENSORS, version), same_host=False, transports=(transport,))
    assert run.publishers[1].transfers["payload_sent"] == 0


def test_shares_travel_as_deltas(serve, token, trainer):
    pytest.importorskip("numpy")
    means = {"transports": (), "codecs": ("delta",), "always_encode": True}
    first, second = serve(**means), serve(**means)
    set_chain([first.address, second.address], token=token)
    large = (GlobalTensor("w", "uint8", (64, 4096)),)
    run = trainer(large, 2, first.address, buffers=2, chunk_bytes=2**16, **means)
    weights = make(large, 1)
    for version in range(1, 5):
        run.publish(version, weights)
        for publisher in run.publishers:
            publisher.wait(version, 20)
        holds(second, token, version, weights)
        changed = bytearray(weights["w"])
        changed[version * 5000] ^= 1
        weights = {"w": bytes(changed)}
    for publisher in run.publishers:
        assert publisher.transfers["payload_sent"] < 0.5 * publisher.transfers["bytes_sent"]


def test_nobody_sees_a_version_of_which_a_share_is_missing_and_a_newer_one_takes_its_place(serve, token, trainer):
    relay = serve()
    run = trainer(TENSORS, 3, relay.address, buffers=1)
    run.publish(1, make(TENSORS, 1), ranks=[0, 2])
    with (
        RelayReader(relay.address, token=token) as reader,
        pytest.raises(VersionNotYet),
        reader.lease(1, timeout_s=0.5),
    ):
        pass
    run.publish(2, make(TENSORS, 2))
    holds(relay, token, 2, make(TENSORS, 2))
    assert run.publishers[0].superseded == [1]


def test_another_master_gets_all_shares_again(serve, token, trainer):
    first, second = serve(), serve()
    run = trainer(TENSORS, 2, first.address, buffers=1)
    run.publish(1, make(TENSORS, 1), ranks=[0])
    first.close()
    for publisher in run.publishers:
        publisher.retarget(second.address)
    run.stamp = 0
    run.publish(1, make(TENSORS, 1), ranks=[1])
    holds(second, token, 1, make(TENSORS, 1))
    third = serve()
    for publisher in run.publishers:
        publisher.retarget(third.address)
    holds(third, token, 1, make(TENSORS, 1))


def test_publishing_waits_for_no_more_than_the_version_before_to_be_sent(serve, token, trainer):
    relay = serve()
    run = trainer(TENSORS, 2, relay.address, buffers=1)
    threads = [
        threading.Thread(target=lambda: [run.publish(version, make(TENSORS, version)) for version in range(1, 30)])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    holds(relay, token, 29, make(TENSORS, 29))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("same_host", [True, False])
def test_a_worker_reads_what_it_needs_by_a_plan_that_is_made_once(serve, token, trainer, ranks, same_host):
    tensors = tuple(qwen_tensors(TIED))
    relay = serve()
    run = trainer(tensors, ranks, relay.address)
    workers = from_vllm(tensors, TIED, tp=4)
    needs = {rank: Needs(lambda found: from_vllm(found, TIED, tp=4), rank) for rank in workers.shards}
    total = sum(tensor.nbytes for tensor in tensors)
    for version in (1, 2):
        weights = make(tensors, version)
        run.publish(version, weights)
        for rank, need in needs.items():
            reader = RelayReader(relay.address, token=token, same_host=same_host, needs=need)
            with reader, reader.lease(version, timeout_s=20) as held:
                for name, tensor in held.raw().items():
                    whole, dense = weights[name], held.tensors[name]
                    read = bytes(tensor.data)
                    for _, piece in workers.shards[rank].pieces.get(name, ()):
                        compare(dense, piece.box, read, whole)
                if not same_host:
                    assert reader.transfers["bytes_received"] < 0.8 * total
    assert [need.made for need in needs.values()] == [1] * 4


def test_a_digest_needs_the_whole_version(serve, token, trainer):
    tensors = tuple(qwen_tensors(TIED))
    relay = serve()
    trainer(tensors, 2, relay.address).publish(1, make(tensors, 1))
    need = Needs(lambda found: from_vllm(found, TIED, tp=4), next(iter(from_vllm(tensors, TIED, tp=4).shards)))
    digests = set()
    for needs in (None, need):
        with RelayReader(relay.address, token=token, needs=needs) as reader, reader.lease(1, timeout_s=20) as held:
            digests.add(held.digest)  # all of it is there
    with RelayReader(relay.address, token=token, same_host=False) as reader, reader.lease(1, timeout_s=20) as held:
        digests.add(held.digest)
    assert len(digests) == 1
    reader = RelayReader(relay.address, token=token, same_host=False, needs=need)
    with reader, reader.lease(1, timeout_s=20) as held, pytest.raises(LayoutMismatch, match="expected all"):
        _ = held.digest


def compare(tensor, box, found, expected):
    width = tensor.nbytes // max(1, tensor.shape[0])
    size = width // (tensor.shape[1] if len(tensor.shape) > 1 else 1)
    for row in range(*box[0]):
        first, last = box[1] if len(box) > 1 else (0, 1)
        part = slice(row * width + first * size, row * width + last * size)
        assert found[part] == expected[part]


def test_a_share_needs_its_stamp(serve, token, trainer):
    run = trainer(TENSORS, 2, serve().address)
    with pytest.raises(ValueError, match="stamp"):
        run.publishers[0].publish(1, [], share=run.shares["rank0"])


def test_parts_are_put_together_in_memory_that_is_used_again(serve, token, trainer):
    relay = serve()
    run = trainer(TENSORS, 3, relay.address)
    kept = 0
    with RelayReader(relay.address, token=token) as reader:
        for version in range(1, 6):
            weights = make(TENSORS, version)
            run.publish(version, weights)
            with reader.lease(version, timeout_s=20) as held:
                for name in held:
                    raw = held.raw() if version % 2 else {name: held._raw(name)}
                    assert bytes(raw[name].data) == weights[name]
                    del raw
            assert kept in (0, reader._whole.nbytes)
            kept = reader._whole.nbytes


def test_what_somebody_refers_to_is_not_overwritten(serve, token, trainer):
    """An engine may keep several tensors before it uses them, as one that puts a layer together does."""
    torch = pytest.importorskip("torch")
    relay = serve()
    run = trainer(TENSORS, 2, relay.address)
    weights = make(TENSORS, 1)
    run.publish(1, weights)
    with RelayReader(relay.address, token=token) as reader, reader.lease(1, timeout_s=20) as held:
        kept = [(name, held[name]) for name in held for _ in range(3)]
        for name, tensor in kept:
            assert tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() == weights[name]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_slices_of_a_lease_make_up_every_tensor_once(serve, token, trainer, ranks):
    torch = pytest.importorskip("torch")
    relay = serve()
    run = trainer(TENSORS, ranks, relay.address)
    weights = make(TENSORS, 1)
    run.publish(1, weights)
    with RelayReader(relay.address, token=token) as reader, reader.lease(1, timeout_s=20) as held:
        found, times = {}, {}
        for name, shape, index, tensor in held.slices():
            whole = found.setdefault(name, torch.zeros(shape, dtype=tensor.dtype))
            whole[index].copy_(tensor)
            times.setdefault(name, torch.zeros(shape))[index] += 1
        assert {name: whole.view(-1).view(torch.uint8).numpy().tobytes() for name, whole in found.items()} == weights
        assert all((count == 1).all() for count in times.values())


@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_are_copied_into_tensors_of_the_reader(serve, token, trainer, ranks):
    torch = pytest.importorskip("torch")
    relay = serve()
    run = trainer(TENSORS, ranks, relay.address)
    weights = make(TENSORS, 1)
    run.publish(1, weights)
    with RelayReader(relay.address, token=token) as reader, reader.lease(1, timeout_s=20, verify=False) as held:
        buffers = {name: bytearray(len(data)) for name, data in weights.items()}
        held.copy_into(buffers)
        assert buffers == weights
        tensors = {t.name: torch.zeros(t.shape, dtype=getattr(torch, t.dtype)) for t in TENSORS}
        held.copy_into(tensors)
        assert {name: one.view(-1).view(torch.uint8).numpy().tobytes() for name, one in tensors.items()} == weights
        with pytest.raises(ManifestInvalid, match="no tensor"):
            held.copy_into({"nothing": bytearray(4)})
        with pytest.raises(ManifestInvalid):
            held.copy_into({TENSORS[0].name: bytearray(1)})
