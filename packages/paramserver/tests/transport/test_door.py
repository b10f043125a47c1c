import threading

import pytest

from tailrace.paramserver.errors import RelayUnreachable
from tailrace.paramserver.transport.tcp import Tcp


class Memory:
    name, fd, view = "memory", -1, memoryview(b"abc")


def test_a_reader_for_whom_there_is_no_thread_leaves_the_others(monkeypatch):
    """The door stood, and let nobody in any more."""
    start, failed = threading.Thread.start, []

    def full(thread):
        if thread.name == "tailrace export reader" and not failed:
            failed.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", full)
    transport = Tcp()
    export = transport.export(Memory())
    try:
        with pytest.raises(RelayUnreachable):
            transport.open(export.descriptor, timeout_s=5)
        assert failed
        source, found = transport.open(export.descriptor, timeout_s=5), bytearray(3)
        source.read_into(memoryview(found), 0, 5)
        source.close()
    finally:
        export.close()
    assert found == b"abc"
