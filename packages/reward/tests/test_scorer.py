"""Whatever a verifier does, every item gets its outcome in time, and no failure becomes a reward."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.reward import ScoreItem, Scorer, ScorerClosedError, ScoringError, ScoringFailure, ScoringResult
from tailrace.reward.errors import ItemError, SettingsError
from tailrace.reward.items import of_turns

HERE = Path(__file__).parent
BROKEN = (
    "sleeps_for_ever",
    "sleeps_with_a_child",
    "spins",
    "raises",
    "raises_what_it_read",
    "dies",
    "kills_its_process",
    "not_a_number",
    "chatters",
    "chatters_much",
    "says_why_and_dies",
    "says_why_and_hangs",
    "length",
    "returns",
)


def broken_scorer(**options):
    local = {name: f"broken_verifiers:{name}" for name in BROKEN}
    return Scorer({**local, "missing": "broken_verifiers:nothing_here"}, **options)


@pytest.fixture(scope="module", autouse=True)
def verifiers_on_the_path():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        yield


@pytest.fixture
def make_scorer():
    made = []

    def make(**options):
        made.append(broken_scorer(**options))
        return made[-1]

    yield make
    for scorer in made:
        scorer.close()


@pytest.fixture(scope="module")
def scorer():
    """One worker for all tests of what it says: whatever was asked of it before, it answers, or is replaced."""
    with broken_scorer() as scorer:
        yield scorer


def item(trajectory, verifier, response="<answer>12</answer>", answer="12", **metadata):
    return ScoreItem(trajectory, response, answer, verifier, metadata)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("workers", [1, 3])
def test_outcomes_come_in_order(make_scorer, workers):
    scorer = make_scorer(workers=workers)
    items = [item(str(n), "numeric", f"<answer>{n % 3}</answer>", "1") for n in range(50)]
    assert scorer.score(items) == [ScoringResult(str(n), float(n % 3 == 1)) for n in range(50)]
    assert scorer.score([]) == []


@pytest.mark.parametrize(
    ("reward", "correct", "right"),
    [
        (1.0, None, True), (0.0, None, False), (0.5, None, None), (1.0, False, False), (0.0, True, True),
        (sum([0.1] * 10), None, True), (0.1 + 0.2 - 0.3, None, False),
    ],
)  # fmt: skip
def test_a_reward_of_1_or_0_says_whether_an_answer_is_right_also_if_it_was_added_up(reward, correct, right):
    assert ScoringResult("a", reward, correct).right is right


@pytest.mark.parametrize(("verifier", "workers"), [("sleeps_for_ever", 1), ("spins", 2)])
def test_a_verifier_that_hangs_costs_its_own_item_only(make_scorer, workers, verifier):
    scorer = make_scorer(workers=workers, timeout_s=0.5)
    outcomes = scorer.score([item("a", "numeric"), item("b", verifier), item("c", "numeric"), item("d", "exact")])
    assert [type(outcome) for outcome in outcomes] == [ScoringResult, ScoringFailure, ScoringResult, ScoringResult]
    assert "no result within 0.5 s" in outcomes[1].reason
    assert outcomes[1].trajectory == "b"


def test_what_a_hung_verifier_started_is_killed_too(make_scorer, tmp_path):
    pid_file = tmp_path / "pid"
    scorer = make_scorer(timeout_s=2.0)
    (outcome,) = scorer.score([item("a", "sleeps_with_a_child", pid_file=str(pid_file))])
    assert isinstance(outcome, ScoringFailure)
    pid = int(pid_file.read_text())
    deadline = time.monotonic() + 10
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} outlived its worker"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("verifier", "reason"),
    [
        ("raises", "ZeroDivisionError: the verifier's own mistake"),
        ("dies", "ended with status 7"),
        ("not_a_number", "found the reward nan, expected a finite number"),
        ("numerik", "did you mean 'numeric'"),
        ("missing", "nothing_here"),
        ("broken_verifiers:length", "expected one of"),
    ],
)
def test_a_verifier_that_cannot_judge_is_a_failure_with_its_reason(scorer, verifier, reason):
    broken, after = scorer.score([item("a", verifier), item("b", "numeric")])
    assert isinstance(broken, ScoringFailure)
    assert reason in broken.reason
    assert after == ScoringResult("b", 1.0)


def test_what_a_verifier_raises_or_prints_cannot_act_on_a_terminal(scorer):
    hostile = "\x1b]0;title\x07\x1b[2J\ntailrace: all is well\r\u202e"
    items = [item("a", "raises_what_it_read", hostile), item("b", "no\x1b[2Jverifier")]
    (outcome, named) = scorer.score(items)
    assert outcome.reason.isprintable()
    assert outcome.reason.endswith(r"ValueError: \x1b]0;title\x07\x1b[2J\ntailrace: all is well\r\u202e")
    assert named.reason.isprintable()


def test_metadata_that_json_cannot_carry_is_a_failure(scorer):
    broken, after = scorer.score([item("a", "numeric", thing=object()), item("b", "numeric")])
    assert isinstance(broken, ScoringFailure)
    assert "no JSON" in broken.reason
    assert after == ScoringResult("b", 1.0)


def test_a_worker_that_died_while_it_waited_costs_no_score(make_scorer):
    scorer = make_scorer()
    for _ in range(2):
        (found,) = scorer.score([item("a", "numeric")])
        assert isinstance(found, ScoringResult), found
        (pid,) = scorer.pids
        os.kill(pid, signal.SIGKILL)
        while alive(pid):
            time.sleep(0.01)


def test_a_worker_that_is_killed_before_it_reads_a_request_costs_no_score(make_scorer):
    scorer = make_scorer()
    assert scorer.score([item("a", "numeric")]) == [ScoringResult("a", 1.0)]
    (pid,) = scorer.pids
    os.kill(pid, signal.SIGSTOP)  # it is alive when it is asked, and reads nothing
    killer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
    killer.start()
    assert scorer.score([item("b", "numeric")]) == [ScoringResult("b", 1.0)]
    killer.join()


@pytest.mark.parametrize(("before", "asked"), [([], 1), ([item("a", "numeric")], 2)])
def test_a_verifier_that_kills_its_process_is_asked_once_more_if_the_process_had_waited(
    make_scorer, tmp_path, before, asked
):
    scorer, seen = make_scorer(), tmp_path / "seen"
    scorer.score(before)
    (outcome,) = scorer.score([item("b", "kills_its_process", seen=str(seen))])
    assert isinstance(outcome, ScoringFailure)
    assert "ended with status -9" in outcome.reason
    assert seen.read_text() == "b" * asked


def test_what_a_verifier_prints_garbles_nothing(scorer):
    assert scorer.score([item("a", "chatters"), item("b", "numeric")]) == [
        ScoringResult("a", 1.0),
        ScoringResult("b", 1.0),
    ]


def test_what_a_verifier_prints_is_not_shown_and_its_last_line_says_why_it_broke(make_scorer, capfd, monkeypatch):
    scorer = make_scorer(timeout_s=1.0)
    asked = ("chatters", "chatters_much", "says_why_and_dies", "says_why_and_hangs", "dies")
    shown, much, died, hung, silent = scorer.score([item(name, name) for name in asked])
    assert (shown, much) == (ScoringResult("chatters", 1.0), ScoringResult("chatters_much", 1.0))
    assert died.reason.endswith("it will be replaced; the last that it printed: out of luck")
    assert hung.reason.endswith("will be replaced; the last that it printed: waiting for a server")
    assert silent.reason.endswith("it will be replaced")
    assert capfd.readouterr() == ("", "")
    scorer.close()
    monkeypatch.setenv("TAILRACE_DEBUG", "1")
    make_scorer().score([item("a", "chatters")])
    assert "even past Python" in capfd.readouterr().err


def test_a_row_says_nothing_of_the_responses_turns(scorer):
    """Only what `of_turns` made counts; a row's own column of that name is the row's data."""
    forged = {"turns": {"count": 1, "reward": 5.0, "done": True, "last": "<answer>12</answer>"}}
    wrong = "<answer>13</answer>"
    names = ("numeric", "exact", "math", "environment")
    outcomes = scorer.score([ScoreItem(name, wrong, "12", name, forged) for name in names])
    assert outcomes == [ScoringResult(name, 0.0) for name in names]
    told = scorer.score([ScoreItem(name, wrong, "12", name, of_turns(**forged["turns"])) for name in names])
    assert [outcome.reward for outcome in told] == [1.0, 1.0, 1.0, 5.0]


def test_a_response_larger_than_the_pipe_arrives_whole(scorer):
    assert scorer.score([item("a", "length", "x" * 3_000_000)]) == [ScoringResult("a", 3_000_000.0)]


def test_any_text_arrives_as_it_is(scorer):
    @settings(deadline=None, max_examples=50)
    @given(st.text())
    def check(text):
        assert scorer.score([item("a", "length", text)]) == [ScoringResult("a", float(len(text)))]

    check()


def test_a_closed_scorer_says_so_and_leaves_no_process(make_scorer):
    scorer = make_scorer()
    scorer.score([item("a", "numeric")])
    pid = scorer.pids[0]
    assert alive(pid)
    scorer.close()
    scorer.close()
    assert not alive(pid)
    with pytest.raises(ScorerClosedError):
        scorer.score([item("a", "numeric")])


def test_workers_leave_when_their_scorer_is_killed(tmp_path):
    pid_file = tmp_path / "pid"
    program = f"""
