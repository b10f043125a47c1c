"""Records refuse what does not line up; events and commands survive JSON; plugins fail loudly."""

import itertools
import json
import re
import subprocess
import sys
import types
import typing
import unicodedata
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace import contracts as c
from tailrace.contracts import codec, plugins
from tailrace.contracts.testing.reasons import NAMES_ANOTHER, NUMBERS


def exactly_scaled(low, high):
    """Two rewards as exact numbers: their distance, and the larger magnitude."""
    low, high = Fraction(low), Fraction(high)
    return abs(high - low), max(abs(low), abs(high))


@given(st.lists(st.floats(-1e6, 1e6), max_size=6), st.randoms())
def test_rewards_are_the_same_if_no_two_differ_by_more_than_rounding(rewards, random):
    found = c.same_rewards(rewards)
    pairs = [exactly_scaled(one, other) for one, other in itertools.combinations(rewards, 2)]
    if all(apart <= most / 2**22 for apart, most in pairs):
        assert found
    if any(apart > max(Fraction(2, 10**9), most / 2**20) for apart, most in pairs):
        assert not found
    random.shuffle(rewards)
    assert c.same_rewards(rewards) == found


@pytest.mark.parametrize(
    ("rewards", "same"),
    [
        ([0.1 + 0.2, 0.3], True),
        ([0.1 + 0.2 - 0.3, 0.0], True),
        ([sum([0.1] * 10), 1.0], True),
        ([-(0.1 + 0.2), -0.3], True),
        ([1e6 * (0.1 + 0.2), 3e5], True),
        ([0.10000000149011612, 0.1], True),  # in single precision
        ([0.0, -0.0], True),
        ([], True),
        ([1e-3, 2e-3], False),
        ([1e-6, 2e-6], False),
        ([1_000_000.0, 1_000_001.0], False),
        ([1.0, 0.99999], False),
        ([1.0, -1.0], False),
    ],
)
def test_which_rewards_are_the_same(rewards, same):
    assert c.same_rewards(rewards) is same


KINDS = [*typing.get_args(c.Event), *typing.get_args(c.Command)]
st.register_type_strategy(Mapping, lambda kind: st.dictionaries(*map(st.from_type, typing.get_args(kind))))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_events_and_commands_survive_json(kind):
    @settings(max_examples=40, deadline=None)
    @given(st.from_type(kind))
    def survives(message):
        text = json.dumps(c.encode(message), allow_nan=True)
        # A default of 0.0 is left out, so -0.0 comes back without its sign.
        assert repr(c.decode(json.loads(text))).replace("-0.0", "0.0") == repr(message).replace("-0.0", "0.0")
        assert json.dumps(message, default=codec.encode_level) == text

    survives()


