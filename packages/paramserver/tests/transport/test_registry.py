import importlib.util
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.paramserver.errors import TransportUnavailable
from tailrace.paramserver.transport.protocol import BUILT_IN, INLINE, known, load, negotiate, usable

names = st.lists(st.sampled_from(["shm", "tcp", "ucx", "nixl", "other"]), unique=True)


def test_an_unknown_name_is_one_line_with_the_known_ones():
    with pytest.raises(TransportUnavailable) as caught:
        load("carrier-pigeon")
    assert str(caught.value) == (
        f"found the transport 'carrier-pigeon', expected one of {', '.join(known())}, or inline"
    )


@given(names, names, st.booleans())
def test_what_is_negotiated_is_what_both_have_and_the_reader_likes_best(offered, wanted, same_host):
    chosen = negotiate(offered, wanted, same_host=same_host)
    both = [name for name in wanted if name in offered and (name != "shm" or same_host)]
    if same_host and "shm" in both:
        assert chosen == "shm"
    else:
        assert chosen == (both[0] if both else INLINE)


@pytest.mark.parametrize(
    ("offered", "wanted", "same_host", "expected"),
    [
        (["shm", "tcp"], ["tcp", "shm"], True, "shm"),
        (["shm", "tcp"], ["shm", "tcp"], False, "tcp"),
        (["nixl", "ucx"], ["ucx", "nixl"], False, "ucx"),
        (["nixl", "ucx"], [], True, INLINE),
        ([], ["nixl"], True, INLINE),
        (["shm"], ["shm"], False, INLINE),
    ],
)
def test_choices(offered, wanted, same_host, expected):
    assert negotiate(offered, wanted, same_host=same_host) == expected


def test_what_cannot_be_used_is_not_offered():
    found = usable(["no such", "tcp", "shm"])
    assert "tcp" in found
    assert "no such" not in found


def test_memory_that_is_no_file_is_refused_by_shared_memory():
    class Memory:
        view, fd, name = memoryview(b"abc"), -1, "plain memory"

    with pytest.raises(TransportUnavailable, match="found 'plain memory' without a file descriptor"):
        load("shm").export(Memory())


@pytest.mark.parametrize("name", ["tcp", "ucx", "nixl"])
def test_an_export_on_all_interfaces_is_refused(name):
    class Memory:
        view, fd, name = memoryview(bytearray(3)), -1, "plain memory"

    try:
        transport = load(name, host="0.0.0.0")
    except TransportUnavailable as error:
        pytest.skip(str(error))
    with pytest.raises(TransportUnavailable, match="expected the address under which readers reach this process"):
        transport.export(Memory())


@pytest.mark.parametrize(("name", "module"), [("ucx", "ucxx"), ("nixl", "nixl")])
def test_a_transport_without_its_library_says_what_to_install(name, module, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(TransportUnavailable) as caught:
        load(name)
    assert str(caught.value) == (
        f"transport {name!r} cannot be used here: {module} is not installed; pip install 'tailrace-paramserver[{name}]'"
    )


def test_the_package_registers_its_own_transports_like_anybody():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    registered = project.get("entry-points", {}).get("tailrace.transport")
    if registered is None:
        pytest.skip("the package registers no transports yet")
    assert registered == BUILT_IN


def test_a_plugin_that_is_no_transport_is_refused(monkeypatch):
    monkeypatch.setitem(BUILT_IN, "odd", "builtins:dict")
    with pytest.raises(TransportUnavailable, match="transport 'odd': found a dict, expected a Transport"):
        load("odd")
