"""A judge's process is killed and stopped in the middle of work: every item has one outcome, none a false zero."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tailrace.reward import JudgeSettings, Kind, RewardScheduler, ScoreItem
from tailrace.reward.errors import JudgeClosedError, JudgeError, WorkerDiedError
from tailrace.reward.judge import Judge, JudgeConfig, JudgeItem, JudgeProcess, Unjudged
from tailrace.reward.process import WorkerProcess

pytestmark = pytest.mark.long
BATCH = 4


def gone(pid):
    """Whether a process has ended and was reaped."""
    return not Path(f"/proc/{pid}").exists()


async def until(holds, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "not reached in time"
        await asyncio.sleep(0.001)


async def scored_while(process, items, disturb, timeout_s):
    """The outcomes of items that are asked one by one, with a disturbance when some have theirs."""
    tasks = [asyncio.create_task(process.score([item], timeout_s)) for item in items]
    await until(lambda: sum(task.done() for task in tasks) >= len(items) // 4)
    await disturb(process.pid)
    return [outcome for task in tasks for outcome in await task]


@pytest.mark.deep
def test_kills_and_stops_in_the_middle_of_many_scores(judge_model, template, deep):
    count = 200 if deep else 80
    items = [JudgeItem("1 2 3 " * (1 + n % 20), str(n % 10), str(n % 7)) for n in range(count)]
    config = JudgeConfig(judge_model(), template, batch_items=BATCH, threads=1, device="cpu")
    with Judge(config) as judge:
        expected = judge.score(items)
    seen = []

    async def kill(pid):
        seen.append(pid)
        os.kill(pid, signal.SIGKILL)

    async def stop(pid):
        seen.append(pid)
        os.kill(pid, signal.SIGSTOP)

    async def scenario():
        async with JudgeProcess(config) as process:
            await process.start()
            for disturb, timeout_s in ((kill, 60.0), (stop, 10.0)):  # on a busy machine 50 scores took more than 3 s
                outcomes = await scored_while(process, items, disturb, timeout_s)
                lost = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Unjudged)]
                assert len(outcomes) == count
                assert lost, "nothing was under way when the process was disturbed"
                assert not any(outcomes[n].permanent for n in lost)
                assert all(outcomes[n] == pytest.approx(expected[n], abs=1e-5) for n in range(count) if n not in lost)
                if disturb is kill:
                    assert len(lost) <= BATCH, "only what was in the batch is lost"
                again = await process.score([items[n] for n in lost], 60.0)
                assert again == pytest.approx([expected[n] for n in lost], abs=1e-5)
                assert gone(seen[-1])
            assert process.pid not in seen
            seen.append(process.pid)
            # Cancelled items are withdrawn; the others are judged.
            tasks = [asyncio.create_task(process.score([item], 60.0)) for item in items[:20]]
            await asyncio.sleep(0)
            for task in tasks[1::2]:
                task.cancel()
            kept = [(await task)[0] for task in tasks[::2]]
            assert kept == pytest.approx(expected[:20:2], abs=1e-5)
            waiting = asyncio.create_task(process.score(items, 60.0))
            await asyncio.sleep(0.001)
        outcomes = await waiting
        assert len(outcomes) == count
        assert outcomes[-1] == Unjudged("the judge was closed", permanent=False)
        assert gone(seen[-1])
        with pytest.raises(JudgeClosedError):
            await process.score(items[:1], 1.0)

    asyncio.run(scenario())


@pytest.mark.deep
def test_a_judge_that_cannot_be_made_says_so_at_the_start_and_to_each_item(judge_model, template):
    async def scenario():
        async with JudgeProcess(JudgeConfig(judge_model(), "{answer}")) as process:
            with pytest.raises(JudgeError, match=r"expected \{response\} among them"):
                await process.start()
            assert process.pid is None
            outcomes = await process.score([JudgeItem("1", "0", "1")] * 2, 60.0)
            assert len(outcomes) == 2
            assert all("expected {response}" in outcome.reason and not outcome.permanent for outcome in outcomes)
        async with JudgeProcess(JudgeConfig(judge_model(), template), start_timeout_s=0.01) as process:
            with pytest.raises(WorkerDiedError, match=r"loading the judge gave no result within 0\.01 s"):
                await process.start()

    asyncio.run(scenario())


def test_a_judge_that_is_closed_while_it_loads_leaves_no_process(template, monkeypatch):
    processes = []

    def stalls(command):
        processes.append(WorkerProcess([sys.executable, "-c", "import time; time.sleep(600)"]))
        return processes[-1]

    monkeypatch.setattr("tailrace.reward.judge.process.WorkerProcess", stalls)

    async def scenario():
        judge = JudgeProcess(JudgeConfig("nowhere", template))
        starting = asyncio.create_task(judge.start())
        await until(lambda: processes and processes[0].pid is not None)
        pid = processes[0].pid
        await judge.close()
        assert gone(pid)
        with pytest.raises(JudgeClosedError):
            await starting

    asyncio.run(scenario())


@pytest.mark.deep
def test_a_scheduler_loses_no_score_when_its_judge_is_killed(judge_model, template):
    """The judge dies three times in the middle of 200 scores, which share batches with each other and wait for nobody else."""
    count = 200
    config = JudgeConfig(judge_model(), template, batch_items=BATCH, threads=1, device="cpu")
    items = [
        ScoreItem(str(n), "1 2 3 " * (1 + n % 20), str(n % 7), "judge", {}, prompt_text=str(n % 10))
        for n in range(count)
    ]
    with Judge(config) as judge:
        expected = judge.score([JudgeItem(item.response_text, item.prompt_text, item.answer) for item in items])

    async def scenario():
        settings = JudgeSettings(workers=BATCH, attempts=9, judge=config)
        async with RewardScheduler(judge=settings) as scheduler:
            await scheduler.start([Kind.JUDGE])
            outcomes, killed = [], set()
            async for outcome in scheduler.score([*items, ScoreItem("n", "<answer>1</answer>", "1", "exact")]):
                outcomes.append(outcome)
                if len(outcomes) in (30, 90, 150):
                    (pid,) = [backend.pid for backend in set(scheduler._pools[Kind.JUDGE].backends)]
                    killed.add(pid)
                    os.kill(pid, signal.SIGKILL)
        assert len(killed) == 3
        assert all(gone(pid) for pid in killed)
        rewards = {outcome.trajectory: outcome.reward for outcome in outcomes}
        assert len(outcomes) == len(rewards) == count + 1
        assert rewards.pop("n") == 1.0
        assert [rewards[str(n)] for n in range(count)] == pytest.approx(expected, abs=1e-5)

    asyncio.run(scenario())