HOSTILE = (
    "\x1b]0;a title\x07\x1b[2J", "a\nforged: line", "\r\x08\x08over", "\x9b31m", "\x7f\x00", "\u202egnp.exe",
    "\u2066\u2069\u200b",
    "\u2028line\u2029", "\ud800", "\x85next", "\xad", "\U000e0041",
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_what_others_wrote_is_recorded_as_it_can_be_shown(text):
    """In every event with a reason, also as it comes out of a log; what can be seen is left alone."""
    for made in (
        c.ScoringFailed("0.0", text),
        c.Refused("r0", "0.0", text),
        c.PullFailed("r0", 1, text),
        c.Down("replica", "r0", text),
        c.PredictionFailed(0, text),
        c.CallFailed("0.0", text),
    ):
        assert made.reason.isprintable()
        assert made.reason == c.shown(text) == c.shown(c.shown(text))
        again = codec.decode(
            json.loads(json.dumps(codec.encode(made)).replace(json.dumps(made.reason), json.dumps(text)))
        )
        assert again == made


@given(st.text())
def test_a_shown_text_has_nothing_that_acts_and_the_rest_unchanged(text):
    found = c.shown(text, keep="\n")
    assert all(letter == "\n" or unicodedata.category(letter) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for letter in found)
    found.encode()
    if all(unicodedata.category(letter) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for letter in text):
        assert found == text


def test_each_command_that_changes_what_happens_to_something_says_why():
    says = {
        kind.__name__
        for kind in typing.get_args(c.Command)
        if {"reason", "reasons"} & typing.get_type_hints(kind).keys()
    }
    # Of each of these there is one reason only: it is time to.
    does = {
        "Checkpoint",
        "Publish",
        "Reveal",
        "Score",
        "Call",
        "Close",
        "Predict",
        "Measure",
        "Accumulate",
        "Offload",
        "Step",
        "Finish",
    }
    assert says | does == {kind.__name__ for kind in typing.get_args(c.Command)}
    assert not says & does


@pytest.mark.parametrize("why", c.Why)
def test_every_reason_survives_in_every_command(why):
    reason = c.Reason(why, "r7", {"version": 3, "least": 0.25})
    commands: list[c.Command] = [
        c.Route(1, "r0", (c.TrajectoryRef("a", 0, 0), c.TrajectoryRef("b", 0, 1)), reasons=(reason, c.CHOSEN)),
        c.Interrupt(2, "r0", ("a",), reason=reason),
        c.Abort(3, ("a",), ("r0",), reason),
        c.Pull(4, "r0", 3, reason=reason),
        c.Start(5, "replica", "r1", reason=reason),
        c.Stop(6, "replica", "r1", reason),
        c.Restart(7, "replica", "r1", reason=reason),
    ]
    for command in commands:
        assert c.decode(json.loads(json.dumps(c.encode(command)))) == command


def test_a_route_has_one_reason_for_all_or_one_for_each():
    each = c.Route(1, "r0", (), reasons=(c.CHOSEN, c.Reason(c.Why.MOVED, "r1")))
    assert [each.reason(index).why for index in (0, 1)] == [c.Why.CHOSEN, c.Why.MOVED]
    assert c.Route(1, "r0", ()).reason(9) is c.CHOSEN
    assert "reasons" not in c.encode(c.Route(1, "r0", ()))


def test_any_mapping_of_numbers_is_written():
    message = c.Pull(1, "r0", 3, reason=c.Reason(c.Why.BEHIND, numbers=types.MappingProxyType({"version": 3})))
    assert c.encode(message)["reason"] == {"why": "behind", "numbers": {"version": 3}}


@pytest.mark.parametrize("why", c.Why)
def test_the_suites_know_the_numbers_that_the_documentation_lists(why):
    (said,) = re.findall(rf"^    {why.name}: (.*?)(?=^    [A-Z_]+:|^ *$|\Z)", c.Why.__doc__, re.S | re.M)
    listed = set(re.findall(r"`(\w+)`", said))
    assert ("who" in listed) == (why in NAMES_ANOTHER), said
    counted = {"gain", "least"} if why is c.Why.CHOSEN else set()
    assert listed - {"who"} == NUMBERS.get(why, counted), said


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
        ({"is": "Up", "role": "trainer", "id": "0", "partial": {"3": [1]}}, "Up: "),
        ({"is": "Scored", "trajectory": "t", "reward": 10**400}, "Scored: "),
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


@st.composite
def responses(draw):
    """Segments, and beside them one flag and one version for each token."""
    segments, flags, versions = [], [], []
    version = draw(st.integers(0, 3))
    for size, observation in draw(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=8)):
        if not observation:
            version = draw(st.integers(0, 5))
        logprobs = (0.0 if observation else -1.5,) * size
        segments.append(c.Segment(version, tuple(range(size)), logprobs, observation))
        flags += [observation] * size
        versions += [version] * size
    return tuple(segments), flags, versions


@given(responses())
def test_observations_are_told_from_what_was_generated_token_by_token(drawn):
    segments, flags, versions = drawn
    experience = c.Experience("0.0", 0, (9,), segments)
    assert experience.generated == tuple(not flag for flag in flags)
    assert len(experience.tokens) == len(experience.logprobs) == len(experience.generated)
    assert experience.generated_tokens == flags.count(False)
    began = [index for index, flag in enumerate(flags) if not flag and (not index or flags[index - 1])]
    assert experience.turns == len(began)
    last = itertools.takewhile(lambda index: not flags[index], range(began[-1], len(flags))) if began else ()
    assert experience.last_turn == tuple(experience.tokens[index] for index in last)
    of_generated = [version for version, flag in zip(versions, flags, strict=True) if not flag]
    if of_generated:  # a segment without tokens has a version too
        assert experience.oldest_version <= min(of_generated)
        assert experience.newest_version >= max(of_generated)


