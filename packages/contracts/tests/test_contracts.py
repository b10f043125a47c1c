"""Records refuse what does not line up; events and commands survive JSON; plugins fail loudly."""

import json
import re
import subprocess
import sys
import typing
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import contracts as c
from tailrace.contracts import codec, plugins

KINDS = [*typing.get_args(c.Event), *typing.get_args(c.Command)]
st.register_type_strategy(Mapping, lambda kind: st.dictionaries(*map(st.from_type, typing.get_args(kind))))
messages = st.one_of(*[st.from_type(kind) for kind in KINDS])


@given(messages)
def test_events_and_commands_survive_json(message):
    text = json.dumps(c.encode(message), allow_nan=True)
    assert repr(c.decode(json.loads(text))) == repr(message)
    assert json.dumps(message, default=codec.encode_level) == text


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "None"),
        ({"is": "Nonsense"}, "Nonsense"),
        ({"is": "Pulled", "replica": "r0"}, "version"),
        ({"is": "Pulled", "replica": "r0", "version": "3"}, "str '3', expected int"),
        ({"is": "Pulled", "replica": "r0", "version": True}, "bool True, expected int"),
        ({"is": "Pulled", "replica": "r0", "version": 3, "extra": 1}, "extra"),
        ({"is": "Finished", "replica": "r0", "trajectory": "t", "tokens": 1, "reason": "bored"}, "bored"),
        ({"is": "Score", "seq": 1, "trajectories": "t"}, "expected a list"),
    ],
)
def test_what_is_no_message_is_refused_by_name(data, says):
    with pytest.raises(c.CodecError, match=re.escape(says)):
        c.decode(data)


def test_a_segment_lines_up_or_is_not_built():
    with pytest.raises(ValueError, match="2 tokens came with 1"):
        c.Segment(0, (1, 2), (-0.5,))


def test_an_experience_knows_its_oldest_and_newest_version():
    segments = (c.Segment(4, (1,), (-1.0,)), c.Segment(6, (2, 3), (-2.0, -3.0)))
    experience = c.Experience("0.0", 0, (9,), segments)
    assert (experience.oldest_version, experience.newest_version) == (4, 6)
    assert experience.tokens == (1, 2, 3)
    assert experience.logprobs == (-1.0, -2.0, -3.0)


def test_an_unknown_plugin_names_the_group():
    with pytest.raises(c.PluginError, match=r"'nobody' in group tailrace\.nothing"):
        plugins.load("tailrace.nothing", "nobody")


def test_the_readme_example_runs(capsys):
    text = (Path(__file__).parents[1] / "README.md").read_text()
    exec(re.search(r"```python\n(.*?)```", text, re.S)[1], {})
    assert "Finished(replica='r0'" in capsys.readouterr().out


def test_importing_it_imports_only_the_standard_library():
    code = "import sys; before = set(sys.modules); import tailrace.contracts; print(*set(sys.modules) - before)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    foreign = {name.partition(".")[0] for name in out.split()} - set(sys.stdlib_module_names) - {"tailrace"}
    assert not foreign
