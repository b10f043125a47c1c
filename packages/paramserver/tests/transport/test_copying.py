import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.paramserver import ChunkDamaged, ManifestInvalid, RawTensor
from tailrace.paramserver.clients.lease_view import copy_tensors
from tailrace.paramserver.copying import BLOCK_BYTES, copy, hashed_copy, joined
from tailrace.paramserver.manifest import DTYPES, Manifest, TensorSpec, aligned, byte_size, checksum


def noise(nbytes, seed=1):
    return bytes((seed * 31 + i * 7 + (i >> 8)) & 255 for i in range(min(nbytes, 70_001))) * (nbytes // 70_001 + 1)


@pytest.mark.parametrize("nbytes", [0, 1, 4095, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 17])
def test_a_copy_is_the_same_bytes_and_its_checksum_is_theirs(nbytes):
    data = noise(nbytes)[:nbytes]
    plain, hashed = bytearray(nbytes + 2), bytearray(nbytes + 2)
    copy(memoryview(plain)[1:-1], memoryview(data))
    assert hashed_copy(memoryview(hashed)[1:-1], memoryview(data)) == checksum(data)
    assert bytes(plain) == bytes(hashed) == b"\0" + data + b"\0"


def test_sizes_must_be_equal_and_the_target_writable():
    into = bytearray(4)
    with pytest.raises(ValueError, match="found a buffer of 4 bytes to copy into, expected 5"):
        copy(memoryview(into), memoryview(b"12345"))
    with pytest.raises(BufferError):
        copy(memoryview(b"1234"), memoryview(b"1234"))
    with pytest.raises(BufferError):
        copy(memoryview(bytearray(8))[::2], memoryview(b"1234"))
    assert into == bytearray(4)
    into.append(1)  # no export is left on it: a bytearray with one cannot grow


def test_other_threads_run_during_a_copy():
    """A thread that is locked out pauses for as long as the copy takes. A busy machine may pause it too, now and then."""
    data, into, started, over = bytearray(2**26), bytearray(2**26), threading.Event(), threading.Event()
    longest = [0.0]

    def run():
        last = time.perf_counter()
        started.set()
        while not over.is_set():
            now = time.perf_counter()
            longest[0], last = max(longest[0], now - last), now

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    shares = []
    try:
        while not shares or (min(shares) > 0.5 and len(shares) < 100):
            longest[0] = 0.0
            began = time.perf_counter()
            copy(memoryview(into), memoryview(data))
            took = time.perf_counter() - began
            time.sleep(0.01)  # the thread notes its pause
            shares.append(longest[0] / took)
    finally:
        over.set()
        thread.join()
    assert min(shares) <= 0.5


def test_neighbours_on_both_sides_are_one_move():
    assert joined([(100, 0, 10), (110, 10, 5), (115, 16, 1), (116, 17, 2), (200, 19, 1)]) == [
        (100, 0, 15),
        (115, 16, 3),
        (200, 19, 1),
    ]


def version(sizes, chunk_bytes, tied=()):
    specs, end = [], 0
    for number, (dtype, shape) in enumerate(sizes):
        offset, nbytes = aligned(end), byte_size(dtype, shape)
        specs.append(TensorSpec(f"t{number}", dtype, shape, offset, nbytes))
        end = offset + nbytes
    manifest = Manifest(3, 1, chunk_bytes, end, tuple(specs), dict(tied))
    data = bytearray(noise(end, 5)[:end])
    sums = [checksum(data[o : o + n]) for o, n in (manifest.chunk(i) for i in range(manifest.chunk_count))]
    return manifest, data, sums


tensors = st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 40), max_size=2).map(tuple))


@settings(max_examples=200, deadline=None)
@given(st.lists(tensors, min_size=1, max_size=8), st.integers(1, 5000), st.data())
def test_every_wanted_tensor_arrives_whole_and_nothing_else_is_written(sizes, chunk_bytes, data):
    manifest, content, sums = version(sizes, chunk_bytes)
    names = data.draw(st.sets(st.sampled_from([spec.name for spec in manifest.tensors])))
    verify = data.draw(st.booleans())
    arena = bytearray(b"\xee" * (sum(spec.nbytes + 3 for spec in manifest.tensors) + 3))
    expected, targets, position = bytearray(arena), {}, 3
    for spec in manifest.tensors:
        if spec.name in names:
            part = memoryview(arena)[position : position + spec.nbytes]
            targets[spec.name] = RawTensor(spec.dtype, spec.shape, part)
            expected[position : position + spec.nbytes] = content[spec.offset : spec.offset + spec.nbytes]
        position += spec.nbytes + 3
    copy_tensors(manifest, memoryview(content), sums, targets, verify=verify)
    assert arena == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(tensors, min_size=1, max_size=6), st.integers(1, 3000), st.data())
