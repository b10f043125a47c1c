"""The reward scheduler as people use it: in an event loop, with real worker processes and a real sandbox."""

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

import pytest

from tailrace.reward import (
    AdaptiveTimeout,
    CodeSettings,
    Kind,
    RewardScheduler,
    ScoreItem,
    ScorerClosedError,
    ScoringFailure,
    ScoringResult,
    SettingsError,
    VerifierSettings,
)
from tailrace.reward.functions import VerifierWorker
from tailrace.reward.process import WorkerProcess

pytestmark = pytest.mark.usefixtures("one_probe_of_each_sandbox")
HERE = Path(__file__).parent
TESTS = {"entry_point": "f", "tests": [{"args": [n], "expected": 2 * n} for n in range(3)]}
DOUBLES = "def f(x):\n    return 2 * x\n"
NEVER_ENDS = "def f(x):\n    while True:\n        pass\n"
BUSY = """
import time
def f(x):
    end = time.process_time() + {seconds}
    while time.process_time() < end:
        pass
    return 2 * x
"""
QUICK = AdaptiveTimeout(t_min_s=0.2, t_max_s=2.0)


def number(name, answer="12", **more):
    return ScoreItem(name, f"<answer>{answer}</answer>", "12", "numeric", **more)


def program(name, text=DOUBLES, prompt_text="double x"):
    return ScoreItem(name, text, "", "code", TESTS, prompt_text=prompt_text)


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return {name: f"broken_verifiers:{name}" for name in ("spins", "within_budget", "over_budget", "sleeps_for_ever")}


def pids(scheduler):
    """Workers of verifier functions and supervisors of sandboxes."""
    return (*scheduler.pids, *scheduler._pools[Kind.CODE].backends[0]._sandbox.pids)


def run(test):
    return asyncio.run(asyncio.wait_for(test(), 120))


async def collected(scheduler, items):
    return {outcome.trajectory: outcome async for outcome in scheduler.score(items)}


@pytest.mark.deep
def test_outcomes_come_one_by_one_and_a_slow_kind_holds_back_only_itself():
    async def test():
        code = CodeSettings(workers=1, queue=1, timeouts=AdaptiveTimeout(1.0, 1.0))
        async with RewardScheduler(code=code, math=VerifierSettings(queue=2)) as scheduler:
            slow = [program(f"slow{n}", BUSY.format(seconds=0.1)) for n in range(4)]
            items = [*slow, *(number(f"quick{n}") for n in range(20))]
            order = [outcome.trajectory async for outcome in scheduler.score(items)]
            assert sorted(order) == sorted(item.trajectory for item in items)
            assert order[-1] == "slow3"
            assert not scheduler.full(Kind.MATH)

    run(test)


@pytest.mark.parametrize("prompt", ["double x", pytest.param("", marks=pytest.mark.deep)])
@pytest.mark.deep
def test_a_program_that_never_ends_is_over_budget_and_right_ones_shorten_its_time(prompt):
    """Without the prompt's text, those of the same tests do."""

    async def test():
        async with RewardScheduler(code=CodeSettings(workers=1, timeouts=QUICK, recheck_share=0)) as scheduler:
            first = await collected(scheduler, [program("unknown", NEVER_ENDS, prompt)])
            assert first["unknown"] == ScoringResult("unknown", 0.0, False, over_budget="cpu 2 s")
            right = await collected(scheduler, [program("right", prompt_text=prompt)])
            assert right["right"] == ScoringResult("right", 1.0, True)
            after = await collected(scheduler, [program("known", NEVER_ENDS, prompt)])
            assert after["known"].over_budget == "cpu 0.2 s"
            assert after["known"].seconds < first["unknown"].seconds

    run(test)


def test_the_rows_reference_time_is_the_first_anchor():
    async def test():
        async with RewardScheduler(code=CodeSettings(timeouts=QUICK, recheck_share=0)) as scheduler:
            item = ScoreItem("a", NEVER_ENDS, "", "code", {**TESTS, "reference_time_s": 0.4})
            assert (await collected(scheduler, [item]))["a"].over_budget == "cpu 0.6 s"

    run(test)


