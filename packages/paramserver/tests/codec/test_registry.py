import subprocess
import sys

import pytest

from tailrace.paramserver import ParamServerError, ProtocolError
from tailrace.paramserver.codec import registry
from tailrace.paramserver.errors import CodecUnavailable, CodecUnknown, PayloadMalformed, from_wire, to_wire


def test_delta_is_there():
    assert registry.available() == ("delta",)
    assert registry.codec("delta").name == "delta"


@pytest.mark.parametrize(
    "name", ["", "Delta", "delta ", "../delta", "__class__", None, 3, ["delta"], {"delta": 1}, "x" * 10_000]
)
def test_other_names_are_refused(name):
    with pytest.raises(CodecUnknown, match="expected one of delta") as caught:
        registry.codec(name)
    assert isinstance(caught.value, ProtocolError)
    assert len(str(caught.value)) < 120


def test_a_codec_that_lacks_something_is_not_offered(monkeypatch):
    monkeypatch.setattr(type(registry.codec("delta")), "unavailable", lambda self: "no numpy")
    assert registry.available() == ()
    with pytest.raises(CodecUnavailable, match="'delta' cannot be used here: no numpy"):
        registry.codec("delta")


@pytest.mark.parametrize("kind", [PayloadMalformed, CodecUnknown, CodecUnavailable])
def test_errors_cross_a_wire_with_their_message(kind):
    again = from_wire(to_wire(kind("what was found")))
    assert isinstance(again, ParamServerError)
    assert str(again) == "what was found"


def test_the_registry_imports_no_numpy():
    code = "import sys, tailrace.paramserver.codec.registry as r; r.available(); print({'numpy', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"
