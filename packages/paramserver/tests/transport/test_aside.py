import gc
import random
import threading

import pytest

from tailrace.paramserver import Publisher, RelayReader, set_chain
from tailrace.paramserver.manifest import checksum
from tailrace.paramserver.wire.receiving import PIECE_BYTES, WORTH_BYTES, BackgroundHash


@pytest.fixture
def aside():
    made = BackgroundHash()
    yield made
    made.close()
    made.close()


@pytest.mark.parametrize("seed", range(5))
def test_the_checksum_of_pieces_is_that_of_the_whole(aside, seed):
    numbers = random.Random(seed)
    for _ in range(3):
        nbytes = numbers.choice([0, 1, PIECE_BYTES, 3 * PIECE_BYTES + 17])
        content, part = numbers.randbytes(nbytes), bytearray(nbytes)
        hasher, got = aside.chunk(memoryview(part)), 0
        while got < nbytes:
            count = min(nbytes - got, numbers.choice([1000, 65_536, 2 * PIECE_BYTES]))
            part[got : got + count] = content[got : got + count]
            hasher.arrived(count)
            got += count
        assert hasher.value() == checksum(content), seed


def test_a_chunk_that_broke_off_leaves_nothing_in_the_next(aside):
    first = aside.chunk(memoryview(bytearray(b"x" * 2 * PIECE_BYTES)))
    first.arrived(PIECE_BYTES)  # and then its connection broke
    second = aside.chunk(memoryview(b"abc"))
    second.arrived(3)
    assert second.value() == checksum(b"abc")


def test_after_close_no_thread_runs_and_nobody_holds_the_memory():
    before, part, aside = threading.active_count(), bytearray(3 * PIECE_BYTES), BackgroundHash()
    hasher = aside.chunk(memoryview(part))
    hasher.arrived(len(part))
    hasher.value()
    aside.close()
    del hasher
    gc.collect()
    assert threading.active_count() == before
    part.append(1)  # refused while there is a view on it


def test_relays_and_readers_leave_no_hashing_thread(serve, token):
    first, second = serve(transports=()), serve(transports=())  # so all bytes go over connections
    set_chain([first.address, second.address], token=token)
    with Publisher(first.address, token=token, chunk_bytes=WORTH_BYTES) as publisher:
        publisher.publish(1, [("w", bytes(3 * WORTH_BYTES + 5))])
        publisher.wait(1, 30)
        with RelayReader(second.address, token=token, same_host=False) as reader, reader.lease(1) as weights:
            assert bytes(weights.raw()["w"].data) == bytes(3 * WORTH_BYTES + 5)
    assert not [thread.name for thread in threading.enumerate() if thread.name == "tailrace hash"]