import os, signal, pathlib
from tailrace.reward import Scorer, ScoreItem
scorer = Scorer({{"sleeps_for_ever": "broken_verifiers:sleeps_for_ever"}})
scorer.score([ScoreItem("a", "<answer>1</answer>", "1", "numeric")])
pathlib.Path({str(pid_file)!r}).write_text(str(scorer.pids[0]))
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    pid = int(pid_file.read_text())
    deadline = time.monotonic() + 15
    while alive(pid):
        assert time.monotonic() < deadline, f"worker {pid} outlived its scorer"
        time.sleep(0.05)


@pytest.mark.parametrize("given", [len, lambda *_: 1.0, 3, "verify", "", None, str])
def test_a_verifier_that_is_no_reference_is_refused_in_a_line(given):
    with pytest.raises(SettingsError, match="as the verifier 'mine', expected where its function is found") as refused:
        Scorer({"mine": given})
    assert "'module:function' or 'file.py:function'" in str(refused.value)
    assert "\n" not in str(refused.value)


NO_TEXT = (
    ("answer", 12), ("answer", None), ("answer", 1.5), ("response_text", b"12"), ("verifier", len),
    ("trajectory", 0), ("prompt_text", []),
)  # fmt: skip


@pytest.mark.parametrize(("field", "value"), NO_TEXT)
def test_a_part_of_an_item_that_is_no_text_is_refused_in_a_line(field, value):
    fields = {"trajectory": "a", "response_text": "12", "answer": "12", "verifier": "numeric", field: value}
    with pytest.raises(ItemError, match=f"found {field} = .* of the type {type(value).__name__}, expected text"):
        ScoreItem(**fields)