def test_damage_is_found_exactly_where_a_wanted_tensor_shares_its_chunk(sizes, chunk_bytes, data):
    manifest, content, sums = version(sizes, chunk_bytes)
    if not content:
        return
    names = data.draw(st.sets(st.sampled_from([spec.name for spec in manifest.tensors]), min_size=1))
    where = data.draw(st.integers(0, len(content) - 1))
    content[where] ^= 1
    bad = where // chunk_bytes
    touched = {
        index
        for spec in manifest.tensors
        if spec.name in names
        for index in range(spec.offset // chunk_bytes, -(-(spec.offset + spec.nbytes) // chunk_bytes))
        if spec.nbytes
    }
    targets = {s.name: RawTensor(s.dtype, s.shape, bytearray(s.nbytes)) for s in manifest.tensors if s.name in names}
    if bad in touched:
        with pytest.raises(ChunkDamaged, match=rf"chunk {bad} of version 3 \(bytes {bad * chunk_bytes} to .*mixture"):
            copy_tensors(manifest, memoryview(content), sums, targets, verify=True)
    else:
        copy_tensors(manifest, memoryview(content), sums, targets, verify=True)


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ({"x": bytearray(24)}, "version 3 has no tensor 'x', expected one of its 2: t0, t1"),
        ({"t0": RawTensor("float32", (3, 2), bytearray(24))}, r"'t0': found a target of float32 \[3, 2\], expected"),
        ({"t0": RawTensor("int32", (2, 3), bytearray(24))}, r"found a target of int32 \[2, 3\], expected float32"),
        ({"t0": bytearray(23)}, r"'t0': found a target of uint8 \[23\]"),
        ({"t0": bytes(24)}, "'t0': found a buffer that cannot be written"),
    ],
)
@pytest.mark.parametrize("verify", [True, False])
def test_a_target_that_does_not_fit_is_named_and_nothing_is_written(targets, said, verify):
    manifest, content, sums = version([("float32", (2, 3)), ("uint8", (5,))], 16)
    other = bytearray(5)
    with pytest.raises(ManifestInvalid, match=said):
        copy_tensors(manifest, memoryview(content), sums, {"t1": other, **targets}, verify=verify)
    assert other == bytearray(5)


@pytest.mark.parametrize("verify", [True, False])
def test_an_array_of_the_other_byte_order_is_refused(verify):
    """Its numbers would be others."""
    numpy = pytest.importorskip("numpy")
    manifest, content, sums = version([("float32", (4,))], 16)
    own = numpy.zeros(4, "=f4")
    copy_tensors(manifest, memoryview(content), sums, {"t0": own}, verify=verify)
    assert own.tobytes() == bytes(content)
    other = own.astype(own.dtype.newbyteorder())
    with pytest.raises(ManifestInvalid, match=r"'t0': found a target of [<>]f4, expected the byte order"):
        copy_tensors(manifest, memoryview(content), sums, {"t0": other}, verify=verify)


@pytest.mark.parametrize("verify", [True, False])
def test_torch_parameters_strided_tensors_and_tied_names(verify):
    torch = pytest.importorskip("torch")
    manifest, content, sums = version([("float32", (4, 6)), ("uint8", (0,)), ("bfloat16", (7,))], 40, {"alias": "t0"})
    content[:96] = bytes(torch.arange(24, dtype=torch.float32).numpy())
    sums[:] = [checksum(content[o : o + n]) for o, n in (manifest.chunk(i) for i in range(manifest.chunk_count))]
    parameter = torch.nn.Parameter(torch.zeros(4, 6))
    strided = torch.zeros(6, 4).t()
    half = torch.zeros(7, dtype=torch.bfloat16)
    both = {"t0": strided, "alias": parameter, "t1": torch.empty(0, dtype=torch.uint8), "t2": half}
    copy_tensors(manifest, memoryview(content), sums, both, verify=verify)
    wanted = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    assert torch.equal(parameter, wanted)
    assert torch.equal(strided, wanted)
    assert bytes(half.view(torch.uint8).numpy()) == content[manifest.tensors[2].offset :]
    with pytest.raises(ManifestInvalid, match=r"found a target of float64 \[4, 6\]"):
        copy_tensors(manifest, memoryview(content), sums, {"t0": torch.zeros(4, 6, dtype=torch.float64)}, verify=verify)


def test_only_strided_torch_targets_are_verified_too():
    torch = pytest.importorskip("torch")
    manifest, content, sums = version([("float32", (4, 6))], 40)
    content[50] ^= 1
    with pytest.raises(ChunkDamaged, match="chunk 1 of version 3"):
        copy_tensors(manifest, memoryview(content), sums, {"t0": torch.zeros(6, 4).t()}, verify=True)


def test_a_lease_copies_into_buffers_that_outlive_it(serve, token, weights):
    from tailrace.paramserver import LeaseExpired, Publisher, RelayReader

    relay = serve()
    with Publisher(relay.address, token=token, chunk_bytes=4096) as publisher:
        publisher.publish(4, weights(4))
        for same_host in (True, False):
            mine = {name: bytearray(20_000) for name in ("layer.0.weight", "layer.3.weight")}
            with (
                RelayReader(relay.address, token=token, same_host=same_host) as reader,
                reader.lease(4, verify=False) as lease,
            ):
                lease.copy_into(mine)
            assert all(data == bytearray([4]) * 20_000 for data in mine.values())
            with pytest.raises(LeaseExpired):
                lease.copy_into(mine)
