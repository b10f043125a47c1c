"""Verifiers by reference: a file or a module, without a package."""

import textwrap

import pytest

from tailrace.reward import ScoreItem, Scorer, ScoringFailure
from tailrace.reward.errors import UnknownVerifierError
from tailrace.reward.testing import check_verifier
from tailrace.reward.verifiers import is_reference, load_reference

SOURCE = """
def verify(response, answer, metadata):
    return 1.0 if answer in response else min(0.5, len(response) / 100)
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "my_task.py"
    path.write_text(SOURCE)
    return path


def test_a_function_of_a_file(source):
    reference = f"{source}:verify"
    assert is_reference(reference)
    assert not is_reference("math")
    check_verifier(load_reference(reference), right="it is 12", wrong="", answer="12")
    with Scorer({"mine": reference}) as scorer:
        (right, wrong) = scorer.score([ScoreItem("a", "it is 12", "12", "mine"), ScoreItem("b", "no", "12", "mine")])
    assert (right.reward, wrong.reward) == (1.0, 0.02)


def test_a_function_of_a_module():
    assert load_reference("tailrace.reward.verifiers.basic:exact")("<answer>a</answer>", "a", {}) == 1.0


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("{}:judge", "found no function 'judge' in"),
        ("nowhere.py:verify", "found no file nowhere.py"),
        ("{}:SOURCE", "found no function 'SOURCE'"),
    ],
)
def test_what_is_not_there(source, reference, says):
    with pytest.raises(UnknownVerifierError, match=says):
        load_reference(reference.format(source))


def test_a_file_that_does_not_import_is_a_failure_and_no_reward(tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_of_this_name")
    with Scorer({"mine": f"{tmp_path / 'broken.py'}:verify"}) as scorer:
        (outcome,) = scorer.score([ScoreItem("a", "", "", "mine")])
    assert isinstance(outcome, ScoringFailure)
    assert "nothing_of_this_name" in outcome.reason


def judged(tmp_path, source, response="0.5", name="v.py", **files):
    for file, text in {name.removesuffix(".py"): source, **files}.items():
        (tmp_path / f"{file}.py").write_text(textwrap.dedent(text))
    with Scorer({"mine": f"{tmp_path / name}:verify"}, timeout_s=60) as scorer:
        (outcome,) = scorer.score([ScoreItem("a", response, "0.5", "mine", {"depth": 2})])
    return outcome


POOL = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

@dataclass
class Told:
    value: float

def work(told):
    return told.value

def verify(response, answer, metadata):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("{how}")) as pool:
        return pool.submit(work, Told(float(response))).result()
"""
HOMES = {
    "a dataclass with deferred annotations": """
        from __future__ import annotations
        from dataclasses import dataclass, field
        from typing import ClassVar, NamedTuple, get_type_hints
        @dataclass(slots=True)
        class Out:
            limit: ClassVar[int] = 3
            reward: float
            notes: list[str] = field(default_factory=list)
        class Pair(NamedTuple):
            first: Out
        def verify(response, answer, metadata):
            assert get_type_hints(Out)["reward"] is float
            return Pair(Out(float(response))).first.reward
        """,
    "pickling": """
        import copy, pickle
        class Mark:
            def __init__(self, value): self.value = value
        def verify(response, answer, metadata):
            return copy.deepcopy(pickle.loads(pickle.dumps(Mark(float(response))))).value
        """,
    "a pool that forks": POOL.replace("{how}", "fork"),
    "a pool that spawns": POOL.replace("{how}", "spawn"),
    "a program that reads its standard input": """
        import subprocess
        def verify(response, answer, metadata):
            assert subprocess.run(["cat"], capture_output=True, check=True).stdout == b""
            return float(response)
        """,
    "an enum and a cache": """
        import enum, functools
        class Grade(enum.Enum):
            HALF = 0.5
        @functools.cache
        def of(text): return Grade(float(text))
        def verify(response, answer, metadata): return of(response).value
        """,
    "an object that is called": """
        class Half:
            cpu_budget_s = 5.0
            def __call__(self, response, answer, metadata): return float(response)
        verify = Half()
        """,
    "any arguments": "def verify(*args, **kwargs): return float(args[0])",
    "other names": "def verify(text, gold, info=None): return float(text) if info['depth'] == 2 else 0.0",
    "a method": """
        class Task:
            def judge(self, response, answer, metadata): return float(response)
        verify = Task().judge
        """,
    "an argument that is bound beforehand": """
        from functools import partial
        def scaled(scale, response, answer, metadata): return scale * float(response)
        verify = partial(scaled, 1)
        """,
}