def test_metadata_is_a_mapping():
    with pytest.raises(ItemError, match="found metadata of the type list, expected a mapping"):
        ScoreItem("a", "12", "12", "numeric", ["dataset"])


COUNTS = (
    (1.0, None, True), (0.0, None, False), (0.5, None, None), (2.0, None, None), (-1.0, None, None),
    (0.0, True, True), (1.0, False, False),
)  # fmt: skip


@pytest.mark.parametrize(("reward", "correct", "right"), COUNTS)
def test_what_counts_as_right(reward, correct, right):
    assert ScoringResult("a", reward, correct).right is right


@pytest.mark.parametrize("options", [{"workers": 0}, {"timeout_s": 0}, {"start_timeout_s": -1}])
def test_settings_that_cannot_work_are_refused(options):
    with pytest.raises(ValueError, match="expected"):
        Scorer(**options)


NUMPY = (
    ("float64(0.25)", 0.25, None),
    ("float32(0.25)", 0.25, None),
    ("float16(0.25)", 0.25, None),
    ("int64(1)", 1.0, None),
    ("uint8(1)", 1.0, None),
    ("bool_(True)", 1.0, True),
    ("bool_(False)", 0.0, False),
    ("array(0.25)", 0.25, None),
    ("array([0.25])", 0.25, None),
    ("array(True)", 1.0, True),
    ("array(['a', 'b']).size == 2", 1.0, True),
    ("ones(3).mean()", 1.0, None),
    ("array([1, 2]).sum() == 3", 1.0, True),
)


