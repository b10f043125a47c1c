import socket

import pytest

from tailrace.paramserver.transport.listener import ended, gone
from tailrace.paramserver.transport.reading import await_transfer


@pytest.fixture
def ends():
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = socket.create_connection(server.getsockname())
        near, _ = server.accept()
    with near, far:
        yield near, far


def after(turns):
    left = iter(range(turns))
    return lambda: next(left, None) is None


def test_an_end_that_sends_is_not_gone_and_one_that_closed_is_whatever_it_sent(ends):
    near, far = ends
    assert (gone(near), ended(near)) == (False, False)
    far.sendall(b"next")
    assert near.recv(1, socket.MSG_PEEK) == b"n"
    assert (gone(near), ended(near)) == (False, True)
    await_transfer(after(500), near, None, gone)
    far.close()
    with pytest.raises(EOFError):
        await_transfer(lambda: False, near, None, gone)
    assert near.recv(4) == b"next"


def test_a_connection_shut_down_under_a_transfer_ends_it(ends):
    near, far = ends
    far.sendall(b"next")
    near.shutdown(socket.SHUT_RDWR)
    with pytest.raises(EOFError):
        await_transfer(lambda: False, near, None, gone)
