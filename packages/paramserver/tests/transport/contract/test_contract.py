"""What every transport does, in two processes. Third parties run the same tests."""

import random
import signal
import threading
import time
from pathlib import Path

import pytest

from tailrace.paramserver.errors import (
    AuthenticationFailed,
    ParamServerError,
    ProtocolError,
    RelayTimeout,
    RelayUnreachable,
)
from tailrace.paramserver.manifest import checksum
from tailrace.paramserver.transport.protocol import HashingSource

SLACK_S = 8.0  # over a deadline, on a machine that is busy with other things
#: These read what the exporter's process need not send.
WITHOUT_THE_EXPORTER = {"shm", "nixl"}


@pytest.fixture
def opened(transport):
    """Opens sources, and closes them in the end."""
    sources = []

    def open_(descriptor, timeout_s=20.0):
        sources.append(transport.open(descriptor, timeout_s=timeout_s))
        return sources[-1]

    yield open_
    for source in sources:
        source.close()
        source.close()  # twice is no error


def read(source, offset, nbytes, timeout_s=20.0):
    buffer = bytearray(b"\xa5" * (nbytes + 2))
    source.read_into(memoryview(buffer)[1:-1], offset, timeout_s)
    assert (buffer[0], buffer[-1]) == (0xA5, 0xA5), "bytes outside the range were written"
    return bytes(buffer[1:-1])


@pytest.mark.parametrize("name", ["shm", "tcp", "ucx", "nixl", "other"], indirect=True)
def test_random_ranges_arrive_right(exporter, opened):
    seed = random.randrange(2**32)
    numbers = random.Random(seed)
    descriptor, content = exporter.export(3_000_017, seed)
    source = opened(descriptor)
    ranges = [(0, len(content)), (len(content), 0), (0, 0), (len(content) - 1, 1)]
    for _ in range(40):
        offset = numbers.randrange(len(content))
        ranges.append(
            (offset, numbers.randrange(min(len(content) - offset, numbers.choice([10, 5000, 3_000_017])) + 1))
        )
    for offset, nbytes in ranges:
        assert read(source, offset, nbytes) == content[offset : offset + nbytes], (seed, offset, nbytes)


def test_a_source_that_hashes_says_what_it_wrote(exporter, opened, name):
    descriptor, content = exporter.export(1_500_003, 4)
    source = opened(descriptor)
    if not isinstance(source, HashingSource):
        pytest.skip(f"{name} does not copy by itself")
    buffer = bytearray(1_400_000)
    assert source.read_hashed(memoryview(buffer), 77, 20.0) == checksum(content[77:1_400_077])
    assert buffer == content[77:1_400_077]
    with pytest.raises(ProtocolError, match="expected it within"):
        source.read_hashed(memoryview(buffer), 1_000_000, 20.0)
    exporter.ask(do="close", seed=4)
    with pytest.raises(RelayUnreachable):
        source.read_hashed(memoryview(buffer), 0, 20.0)


