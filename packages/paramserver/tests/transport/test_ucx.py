import threading
import time
from collections import Counter

import pytest

from tailrace.paramserver.errors import ParamServerError
from tailrace.paramserver.transport import ucx
from tailrace.paramserver.transport.protocol import load


class Memory:
    """Host memory as a transport exports it."""

    def __init__(self, content):
        self.name, self.fd, self.view = "memory", -1, memoryview(bytearray(content))


def test_an_exporter_that_hears_late_of_a_range_sent_goes_on_with_the_next(monkeypatch):
    try:
        transport = load("ucx")
    except ParamServerError as error:
        pytest.skip(str(error))
    content = bytes(range(256)) * 4000
    asked, hear, reader = Counter(), ucx._done, threading.current_thread()

    def hear_late(worker, request):
        completed = hear(worker, request)
        if threading.current_thread() is reader:
            return completed
        time.sleep(0.0005)
        asked[id(worker)] += 1
        return completed and asked[id(worker)] % 150 == 0  # two looks at the reader, whose next request is there

    monkeypatch.setattr(ucx, "_done", hear_late)
    export = transport.export(Memory(content))
    source = transport.open(export.descriptor, timeout_s=20.0)
    try:
        for offset, nbytes in [(0, len(content)), (7, 900_000), (len(content) - 1, 1), (5, 5000)]:
            buffer = bytearray(nbytes)
            source.read_into(memoryview(buffer), offset, 20.0)
            assert buffer == content[offset : offset + nbytes], (offset, nbytes)
        assert asked.total() >= 3 * 150, "the exporter was not late"
    finally:
        source.close()
        export.close()
