"""What roles ask of each other: an answer of another type is named with its call, and types come only where they are needed."""

import subprocess
import sys
from typing import Any, get_type_hints

import pytest

from tailrace.contracts import Experience
from tailrace.pipeline.roles.calls import DATA_DOOR, RELAY_DOOR, DataCalls, RankCalls, RelayCalls
from tailrace.runtime.errors import AnswerError
from tailrace.runtime.executor import doors


class Answers:
    """A caller whose next answer is set."""

    def __init__(self, answer=None):
        self.answer, self.calls = answer, []

    def call(self, method, *arguments, **deadline):
        self.calls.append((method, arguments, deadline))
        return self.answer


def test_a_call_goes_out_by_its_name_with_the_callers_deadline():
    caller = Answers()
    assert DATA_DOOR.open(caller, 7.0).consume(["a"], 3) is None
    assert caller.calls == [("consume", (["a"], 3), {"timeout_s": 7.0})]
    assert RELAY_DOOR.open(Answers("address"), 1.0).memory(None) == "address"


EXPERIENCE = Experience("a", 0, (1,), (), reward=0.0)


@pytest.mark.parametrize(
    ("method", "arguments", "right", "wrong", "expected"),
    [
        ("append", ("r0#1", []), ["a"], [1], "list[str]"),
        ("append", ("r0#1", []), [], None, "list[str]"),
        ("experiences", (["a"],), [EXPERIENCE], [EXPERIENCE, "b"], "list[Experience]"),
        ("experiences", (["a"],), [EXPERIENCE], (EXPERIENCE,), "list[Experience]"),
        ("observe", ("a", 1, (), None, 0.0, None), None, "turn", "Turn | None"),
        ("conversations", (["a"],), [], [("a", "b")], "list[tuple[Conversation, Prompt, str]]"),
        ("to_score", (["a"],), [], ["a"], "list[ScoreItem]"),
        ("audit", (), {"consumed": 3}, {3: "consumed"}, "dict[str, Any]"),
        ("consume", (["a"], 1), None, 1, "None"),
    ],
)
def test_an_answer_of_another_type_is_named_with_its_call_in_one_line(method, arguments, right, wrong, expected):
    assert getattr(DATA_DOOR.open(Answers(right)), method)(*arguments) == right
    with pytest.raises(AnswerError) as found:
        getattr(DATA_DOOR.open(Answers(wrong)), method)(*arguments)
    said = str(found.value)
    assert said.startswith(f"data answered {method} with ")
    assert said.endswith(f"of type {type(wrong).__name__}, expected {expected}")
    assert "\n" not in said
    assert len(said) < 160


@pytest.mark.parametrize("protocol", [RankCalls, RelayCalls, DataCalls])
def test_every_answer_of_a_protocol_can_be_checked(protocol):
    for base in protocol.__mro__:
        for name in [name for name in vars(base) if not name.startswith("_")]:
            method = getattr(protocol, name)
            hints = get_type_hints(method, localns=doors._TypesOf(method))
            assert doors._answers(method)(object()) is (hints["return"] in (Any, object))


def test_a_role_loads_neither_store_nor_verifiers_for_what_others_ask():
    code = "import sys, tailrace.pipeline.roles.calls; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert {"tailrace.reward", "tailrace.trajstore", "tailrace.rollout", "asyncio"}.isdisjoint(done.stdout.split())
