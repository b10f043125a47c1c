"""A process that writes is really killed, again and again: nothing that it acknowledged is lost, nothing is there by halves."""

import random
import sqlite3
import subprocess
import sys
import time

import pytest

from tailrace.trajstore import Status, StoreBusyError, TrajectoryStore

DEADLINE_S = 60.0

# Each line that it prints is a promise: that much is in the store.
WRITER = """
import sys
from tailrace.contracts import FinishReason
from tailrace.trajstore import Assignment, PartialDelta, TrajectoryStore

store = TrajectoryStore(sys.argv[1], synchronous=sys.argv[2], open_timeout_s=60)
life = sys.argv[3]
held = store.recover().held
number = 0
while True:
    names = [f"{life}.{number}.{sample}" for sample in range(4)]
    store.begin(life, 0, [Assignment(name, number, (1, 2)) for name in names])
    for offset in range(5):
        finish = FinishReason.STOP if offset == 4 else None
        deltas = [PartialDelta(name, 3 * offset, 0, (offset,) * 3, (-1.0,) * 3, finish) for name in names]
        assert store.append(life, deltas) == []
        for name in names:
            print("tokens", name, 3 * offset + 3, flush=True)
    store.begin(life, 0, [Assignment(f"{life}.{number}.talk", number, (1, 2))])
    for turn in range(3):
        name = f"{life}.{number}.talk"
        store.append(life, [PartialDelta(name, 3 * turn, 0, (turn, turn), (-1.0,) * 2, turn_ends=True)])
        print("turn", name, turn + 1, flush=True)
        serial = store.conversations([name])[0].turns[-1].serial
        store.observe(name, serial, (90,), reward=1.0, session=str(turn).encode(), done=turn == 2)
        print("answer", name, turn + 1, flush=True)
    for name in names:
        store.set_reward(name, 1.0)
        print("reward", name, 1, flush=True)
    store.consume(names, number + 1)
    for name in names:
        print("consumed", name, number + 1, flush=True)
    number += 1
"""


@pytest.mark.parametrize("synchronous", ["normal", "off"])
def test_no_acknowledged_write_is_lost(tmp_path, synchronous):
    path = tmp_path / "store.db"
    seed = random.randrange(2**32)
    numbers = random.Random(seed)
    promised: dict[tuple[str, str], int] = {}
    rounds = 0
    for life in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), synchronous, f"life{life}"], stdout=subprocess.PIPE, text=True
        )
        lines = [writer.stdout.readline()]
        time.sleep(numbers.random() * 0.15)
        writer.kill()
        # What the pipe holds was printed, so acknowledged, before the kill. The last line may be cut off.
        lines += writer.stdout.readlines()
        assert writer.wait(timeout=DEADLINE_S) == -9, f"seed {seed}"
        writer.stdout.close()
        for what, name, told in (line.split() for line in lines if line.endswith("\n")):
            promised[what, name] = int(told)
            rounds += 1
        with TrajectoryStore(path) as store:
            audit = store.audit()
            assert audit["consumed_twice"] == audit["inconsistent"] == [], f"seed {seed}"
            tokens = {partial.trajectory: partial.tokens for partial in store.partials()}
            consumed = {row.trajectory: row for row in store.consumed()}
            statuses = store.statuses([name for _, name in promised])
            for (what, name), amount in promised.items():
                if what == "tokens":
                    if statuses[name] is Status.PARTIAL:
                        assert tokens[name] >= amount, f"seed {seed}"
                    else:
                        assert len(store.experiences([name])[0].tokens) == 15, f"seed {seed}"
                elif what in ("turn", "answer"):
                    (talk,) = store.conversations([name])
                    answered = [turn for turn in talk.turns if turn.observation == (90,)]
                    assert len(talk.turns if what == "turn" else answered) >= amount, f"seed {seed}"
                    assert len(talk.turns) - len(answered) <= 1, f"seed {seed}"
                    saved = None if len(answered) in (0, 3) else str(len(answered) - 1).encode()
                    assert talk.session == saved, f"seed {seed}"
                elif what == "reward":
                    assert store.experiences([name])[0].reward == 1.0, f"seed {seed}"
                else:
                    assert consumed[name].consumed_version == amount, f"seed {seed}"
    assert rounds > 6, f"seed {seed}: the writers wrote next to nothing"


def test_one_process_writes_and_its_death_lets_the_next_in(tmp_path):
    path = tmp_path / "store.db"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), "normal", "first"], stdout=subprocess.PIPE, text=True
    )
    try:
        writer.stdout.readline()
        with pytest.raises(StoreBusyError, match=f"process {writer.pid}, which has the store open"):
            TrajectoryStore(path, open_timeout_s=0.1)
    finally:
        writer.kill()
        writer.stdout.close()
    with TrajectoryStore(path, open_timeout_s=DEADLINE_S) as store:
        writer.wait(timeout=DEADLINE_S)
        assert store.audit()["total"] != 0
        with pytest.raises(StoreBusyError, match="found the store open in this process already"):
            TrajectoryStore(path)  # at once: it would wait for itself
    TrajectoryStore(path).close()


def test_a_store_that_cannot_be_opened_is_not_locked(tmp_path):
    path = tmp_path / "store.db"
    TrajectoryStore(path).close()
    with sqlite3.connect(path) as file:
        file.execute("ALTER TABLE setting RENAME TO gone")
    for _ in range(2):
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            TrajectoryStore(path, open_timeout_s=0.0)