@pytest.mark.deep
def test_a_false_timeout_is_found_by_a_recheck_and_lengthens_the_timeout():
    async def test():
        rechecks, found = [], asyncio.Event()

        def rechecked(recheck):
            rechecks.append(recheck)
            found.set()

        settings = CodeSettings(workers=1, timeouts=QUICK, recheck_share=1.0)
        async with RewardScheduler(code=settings, rechecked=rechecked) as scheduler:
            slow = BUSY.format(seconds=0.5)
            outcomes = [(await collected(scheduler, [one])) for one in (program("right"), program("slow", slow))]
            # One that gets a fifteenth of a core is over its time on the clock first: a false timeout too.
            assert outcomes[1]["slow"].over_budget in ("cpu 0.2 s", "wall 3 s")
            await found.wait()
            assert [(recheck.trajectory, recheck.correct) for recheck in rechecks] == [("slow", True)]
            again = await collected(scheduler, [program("again", slow)])
            assert again["again"] == ScoringResult("again", 1.0, True)

    run(test)


def test_cancelled_scores_have_no_outcome_and_their_programs_end():
    async def test():
        settings = CodeSettings(workers=1, timeouts=AdaptiveTimeout(30, 30))
        async with RewardScheduler(code=settings) as scheduler:
            scoring = asyncio.create_task(
                collected(scheduler, [program("a", NEVER_ENDS), program("b", NEVER_ENDS), number("c")])
            )
            while not any(job.task for name in "ab" for job in scheduler._jobs.get(name, ())):  # one is under way
                await asyncio.sleep(0.01)
            scheduler.cancel(["a", "b", "unknown"])
            assert await asyncio.wait_for(scoring, 20) == {"c": ScoringResult("c", 1.0)}
            after = await collected(scheduler, [program("after")])
            assert after["after"].reward == 1.0

    run(test)


def test_two_scores_of_one_trajectory_both_end_with_the_scheduler():
    async def test():
        settings = CodeSettings(workers=1, timeouts=AdaptiveTimeout(30, 30))
        async with RewardScheduler(code=settings) as scheduler:
            scoring = [asyncio.create_task(collected(scheduler, [program("a", NEVER_ENDS)])) for _ in range(2)]
            while not any(job.task for job in scheduler._jobs.get("a", ())):
                await asyncio.sleep(0.01)
        assert await asyncio.wait_for(asyncio.gather(*scoring), 20) == [{}, {}]

    run(test)


def test_who_raises_when_told_of_a_score_stops_no_other_one():
    async def test():
        complaints = []
        asyncio.get_running_loop().set_exception_handler(lambda _, said: complaints.append(repr(said["exception"])))
        async with RewardScheduler(math=VerifierSettings(workers=1)) as scheduler:
            await scheduler.submit(number("a"), lambda outcome: {}[outcome.trajectory])
            assert await collected(scheduler, [number("b")]) == {"b": ScoringResult("b", 1.0)}
        assert complaints == ["KeyError('a')"]

    run(test)


def test_who_waits_for_room_and_is_cancelled_is_told_and_forgotten():
    async def test():
        told = []
        async with RewardScheduler(math=VerifierSettings(workers=1, queue=1)) as scheduler:
            pool = scheduler._pool(Kind.MATH)
            for task in pool._serving:
                task.cancel()  # so that what is queued stays there
            await scheduler.submit(number("a"), told.append)
            waits = asyncio.create_task(scheduler.submit(number("b"), told.append))
            await asyncio.sleep(0)
            waits.cancel()
            await asyncio.wait([waits])
            assert (waits.cancelled(), told, set(scheduler._jobs)) == (True, [None], {"a"})
            scheduler.cancel("a")
            assert not scheduler.busy

    run(test)


