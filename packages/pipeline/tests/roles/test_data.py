import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from tailrace.contracts import (
    Abort,
    Discarded,
    FinishReason,
    Measure,
    Measured,
    PartialDelta,
    Purpose,
    Reason,
    TrajectoryRef,
    Why,
)
from tailrace.pipeline.roles.data import DataRole
from tailrace.pipeline.roles.prompts import Prompts
from tailrace.runtime.errors import RoleError
from tailrace.runtime.executor.doors import Ready
from tailrace.trajstore import PromptFileError, TrajectoryStore

STOP = FinishReason.STOP


@pytest.fixture
def role(data_settings):
    role = DataRole(data_settings)
    yield role
    role.close()


def ref(name, prompt, group=0, **fields):
    return TrajectoryRef(name, group, 0, prompt=prompt, **fields)


def finish(role, *names, owner="r0#1", version=0, reward=1.0):
    role.begin(owner, version, [ref(name, index) for index, name in enumerate(names)], seq=9)
    deltas = [PartialDelta(name, 0, version, (5, 6), (-1.0, -2.0), STOP) for name in names]
    assert role.append(owner, deltas) == []
    if reward is not None:
        role.set_rewards(dict.fromkeys(names, reward))


def test_a_start_that_fails_leaves_the_store_to_the_next(data_settings):
    wrong = replace(data_settings.prompts, train=data_settings.store.parent / "nowhere.jsonl")
    with pytest.raises(PromptFileError, match="found no such file"):
        DataRole(replace(data_settings, prompts=wrong))
    TrajectoryStore(data_settings.store, open_timeout_s=0.0).close()


def test_prompts_are_found_by_their_index_and_purpose_whatever_the_names(role):
    role.begin("r0#1", 0, [ref("e-like-an-evaluation", 7, group=3), ref("7.0", 8, group=7)], seq=9)
    role.begin("r0#1", 0, [ref("x", 7, group=900, purpose=Purpose.EVAL, mode="forced")], seq=9)
    names = ["e-like-an-evaluation", "7.0", "x"]
    role.append("r0#1", [PartialDelta(name, 0, 0, (5,), (-1.0,), STOP) for name in names])
    items = {item.trajectory: item for item in role.to_score(names)}
    answers = [items[name].answer for name in names]
    assert answers == ["7", "8", "12"]  # 0 + 7, 0 + 8, and row 57: 5 + 7
    assert items["x"].response_text.startswith("= ")
    (evaluated,) = role.experiences(["x"])
    assert evaluated.metadata == {"prompt": 7, "mode": "forced", "purpose": "eval"}


def test_a_verifier_sees_no_text_of_the_tokens_that_end_a_response_or_a_turn(data_settings):
    """Neither at the end nor between turns, in the whole response as in its last turn; tokens are kept as they are.

    What an environment says stays whole, though a token of it may end a turn of the model's, as a line break may.
    """
    ends = (5, 9)
    words = Tokenizer.from_file(str(data_settings.prompts.tokenizer))
    role = DataRole(replace(data_settings, prompts=replace(data_settings.prompts, end_tokens=ends)))
    role.begin("r0#1", 0, [ref(name, 3) for name in ("a", "b", "c", "d")], seq=9)
    responses = {"a": (6, 7, 5), "b": (6, 7), "c": (6, 7, 9, 5), "d": (5,)}
    role.append("r0#1", [PartialDelta(n, 0, 0, t, (-1.0,) * len(t), STOP) for n, t in responses.items()])
    items = {item.trajectory: item for item in role.to_score(list(responses))}
    texts, says = role._prompts, {name: item.response_text for name, item in items.items()}
    assert says == {"a": says["b"], "b": texts.decode((6, 7)), "c": says["b"], "d": ""}
    assert says["b"]
    assert [each.tokens for each in role.experiences(["a"])] == [responses["a"]]
    role.begin("r0#1", 0, [ref("t", 3)], seq=9)
    role.append("r0#1", [PartialDelta("t", 0, 0, (6, 5), (-1.0, -2.0), turn_ends=True)])
    ((talk, *_),) = role.conversations(["t"])
    role.observe("t", talk.turns[0].serial, (8, 9), None, 0.0, b"")
    role.append("r0#1", [PartialDelta("t", 4, 0, (7, 5), (-1.0, -1.0), turn_ends=True)])
    ((talk, *_),) = role.conversations(["t"])
    role.observe("t", talk.turns[-1].serial, (8, 9), STOP, 1.0, None)
    (item,) = role.to_score(["t"])
    assert item.response_text == texts.decode((6, 8, 9, 7, 8, 9), (True, False, False, True, False, False))
    assert item.response_text == words.decode([6, 8, 9, 7, 8, 9], skip_special_tokens=False)
    assert item.metadata["turns"]["last"] == texts.decode((7,))
    role.close()


