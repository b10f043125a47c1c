"""A machine's file: read as it was written, and refused in one line."""

import re

import pytest
from profile_machine import machine

from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.profile.machine import SHIPPED, load_machine, machine_toml, parse_machine


@pytest.mark.parametrize("found", [machine(), machine(sharing=None), machine(name='a "b"\x7f')])
def test_what_was_written_is_read(found):
    assert parse_machine(machine_toml(found), "x") == found


def test_a_file_and_a_shipped_one(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(machine_toml(machine()))
    assert load_machine(path) == machine()
    for name in SHIPPED:
        assert load_machine(name).name == name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("format = 1", "format = 7"), "found format 7, expected 1: measure the machine anew"),
        (("k1 = 1e-06", "k1 = -1.0"), "key 'decode.k1': found -1.0, expected: greater than or equal to 0"),
        (("k1 = 1e-06", "k9 = 1.0"), "key 'decode.k1': found"),
        (("report_s = 0.05", "report_s = 0"), "key 'delays.report_s': found 0, expected: greater than 0"),
        (("k1 = 1e-06", "k1 = 1e-06\nk9 = 1.0"), "found the unknown key 'decode.k9'"),
        (("cores = 2", 'cores = "two"'), "key 'sharing.cores': found 'two', expected: a valid integer"),
        (
            ("signal = { points = [[0, 0]] }", "signal = { points = [[3.0, 0.0], [2.0, 0.0]] }"),
            "expected: [version, value] points with versions increasing",
        ),
        (("[decode]", "[decode"), "found a file that is not TOML"),
    ],
)
def test_what_is_wrong_is_one_line(change, message):
    text = machine_toml(machine())
    assert change[0] in text
    with pytest.raises(ProfileError, match=re.escape(message)) as caught:
        parse_machine(text.replace(*change), "mine.toml")
    assert str(caught.value).startswith("mine.toml")
    assert "\n" not in str(caught.value)


def test_no_such_profile(tmp_path):
    with pytest.raises(ProfileError, match=r"found 'tow-cores', expected 'two-cores', or a TOML file"):
        load_machine("tow-cores")
    with pytest.raises(ProfileError, match=r"found no readable profile .*gone\.toml \(No such file or directory\)"):
        load_machine(tmp_path / "gone.toml")
