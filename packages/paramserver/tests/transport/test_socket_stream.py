import os
import socket
import threading
import time

import pytest

from tailrace.paramserver.machine.host import SocketStream


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), timeout=5)  # as `dial` leaves it: with a timeout
        far, _ = listener.accept()
    streams = SocketStream(near), SocketStream(far)
    yield streams
    for stream in streams:
        stream.close()


@pytest.fixture
def file():
    fd = os.memfd_create("stream")
    os.write(fd, b"x" * 2**20)
    yield fd
    os.close(fd)


def took(call, error=TimeoutError):
    began = time.monotonic()
    with pytest.raises(error):
        call()
    return time.monotonic() - began


@pytest.mark.parametrize("timeout_s", [0.3, 0.0, 0.01])
def test_waiting_for_bytes_ends_at_the_deadline_also_the_first_time(pair, timeout_s):
    assert timeout_s * 0.9 <= took(lambda: pair[0].receive_into(memoryview(bytearray(10)), timeout_s)) < timeout_s + 5


def test_a_deadline_that_changes_counts_from_then_on(pair):
    view = memoryview(bytearray(10))
    for timeout_s in (0.2, 0.01, 0.2):
        assert timeout_s * 0.9 <= took(lambda wait=timeout_s: pair[0].receive_into(view, wait)) < timeout_s + 5


def test_without_a_deadline_it_waits_until_something_comes_or_the_connection_is_shut_down(pair):
    near, far = pair
    assert took(lambda: near.receive_into(memoryview(bytearray(1)), 0.01)) < 5
    threading.Timer(0.2, lambda: far.send(memoryview(b"abc"), 5.0)).start()
    view = memoryview(bytearray(10))
    assert near.receive_into(view, None) == 3
    assert bytes(view[:3]) == b"abc"
    threading.Timer(0.2, near.shutdown).start()
    assert near.receive_into(view, None) == 0


def test_a_peer_that_takes_nothing_ends_sends_at_the_deadline(pair, file):
    near, _ = pair
    data = memoryview(bytes(2**20))

    def stuff(send):
        for _ in range(10_000):
            assert send() > 0

    assert took(lambda: stuff(lambda: near.send(data, 0.2))) < 30
    assert 0.18 <= took(lambda: near.send(data, 0.2)) < 5
    assert 0.18 <= took(lambda: near.send_file(file, 0, 2**20, 0.2)) < 5


def test_a_file_that_is_shorter_than_it_should_be_is_an_error(pair, file):
    assert pair[0].send_file(file, 2**20 - 5, 10, 5.0) == 5
    took(lambda: pair[0].send_file(file, 2**20, 5, 5.0), OSError)
    assert pair[0].send_file(-1, 0, 5, 5.0) == 0