def test_special_tokens_that_end_something_are_said_nowhere(data_settings):
    words = Tokenizer.from_file(str(data_settings.prompts.tokenizer))
    special = min(token for token, added in words.get_added_tokens_decoder().items() if added.special)
    texts = Prompts(replace(data_settings.prompts, end_tokens=(special,)))
    assert texts.decode((6, special, 7, special, 8), (True, True, False, False, True)) == words.decode([6, 7, 8])


def test_turns_are_answered_and_scored_with_what_the_verifier_needs(role):
    role.begin("r0#1", 0, [ref("a", 3)], seq=9)
    role.append("r0#1", [PartialDelta("a", 0, 0, (5, 6), (-1.0, -2.0), turn_ends=True)])
    ((talk, prompt, begun),) = role.conversations(["a", "unknown"])
    assert (talk.turns[0].response, prompt.answer, begun) == ((5, 6), "3", "")
    assert role.observe("a", talk.turns[0].serial, (8, 9), None, 0.25, b"state").observation == (8, 9)
    (resume,) = role.begin("r1#1", 0, [ref("a", 3)], seq=9)
    assert (resume.kept_tokens, resume.turn_ended) == ((5, 6, 8, 9), False)
    role.append("r1#1", [PartialDelta("a", 4, 0, (7,), (-1.0,), turn_ends=True)])
    ((talk, *_),) = role.conversations(["a"])
    assert talk.session == b"state"
    role.observe("a", talk.turns[-1].serial, (10,), STOP, 1.0, None)
    (item,) = role.to_score(["a"])
    texts = role._prompts
    assert item.response_text == texts.decode((5, 6, 8, 9, 7, 10))
    assert item.metadata["turns"] == {"count": 2, "reward": 1.25, "done": True, "last": texts.decode((7,))}
    assert [(length.tokens, length.truncated) for length in role.finished_lengths(0)] == [(3, False)]
    role.begin("r0#1", 0, [ref("b", 3)], seq=9)
    role.append("r0#1", [PartialDelta("b", 0, 0, (5, 6), (-1.0, -2.0), turn_ends=True)])
    ((talk, *_),) = role.conversations(["b"])
    assert role.observe("b", talk.turns[0].serial, (), FinishReason.LENGTH, 0.0, None).finish is FinishReason.LENGTH
    role.to_score(["b"])
    assert [(length.tokens, length.truncated) for length in role.finished_lengths(1)] == [(2, True)]
    finish(role, "plain")
    assert "turns" not in role.to_score(["plain"])[0].metadata


def test_discards_are_answered(role, gather):
    finish(role, "a", "b")
    role.begin("r0#1", 0, [ref("c", 2), ref("d", 3)], seq=9)
    role.append("r0#1", [PartialDelta(name, 0, 0, (5, 6, 7), (-1.0,) * 3) for name in ("c", "d")])
    role.submit([Abort(3, ("a", "c", "unknown"), ("r0",), Reason(Why.SURPLUS_GROUP)), Abort(4, ())])
    assert gather(role, lambda events: len(events) == 2, "two answers") == [Discarded(3, 3), Discarded(4)]
    assert role.append("r0#1", [PartialDelta("c", 3, 0, (5,), (-1.0,))]) == ["c"]
    assert [item.trajectory for item in role.to_score(["a", "b", "c", "unknown"])] == ["b"]
    role.set_rewards({"a": 1.0})  # it came too late
    role.begin("r1#1", 0, [ref("a", 0)], seq=9)
    role.set_rewards({"a": 1.0})  # it was begun anew meanwhile
    assert role.ready() == Ready(held=("b",), partial={"d": (0, 3), "a": (0, 0)})


def test_prompts_are_as_long_as_an_engine_gets_them(role, gather):
    role.submit([Measure(5, (8, 3))])
    (measured,) = gather(role, lambda events: len(events) == 1, "one answer")
    begun = role.begin("r0#1", 0, [ref("a", 8), ref("b", 3)], seq=9)
    assert measured == Measured((8, 3), tuple(len(resume.prompt_tokens) for resume in begun), 5)
    assert min(measured.tokens) > 0


def test_a_route_that_arrives_after_its_abort_begins_nothing(role, gather):
    """The replica was cut off: otherwise the tokens of "a" would stay in the store, which has dropped them already."""
    role.submit([Abort(8, ("a",), ("r0",), Reason(Why.SURPLUS_SAMPLE))])
    gather(role, lambda events: events == [Discarded(8)], "its answer")
    assert [resume.trajectory for resume in role.begin("r0#1", 0, [ref("a", 0), ref("b", 1)], seq=7)] == ["b"]
    assert role.append("r0#1", [PartialDelta("a", 0, 0, (5,), (-1.0,))]) == ["a"]
    assert role.ready().partial == {"b": (0, 0)}
    assert [resume.trajectory for resume in role.begin("r1#1", 0, [ref("a", 0)], seq=9)] == ["a"]  # it begins anew
    assert role.begin("r0#1", 0, [ref("a", 0)], seq=7) == []
    assert role.append("r1#1", [PartialDelta("a", 0, 0, (5,), (-1.0,))]) == []  # and is still its own