@pytest.mark.parametrize("kind", HOMES)
@pytest.mark.cases(4)
def test_a_file_is_a_module_like_any_other(tmp_path, kind):
    outcome = judged(tmp_path, HOMES[kind])
    assert getattr(outcome, "reward", outcome) == 0.5


@pytest.mark.parametrize(
    "name", ["v.py", "math.py", "json.py", "code.py", "tailrace.py", "my-verifier.py", "numbers.py"]
)
def test_a_file_imports_its_siblings_whatever_its_name(tmp_path, name):
    package = tmp_path / "parts"
    package.mkdir()
    (package / "__init__.py").write_text("from .inner import FACTOR")
    (package / "inner.py").write_text("FACTOR = 2")
    source = """
        import math
        from helper_of_mine import scale
        def verify(response, answer, metadata):
            from parts import FACTOR
            return scale(math.sqrt(float(response) ** 2)) * FACTOR
        """
    outcome = judged(tmp_path, source, name=name, helper_of_mine="def scale(x): return x / 2")
    assert getattr(outcome, "reward", outcome) == 0.5


def test_files_of_several_directories_have_their_own_siblings_of_one_name(tmp_path):
    """The same names everywhere, imported early and late, in one worker, in any order of use."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "helper.py").write_text(f"WHO = {name!r}")
        (tmp_path / name / "late.py").write_text(f"WHO = {name!r}")
        (tmp_path / name / "verify.py").write_text(
            "from helper import WHO\n"
            "import pickle\n"
            "class Mark: pass\n"
            "def verify(response, answer, metadata):\n"
            "    import late\n"
            "    return type(pickle.loads(pickle.dumps(Mark()))) is Mark and (WHO, late.WHO) == (answer, answer)\n"
        )
    with Scorer({name: f"{tmp_path / name / 'verify.py'}:verify" for name in ("a", "b")}) as scorer:
        outcomes = scorer.score([ScoreItem(str(at), "", name, name) for at, name in enumerate("aabbabab")])
    assert [getattr(outcome, "correct", outcome) for outcome in outcomes] == [True] * 8


def test_two_functions_of_one_file_share_its_module(tmp_path):
    path = tmp_path / "counted.py"
    path.write_text(
        "seen = []\ndef one(r, a, m): return float(len(seen))\ndef two(r, a, m): return seen.append(r) or 1.0\n"
    )
    with Scorer({name: f"{path}:{name}" for name in ("one", "two")}) as scorer:
        names = ["one", "two", "one"]
        outcomes = scorer.score([ScoreItem(str(at), "", "", name) for at, name in enumerate(names)])
    assert [outcome.reward for outcome in outcomes] == [0.0, 1.0, 1.0]


FOREIGN = {
    "verl": "def verify(data_source, solution_str, ground_truth, extra_info=None): return 1.0",
    "verl of a data set": "def verify(solution_str, ground_truth, method='strict', format_score=0.0, score=1.0): return 1.0",
    "verl of two": "def verify(solution_str, ground_truth): return 1.0",
    "TRL": "def verify(prompts, completions, **kwargs): return [1.0 for _ in completions]",
    "TRL with a column": "def verify(completions, ground_truth, **kwargs): return [1.0 for _ in completions]",
    "TRL with three": "def verify(prompts, completions, answer, **kwargs): return [1.0]",
    "TRL with keywords": "def verify(*, completions, **kwargs): return [1.0]",
    "TRL with three columns": "def verify(completions, solution, extra_info): return [1.0]",
    "OpenRLHF": "def verify(queries, prompts, labels): return 1.0",
    "prime": "def verify(completion, answer, state, task): return 1.0",
    "of one argument": "def verify(response): return 1.0",
    "swapped": "def verify(answer, response, metadata): return 1.0",
    "prompt first": "def verify(prompt, response, answer): return 1.0",
    "metadata first": "def verify(metadata, response, answer): return 1.0",
    "asynchronous": "async def verify(response, answer, metadata): return 1.0",
    "an object that is asynchronous": """
        class Late:
            async def __call__(self, response, answer, metadata): return 1.0
        verify = Late()
        """,
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.cases(5)
def test_a_function_that_expects_something_else_is_refused_in_a_line_with_the_right_signature(tmp_path, kind):
    outcome = judged(tmp_path, FOREIGN[kind])
    assert isinstance(outcome, ScoringFailure)
    assert "verify(response, answer, metadata)" in outcome.reason or "not asynchronous" in outcome.reason
    assert "\n" not in outcome.reason
    assert outcome.reason.startswith(("verifier 'mine': found verify(", "verifier 'mine': found Late("))