def test_the_versions_of_an_experience_are_those_of_generated_tokens():
    segments = (c.Segment(4, (1,), (-1.0,)), c.Segment(2, (2,), (0.0,), observation=True), c.Segment(6, (3,), (-1.0,)))
    experience = c.Experience("0.0", 0, (9,), segments)
    assert (experience.oldest_version, experience.newest_version, experience.turns) == (4, 6, 2)


def test_no_policy_drew_an_observation():
    with pytest.raises(ValueError, match="an observation of 2 tokens came with log-probabilities"):
        c.Segment(0, (1, 2), (0.0, -0.5), observation=True)


def test_one_delta_does_not_end_both_a_turn_and_the_response():
    with pytest.raises(ValueError, match="trajectory a: found the end of a turn and of the response"):
        c.PartialDelta("a", 0, 0, (1,), (-1.0,), c.FinishReason.STOP, turn_ends=True)


def test_an_unknown_plugin_names_the_group():
    with pytest.raises(c.PluginError, match=r"'nobody' in group tailrace\.nothing"):
        plugins.load("tailrace.nothing", "nobody")


@pytest.mark.parametrize(("place", "prints"), [(0, "Finished(replica='r0'"), (1, "True")])
def test_the_readme_examples_run(place, prints, capsys):
    text = (Path(__file__).parents[1] / "README.md").read_text()
    exec(re.findall(r"```python\n(.*?)```", text, re.S)[place], {"__name__": "example"})
    assert prints in capsys.readouterr().out


def test_importing_it_imports_only_the_standard_library():
    code = "import sys; before = set(sys.modules); import tailrace.contracts; print(*set(sys.modules) - before)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    foreign = {name.partition(".")[0] for name in out.split()} - set(sys.stdlib_module_names) - {"tailrace"}
    assert not foreign


def test_a_delta_has_one_log_probability_for_each_token_and_a_place():
    with pytest.raises(ValueError, match="trajectory a: found 2 tokens and 1 log-probabilities, expected one for each"):
        c.PartialDelta("a", 0, 0, (1, 2), (0.0,))
    with pytest.raises(ValueError, match="found offset -1"):
        c.PartialDelta("a", -1, 0, (), ())


# ---- contexts that repeat an earlier one ---------------------------------------------------------------------------------

TOKENS = st.lists(st.integers(0, 1), max_size=5)


@given(TOKENS, st.lists(st.tuples(TOKENS, st.sampled_from(c.SpanKind)), max_size=8))
def test_what_contexts_repeat_is_the_longest_beginning_of_one_before(prompt, parts):
    contexts, repeated = [list(prompt)], 0
    for tokens, kind in parts:
        if kind is c.SpanKind.FRESH:
            alike = [next(n for n in range(len(tokens), -1, -1) if tokens[:n] == one[:n]) for one in contexts]
            repeated += max(alike)
            contexts.append([])
        contexts[-1].extend(tokens)
    assert c.repeated_tokens(prompt, parts) == repeated
    counted = sum(len(tokens) for tokens, _ in parts) - repeated
    assert max(map(len, contexts)) <= len(prompt) + counted
    assert c.repeated_tokens(prompt, [one for one in parts if one[1] is not c.SpanKind.FRESH]) == 0


@pytest.mark.parametrize("line", ["null", "5", '"x"', "[[1, 2]]"])
def test_a_line_that_is_no_object_is_no_message(line):
    with pytest.raises(c.CodecError, match="expected an object with the message kind as 'is'"):
        c.decode(json.loads(line))


@pytest.mark.parametrize("name", [None, 5])
def test_a_name_that_is_no_text_is_no_plugin(name):
    with pytest.raises(c.PluginError, match=f"found {name} in group tailrace.admission, expected one of"):
        plugins.load("tailrace.admission", name)