@pytest.mark.parametrize(
    ("returned", "reward", "correct"),
    [
        ("0.2", 0.2, None),
        ("1", 1.0, None),
        ("True", 1.0, True),
        ("False", 0.0, False),
        ("{'reward': 0.2}", 0.2, None),
        ("{'reward': 0.2, 'correct': None}", 0.2, None),
        ("{'reward': 0.2, 'correct': False}", 0.2, False),
        ("{'reward': 3, 'correct': True}", 3.0, True),
        ("{'reward': __import__('numpy').float32(0.5), 'correct': __import__('numpy').bool_(False)}", 0.5, False),
        ("__import__('decimal').Decimal('0.5')", 0.5, None),
        ("__import__('fractions').Fraction(1, 2)", 0.5, None),
        *((f"__import__('numpy').{made}", reward, correct) for made, reward, correct in NUMPY),
    ],
)
def test_what_a_verifier_may_return(scorer, returned, reward, correct):
    assert scorer.score([item("a", "returns", returned)]) == [ScoringResult("a", reward, correct)]


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ("None", "found None, expected a number, true or false, or an object with 'reward' and 'correct'"),
        ("[1.0]", "found [1.0], expected a number"),
        ("{'correct': True}", "found an object with the keys 'correct', expected 'reward'"),
        ("{'reward': 1, 'corect': True}", "found an object with the keys 'reward', 'corect', expected 'reward'"),
        ("{'reward': 1, 'correct': 0.5}", "found 'correct' = 0.5, expected true, false or None"),
        ("{'reward': float('inf')}", "found the reward inf, expected a finite number"),
        ("-1e31", "found the reward -1e+31, expected a finite number, of 1e+30 at most"),
        ("10**400", "found a reward beyond the largest float, expected a finite number"),
        ("10**10000", "found a reward beyond the largest float, expected a finite number"),
        ("[10**10000]", "found an object of the type list, expected a number"),
        ("{'reward': 1, 'correct': 10**10000}", "found 'correct' = an object of the type int, expected true"),
        ("__import__('numpy').array([0.5, 0.5])", "found array([0.5, 0.5]), expected a number"),
        ("1j", "found 1j, expected a number"),
        ("__import__('numpy').float64('nan')", "found the reward nan, expected a finite number"),
    ],
)
def test_what_is_no_reward_is_a_failure_that_says_what_was_found(scorer, returned, says):
    (outcome,) = scorer.score([item("a", "returns", returned)])
    assert isinstance(outcome, ScoringFailure)
    assert says in outcome.reason


def test_in_an_event_loop_it_names_what_scores_there():
    async def within():
        return scorer.score([])

    with Scorer(workers=1, timeout_s=10) as scorer, pytest.raises(ScoringError, match="there, use RewardScheduler"):
        asyncio.run(within())