def test_what_it_cannot_do_breaks_it(role, gather):
    finish(role, "a")
    role.consume(["a"], 1)
    role.submit([Abort(1, ("a",))])
    with pytest.raises(Exception, match="was not trained on"):
        gather(role, lambda events: events, "anything")


def test_a_command_of_another_role_breaks_it(role, gather):
    from tailrace.contracts import Score

    role.submit([Score(1, ("a",))])
    with pytest.raises(RoleError, match="got Score 1"):
        gather(role, lambda events: events, "anything")


def test_the_first_start_and_another_controller(role):
    assert role.ready() == Ready(held=(), partial={})
    role.submit([Abort(1, ())])
    role.adopt()
    assert role.events(0.1) in ([], [Discarded(1)])


def test_restarted_over_its_store_it_keeps_everything(data_settings):
    role = DataRole(data_settings)
    finish(role, "trained", "scored")
    finish(role, "unscored", reward=None)
    role.begin("r0#1", 3, [ref("running", 0)], seq=9)
    role.append("r0#1", [PartialDelta("running", 0, 3, (5, 6, 7), (-1.0,) * 3)])
    role.consume(["trained"], 4)
    role.close()
    role = DataRole(data_settings)
    assert role.ready(None) == Ready(held=("scored", "unscored"), partial={"running": (3, 3)})
    role.consume(["trained"], 4)  # the trainer asks again, since nobody answered
    assert role.append("r0#1", [PartialDelta("running", 0, 3, (5, 6, 7), (-1.0,) * 3)]) == []
    assert role.append("r0#1", [PartialDelta("running", 3, 3, (8,), (-1.0,), STOP)]) == []
    assert role.experiences(["running"])[0].tokens == (5, 6, 7, 8)
    audit = role.audit()
    assert (audit["consumed"], audit["complete"], audit["inconsistent"]) == (1, 3, [])
    role.close()


def test_a_run_that_starts_again_rolls_back_and_fences_everybody_off(data_settings):
    role = DataRole(data_settings)
    finish(role, "kept", "again")
    role.consume(["kept"], 1)
    role.consume(["again"], 2)
    role.begin("r0#1", 1, [ref("running", 0)], seq=9)
    role.close()
    role = DataRole(data_settings)
    assert role.ready(1) == Ready(held=("again",), partial={"running": (1, 0)})
    assert role.append("r0#1", [PartialDelta("running", 0, 1, (5,), (-1.0,))]) == ["running"]
    role.roll_back(0)
    assert set(role.ready(None).held) == {"again", "kept"}
    role.close()


KILLED = """
import pickle, sys
from tailrace.contracts import FinishReason, TrajectoryRef
from tailrace.pipeline.roles.data import DataRole
from tailrace.contracts import PartialDelta
role = DataRole(pickle.loads(bytes.fromhex(sys.argv[1])))
role.ready()
for number in range(10**6):
    name = f"t{number}"
    role.begin("r0#1", 0, [TrajectoryRef(name, number, 0, prompt=number)], seq=9)
    role.append("r0#1", [PartialDelta(name, 0, 0, (5, 6), (-1.0, -1.0))])
    print("partial", name, flush=True)
    role.append("r0#1", [PartialDelta(name, 2, 0, (7,), (-1.0,), FinishReason.STOP)])
    print("held", name, flush=True)
"""


def test_killed_in_the_middle_nothing_that_it_answered_is_lost(data_settings):
    import pickle

    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, pickle.dumps(data_settings).hex()], stdout=subprocess.PIPE, text=True
    )
    lines = [process.stdout.readline() for _ in range(41)]
    process.send_signal(signal.SIGKILL)
    lines += process.stdout.readlines()
    process.wait()
    process.stdout.close()
    promised = [line.split() for line in lines if line.endswith("\n")]
    role = DataRole(data_settings)
    found = role.ready(None)
    held = {name for what, name in promised if what == "held"}
    assert held <= set(found.held)
    for name in {name for what, name in promised if what == "partial"} - held:
        if name not in found.held:
            assert found.partial[name] == (0, 2)
            last = [PartialDelta(name, 2, 0, (7,), (-1.0,), STOP)]  # the replica lives, and asks again
            assert role.append("r0#1", last) == []
    assert role.audit()["inconsistent"] == []
    role.close()