def test_leaving_the_iteration_cancels_the_rest():
    async def test():
        async with RewardScheduler() as scheduler:
            outcomes = scheduler.score([number(str(n)) for n in range(50)])
            await anext(outcomes)
            await outcomes.aclose()
            assert scheduler._jobs == {}
            assert len(await collected(scheduler, [number("next")])) == 1

    run(test)


def test_a_verifier_with_a_budget_that_is_used_up_gives_zero_and_says_so(own):
    async def test():
        async with RewardScheduler(math=VerifierSettings(own=own, timeout_s=60.0)) as scheduler:
            items = [ScoreItem(name, "r", "a", name) for name in ("over_budget", "within_budget")]
            found = await collected(scheduler, items)
            assert found["over_budget"] == ScoringResult("over_budget", 0.0, False, over_budget="cpu 0.2 s")
            assert found["within_budget"] == ScoringResult("within_budget", 1.0)

    run(test)


@pytest.mark.deep
def test_workers_that_are_killed_cost_no_score(deep):
    """Every worker dies again and again in the middle of 60 scores: each has one outcome, and none is a false zero."""
    count = 400 if deep else 60

    async def test():
        settings = VerifierSettings(workers=2, attempts=9)
        items = [number(f"n{n}", "12" if n % 3 else "13") for n in range(count * 3 // 5)]
        items += [program(f"p{n}", DOUBLES if n % 3 else DOUBLES.replace("2", "3")) for n in range(count * 2 // 5)]
        async with RewardScheduler(math=settings, code=CodeSettings(workers=2, attempts=9)) as scheduler:
            outcomes, kills = [], 0
            async for outcome in scheduler.score(items):
                outcomes.append(outcome)
                if len(outcomes) % 20 == 0:
                    for pid in pids(scheduler):
                        with contextlib.suppress(
                            ProcessLookupError
                        ):  # it was killed before and nobody has asked it since
                            os.kill(pid, signal.SIGKILL)
                            kills += 1
            left = pids(scheduler)
        assert kills >= count // 10
        assert not any(isinstance(outcome, ScoringFailure) for outcome in outcomes), outcomes
        expected = {item.trajectory: float(int(item.trajectory[1:]) % 3 > 0) for item in items}
        assert {outcome.trajectory: outcome.reward for outcome in outcomes} == expected
        assert len(outcomes) == count
        for pid in left:
            assert not Path(f"/proc/{pid}").exists()

    run(test)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(1, 6))])
def test_each_of_many_verdicts_in_one_message_is_the_one_that_it_has_alone(tmp_path, monkeypatch, seed):
    (tmp_path / "mine.py").write_text(
        "import os, time\n\n\ndef verify(response, answer, metadata):\n"
        "    if answer == 'raises':\n        raise ValueError(response)\n"
        "    if answer == 'dies':\n        os._exit(3)\n"
        "    if answer == 'hangs':\n        time.sleep(60)\n"
        "    return float(response)\n"
    )
    numbers, messages = random.Random(seed), []
    ask = WorkerProcess.ask

    async def counted(self, request, timeout_s, what):
        messages.append(len(request.get("requests", "1")))
        return await ask(self, request, timeout_s, what)

    monkeypatch.setattr(WorkerProcess, "ask", counted)
    answers = ["right"] * 150 + ["raises"] * 3 + ["dies", "hangs"]
    numbers.shuffle(answers)
    items = [
        number(str(n)) if answer == "right" and numbers.random() < 0.5 else ScoreItem(str(n), str(n), answer, "mine")
        for n, answer in enumerate(answers)
    ]

    async def test():
        settings = VerifierSettings(own={"mine": f"{tmp_path}/mine.py:verify"}, attempts=1, timeout_s=2.0)
        async with RewardScheduler(math=settings) as scheduler:
            await collected(scheduler, [number("a"), ScoreItem("b", "1", "right", "mine")])
            return [outcome async for outcome in scheduler.score(items)]

    outcomes = run(test)
    assert sorted(int(outcome.trajectory) for outcome in outcomes) == list(range(len(items)))
    for outcome in outcomes:
        item = items[int(outcome.trajectory)]
        if item.verifier == "numeric" or item.answer == "right":
            right = 1.0 if item.verifier == "numeric" else float(item.trajectory)
            assert outcome == ScoringResult(item.trajectory, right)
        else:
            said = {"raises": f"ValueError: {item.trajectory}", "dies": "status 3", "hangs": "within 2 s"}[item.answer]
            assert isinstance(outcome, ScoringFailure)
            assert said in outcome.reason
    assert max(messages) > 1


def test_long_responses_do_not_make_a_message_longer_than_a_line_may_be():
    async def test():
        long = [ScoreItem(str(n), "7" * 2_000_000, "7", "numeric") for n in range(40)]
        worker = VerifierWorker(VerifierSettings())
        await worker.score(number("a"))
        assert worker.together([number("b")] * 1000) > 2
        count = worker.together(long)
        assert 1 <= count <= 2
        results = await worker.score_together(long[:count])
        assert [result.trajectory for result in results if result is not None] == [
            item.trajectory for item in long[:count]
        ]
        await worker.close()

    run(test)


def test_a_closed_scheduler_says_so():
    async def test():
        scheduler = RewardScheduler()
        await collected(scheduler, [number("a")])
        await scheduler.close()
        await scheduler.close()
        with pytest.raises(ScorerClosedError):
            await collected(scheduler, [number("a")])

    run(test)


@pytest.mark.parametrize(
    "settings",
    [lambda: CodeSettings(workers=0), lambda: VerifierSettings(queue=0), lambda: CodeSettings(recheck_share=2)],
)
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(SettingsError, match="expected"):
        settings()


def test_a_cancelled_verification_keeps_its_process_and_the_next_gets_its_own_verdict(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os, time\n\n\ndef verify(response, answer, metadata):\n    time.sleep(float(answer))\n"
        "    return float(response)\n"
    )
    settings = VerifierSettings(own={"mine": f"{tmp_path}/mine.py:verify"}, timeout_s=60.0)

    async def go():
        worker = VerifierWorker(settings)
        try:
            first = await worker.score(ScoreItem("a", "0.25", "0", "mine"))
            pid = worker.pid
            for seconds in ("0.3", "0.05"):  # it is under way when it is cancelled, or all but done
                scoring = asyncio.create_task(worker.score(ScoreItem("b", "0.5", seconds, "mine")))
                await asyncio.sleep(0.1)
                scoring.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await scoring
                after = await worker.score(ScoreItem("c", "0.75", "0", "mine"))
                assert (first.reward, after.reward, worker.pid) == (0.25, 0.75, pid)
            hangs = asyncio.create_task(worker.score(ScoreItem("d", "0.5", "50", "mine")))
            await asyncio.sleep(0.1)
            hangs.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait_for(hangs, 20.0)
            assert worker.pid != pid, "one that goes on for long is ended with its process"
            assert (await worker.score(ScoreItem("e", "1", "0", "mine"))).reward == 1.0
        finally:
            await worker.close()

    asyncio.run(go())


def test_a_verifier_that_is_being_imported_is_not_imported_anew_because_its_first_score_is_cancelled(tmp_path):
    (tmp_path / "slow.py").write_text(
        f"import pathlib, time\npathlib.Path({str(tmp_path / 'imports')!r}).open('a').write('x')\ntime.sleep(0.5)\n\n\n"
        "def verify(response, answer, metadata):\n    return 1.0\n"
    )

    async def go():
        worker = VerifierWorker(VerifierSettings(own={"slow": f"{tmp_path}/slow.py:verify"}))
        try:
            scoring = asyncio.create_task(worker.score(ScoreItem("a", "", "", "slow")))
            while not (tmp_path / "imports").exists():
                await asyncio.sleep(0.02)
            scoring.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await scoring
            assert (await worker.score(ScoreItem("b", "", "", "slow"))).reward == 1.0
        finally:
            await worker.close()

    asyncio.run(asyncio.wait_for(go(), 60.0))
    assert (tmp_path / "imports").read_text() == "x"