def test_many_sources_of_several_exports_read_at_the_same_time(exporter, opened):
    exports = [exporter.export(1_000_003 + seed, seed) for seed in (11, 12)]
    wrong = []

    def reader(number):
        descriptor, content = exports[number % 2]
        numbers = random.Random(number)
        try:
            source = opened(descriptor)
            for _ in range(15):
                offset = numbers.randrange(len(content))
                nbytes = numbers.randrange(len(content) - offset)
                if read(source, offset, nbytes) != content[offset : offset + nbytes]:
                    wrong.append((number, offset, nbytes))
        except Exception as error:
            wrong.append((number, repr(error)))

    threads = [threading.Thread(target=reader, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_a_range_that_sticks_out_is_refused_before_a_byte_is_written(exporter, opened):
    descriptor, content = exporter.export(100, 1)
    source = opened(descriptor)
    for offset, nbytes in [(100, 1), (0, 101), (99, 2), (2**63, 1), (-1, 1), (-5, 200)]:
        buffer = bytearray(b"\xa5" * nbytes)
        expected = f"found a range of {nbytes} bytes at {offset}, expected it within 100 bytes"
        with pytest.raises(ProtocolError, match=expected):
            source.read_into(memoryview(buffer), offset, 20.0)
        assert buffer == b"\xa5" * nbytes
        assert read(source, 0, 100) == content  # it goes on


def test_a_read_only_buffer_is_refused(exporter, opened):
    source = opened(exporter.export(100, 1)[0])
    with pytest.raises(ProtocolError, match="expected a writable contiguous one"):
        source.read_into(memoryview(bytes(10)), 0, 20.0)


def test_malformed_descriptors_are_errors_before_anything_is_reached(exporter, transport, name):
    good, _ = exporter.export(100, 1)
    numbers = random.Random(7)
    junk = [None, [], {}, "x", -1, 2**70, 1.5, True, "\0", "x" * 5000, {"a": 1}, "ä", "::", "AAAA"]
    cases = [{}, [], None, {**good, "transport": "no such"}]
    cases += [{key: value for key, value in good.items() if key != field} for field in good]
    cases += [{**good, field: value} for field in good for value in junk]
    for case in cases:
        began = time.monotonic()
        with pytest.raises(ParamServerError) as caught:  # a port or a size of another value may also reach nobody
            transport.open(case, timeout_s=numbers.choice([2.0, 3.0])).close()
        assert isinstance(caught.value, ProtocolError | AuthenticationFailed | RelayUnreachable | RelayTimeout), (
            case,
            caught.value,
        )
        assert time.monotonic() - began < 3.0 + SLACK_S, case
        assert good["secret"] not in str(caught.value)


def test_a_size_larger_than_what_is_exported_never_reads_what_is_not(exporter, transport):
    good, _ = exporter.export(4096, 1)
    buffer, sources = bytearray(1), []

    def attempt():
        sources.append(transport.open({**good, "nbytes": 2**24}, timeout_s=20.0))
        sources[0].read_into(memoryview(buffer), 2**24 - 1, 20.0)

    with pytest.raises(ParamServerError):
        attempt()
    for source in sources:
        source.close()
    assert buffer == b"\0"


def test_a_wrong_secret_is_refused(exporter, transport):
    good, _ = exporter.export(100, 1)
    with pytest.raises(AuthenticationFailed, match="does not know the secret"):
        transport.open({**good, "secret": "0" * 64}, timeout_s=20.0)


def test_a_dead_exporter_is_an_error_long_before_the_deadline(exporter, opened, transport):
    descriptor, _ = exporter.export(2_000_000, 1)
    source = opened(descriptor)
    read(source, 0, 10)
    exporter.signal(signal.SIGKILL)
    for attempt in (lambda: read(source, 5, 1_000_000, 60.0), lambda: transport.open(descriptor, timeout_s=60.0)):
        began = time.monotonic()
        with pytest.raises(RelayUnreachable):
            attempt()
        assert time.monotonic() - began < SLACK_S


def test_an_exporter_that_dies_in_the_middle_leaves_no_reader_waiting(exporter, opened):
    descriptor, content = exporter.export(64 * 2**20, 1)
    source, outcome = opened(descriptor), []

    def reader():
        try:
            while True:
                outcome[:] = [read(source, 0, len(content), 60.0) == content]
        except ParamServerError as error:
            outcome.append(error)

    thread = threading.Thread(target=reader)
    thread.start()
    time.sleep(0.1)
    exporter.signal(signal.SIGKILL)
    thread.join(60.0 / 2)
    assert not thread.is_alive()
    assert isinstance(outcome[-1], RelayUnreachable)
    assert outcome[0] is not False


def test_a_suspended_exporter_is_a_timeout_at_the_deadline(exporter, opened, transport, name):
    descriptor, content = exporter.export(2_000_000, 1)
    source = opened(descriptor)
    read(source, 0, 10)
    exporter.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        try:
            assert read(source, 3, 1_900_000, 0.5) == content[3:1_900_003]
            delivered = True
        except RelayTimeout:
            delivered = False
        assert delivered is False or name in WITHOUT_THE_EXPORTER
        assert time.monotonic() - began < 0.5 + SLACK_S
        began = time.monotonic()
        with pytest.raises(RelayTimeout):
            transport.open(descriptor, timeout_s=0.5)
        assert 0.3 < time.monotonic() - began < 0.5 + SLACK_S
    finally:
        exporter.signal(signal.SIGCONT)
    assert read(opened(descriptor), 7, 1000) == content[7:1007]  # a new source works as soon as it goes on


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_readers_that_die_or_stop_in_the_middle_cost_the_others_nothing(exporter, opened, doomed, number):
    descriptor, content = exporter.export(16 * 2**20, 1)
    for delay_s in (0.0, 0.004, 0.011):
        process = doomed(descriptor)
        time.sleep(delay_s)
        process.send_signal(number)
        assert read(opened(descriptor), 5, 2**20) == content[5 : 5 + 2**20]
    exporter.ask(do="close", seed=1)
    other, content = exporter.export(1000, 2)
    assert read(opened(other), 0, 1000) == content


def test_a_closed_export_is_an_error_and_the_others_stay(exporter, opened, transport):
    first, _ = exporter.export(100_000, 1)
    second, content = exporter.export(100_000, 2)
    one, two = opened(first), opened(second)
    read(one, 0, 10)
    exporter.ask(do="close", seed=1)
    with pytest.raises(RelayUnreachable):
        read(one, 0, 10)
    with pytest.raises((RelayUnreachable, AuthenticationFailed)):
        transport.open(first, timeout_s=20.0)
    assert read(two, 0, 100_000) == content


def test_closing_gives_everything_back(exporter, transport):
    def held():
        return (
            exporter.ask(do="held"),
            len(list(Path("/proc/self/fd").iterdir())),
            threading.active_count(),
        )

    segments = set()  # of these two processes: other tests have theirs meanwhile

    def note_segments():
        for process in ("self", exporter.process.pid):
            lines = Path(f"/proc/{process}/maps").read_text().splitlines()
            segments.update(Path(line.split()[-1]) for line in lines if "/dev/shm/tailrace" in line)

    def settled():
        """The kernel lists a thread that ended for some milliseconds more: what was the same for a while counts."""
        samples = [held()]
        while len(samples) < 100 and (len(samples) < 10 or any(sample != samples[-1] for sample in samples[-10:])):
            time.sleep(0.02)
            samples.append(held())
        return samples[-1]

    def cycle(seed):
        descriptor, content = exporter.export(50_000, seed)
        sources = [transport.open(descriptor, timeout_s=20.0) for _ in range(3)]
        for source in sources:
            assert read(source, 1, 40_000) == content[1:40_001]
        note_segments()
        for source in sources:
            source.close()
        exporter.ask(do="close", seed=seed)

    cycle(1)  # libraries keep a few things of their own
    cycle(2)
    before, kept = settled(), {path for path in segments if path.exists()}
    segments.clear()
    for seed in range(3, 8):
        cycle(seed)
    assert settled() == before
    assert {path for path in segments if path.exists()} <= kept
