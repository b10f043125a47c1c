"""Turns in the store: one answer for each, whoever tells it how often; nothing follows a turn before its answer."""

import json
import sqlite3

import pytest

from tailrace.contracts import FinishReason, PartialDelta, Segment
from tailrace.trajstore import Assignment, Resume, Status, TrajectoryDataError, TrajectoryStore, read_trained

STOP = FinishReason.STOP


def item(trajectory="a"):
    return Assignment(trajectory, 0, (1, 2), metadata={"row": 7})


def delta(offset, tokens, version=0, finish=None, turn_ends=False, name="a"):
    return PartialDelta(name, offset, version, tuple(tokens), (-0.5,) * len(tokens), finish, turn_ends)


def ask(store, owner="r0", version=0, offset=0, tokens=(5, 6)):
    """Let a trajectory end a turn. Returns the turn's serial."""
    store.begin(owner, version, [item()])
    assert store.append(owner, [delta(offset, tokens, version, turn_ends=True)]) == []
    (conversation,) = store.conversations(["a"])
    return conversation.turns[-1].serial


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


def test_two_turns_from_the_first_token_to_training(path):
    with TrajectoryStore(path) as store:
        serial = ask(store)
        assert [(one.tokens, one.turn_ended) for one in store.partials()] == [(2, True)]
        turn = store.observe("a", serial, (90, 91, 92), reward=0.25, session=b"state")
        assert (turn.number, turn.start, turn.response, turn.observation) == (1, 0, (5, 6), (90, 91, 92))
        assert [(one.tokens, one.turn_ended) for one in store.partials()] == [(5, False)]
        assert store.partial_tokens(["a", "unknown"]) == 2
    with TrajectoryStore(path) as store:  # it is durable
        (conversation,) = store.conversations(["a"])
        assert (conversation.session, conversation.session_serial) == (b"state", serial)
        assert conversation.metadata == {"row": 7, "purpose": "train"}
        (resume,) = store.begin("r1", 0, [item()])
        assert resume == Resume("a", (1, 2), (5, 6, 90, 91, 92), (-0.5, -0.5, 0.0, 0.0, 0.0))
        assert store.append("r1", [delta(5, [7, 8]), delta(7, [9], turn_ends=True)]) == []
        last = store.conversations(["a"])[0].turns[-1]
        assert (last.number, last.start, last.response) == (2, 5, (7, 8, 9))
        ended = store.observe("a", last.serial, (), done=True, reward=1.0, trainer_version=4)
        assert (ended.done, ended.finish, turn.done) == (True, STOP, False)
        (experience,) = store.experiences(["a"])
        assert experience.segments == (
            Segment(0, (5, 6), (-0.5,) * 2),
            Segment(0, (90, 91, 92), (0.0,) * 3, observation=True),
            Segment(0, (7, 8, 9), (-0.5,) * 3),
        )
        assert (experience.finish, experience.completed_version, experience.turns) == (STOP, 4, 2)
        assert experience.metadata["environment"] == {"turns": 2, "reward": 1.25, "done": True}
        assert store.conversations(["a"])[0].session is None
        assert (store.stats().observations, store.stats().finished) == (1, 1)
        store.set_reward("a", 1.0)
        store.consume(["a"], 1)
        (row,) = store.consumed()
        assert (row.tokens, row.generated) == (8, 5)
        assert store.consumed_tokens() == [5]
        store.export_jsonl(path.parent / "trained.jsonl")
        assert store.audit()["inconsistent"] == []
        assert store.trim(1) == 1
        assert store.consumed_tokens() == [5]
    line = json.loads((path.parent / "trained.jsonl").read_text())
    assert (line["tokens"], line["observations"], line["generated"]) == ([5, 6, 90, 91, 92, 7, 8, 9], [[2, 5]], 5)


def test_a_context_of_its_own_from_its_beginning_to_the_archive(path):
    """The episode begins anew behind its first turn, and the process dies before the next."""
    with TrajectoryStore(path) as store:
        turn = store.observe("a", ask(store), (1, 5, 90), fresh=True)
        assert (turn.observation, turn.fresh) == ((1, 5, 90), True)
    with TrajectoryStore(path) as store:
        (resume,) = store.begin("r1", 0, [item()])
        assert (resume.kept_tokens, resume.context) == ((5, 6, 1, 5, 90), 2)
        assert resume.repeated == 1, "the prompt is 1, 2"
        assert store.append("r1", [delta(5, [7], turn_ends=True)]) == []
        told, last = store.conversations(["a"])[0].turns
        assert (told.fresh, last.fresh) == (True, False)
        store.observe("a", last.serial, (91,))
        assert store.begin("r1", 0, [item()])[0].context == 2
        store.append("r1", [delta(7, [8], finish=STOP)])
        (experience,) = store.experiences(["a"])
        assert [segment.fresh for segment in experience.segments] == [False, True, False, False, False]
        assert experience.contexts == ((0, 0, 2), (2, 5, 8))
        store.set_reward("a", 1.0)
        store.consume(["a"], 1)
        store.export(path.parent / "trained")
        store.export(path.parent / "trained.jsonl")
    for name in ("trained", "trained.jsonl"):
        (row,) = read_trained(path.parent / name)
        assert (row["tokens"], row["observations"], row["contexts"], row["generated"]) == (
            [5, 6, 1, 5, 90, 7, 91, 8], [[2, 5], [6, 7]], [2], 4
        )  # fmt: skip


def test_nothing_follows_a_turn_before_its_answer():
    with TrajectoryStore() as store:
        serial = ask(store)
        assert store.append("r0", [delta(2, [7])]) == ["a"]
        assert store.append("r0", [delta(2, [], finish=STOP)]) == ["a"]
        assert store.append("r0", [delta(0, [5, 6], turn_ends=True)]) == []  # told again
        assert store.append("r0", [delta(2, [], turn_ends=True)]) == []  # the same, if its tokens came before
        assert store.append("r0", [delta(0, [5, 6, 7], turn_ends=True)]) == ["a"]
        (resume,) = store.begin("r1", 0, [item()])  # its replica died before it could say so
        assert resume.turn_ended
        assert not resume.complete
        store.observe("a", serial, (90,))
        assert store.append("r1", [delta(3, [], turn_ends=True)]) == ["a"]  # a turn has a token at least
        assert store.append("r1", [delta(3, [7], finish=FinishReason.LENGTH)]) == []
        (experience,) = store.experiences(["a"])
        assert (experience.finish, experience.turns, experience.generated_tokens) == (FinishReason.LENGTH, 2, 3)
        assert store.audit()["inconsistent"] == []


def test_the_first_answer_to_a_turn_stays():
    with TrajectoryStore() as store:
        serial = ask(store)
        first = store.observe("a", serial, (90, 91), reward=1.0, session=b"first")
        assert store.observe("a", serial, (90, 91), reward=1.0, session=b"first") == first
        assert store.observe("a", serial, (70,), done=True, reward=5.0, session=b"second") == first
        assert store.conversations(["a"])[0].session == b"first"
        assert [one.tokens for one in store.partials()] == [4]
        assert store.stats().observations == 1


def test_an_answer_to_a_turn_that_was_dropped_comes_too_late():
    with TrajectoryStore() as store:
        serial = ask(store, version=1)
        again = ask(store, owner="r1", version=2)  # another version: generated anew, to the same tokens
        assert again != serial
        assert store.observe("a", serial, (90,)) is None
        assert store.observe("nobody", serial, (90,)) is None
        assert len(store.conversations(["a"])[0].turns) == 1
        store.discard(["a"], "surplus")
        assert store.observe("a", again, (90,)) is None
        assert store.conversations(["a"]) == []
        assert store.statuses(["a"]) == {"a": Status.DISCARDED}
        revived = ask(store, owner="r2", version=2)
        assert revived not in (serial, again)
        assert store.conversations(["a"])[0].session is None


def test_a_trajectory_that_has_no_room_for_another_turn_ends_by_length():
    with TrajectoryStore() as store:
        told = store.observe("a", ask(store), (), done=True, finish=FinishReason.LENGTH)
        assert (told.done, told.finish) == (True, FinishReason.LENGTH)
        assert store.observe("a", told.serial, (9,)) == told  # said again
        assert store.experiences(["a"])[0].finish is FinishReason.LENGTH


def test_an_observation_has_the_version_of_the_segment_before_it():
    with TrajectoryStore(mixed_versions=True) as store:
        serial = ask(store, version=1)
        store.begin("r1", 3, [item()])  # moved while it waits
        store.observe("a", serial, (90,))
        assert store.append("r1", [delta(3, [7], 3, STOP)]) == []
        (experience,) = store.experiences(["a"])
        assert [(part.version, part.observation) for part in experience.segments] == [(1, False), (1, True), (3, False)]
        assert (experience.oldest_version, experience.newest_version) == (1, 3)


def test_an_answer_that_cannot_be_stored_leaves_nothing_behind():
    with TrajectoryStore() as store:
        serial = ask(store)
        with pytest.raises(TrajectoryDataError, match="an observation without tokens"):
            store.observe("a", serial, ())
        with pytest.raises(TrajectoryDataError, match="token id"):
            store.observe("a", serial, (-1,))
        for reward in (float("nan"), float("inf")):
            with pytest.raises(TrajectoryDataError, match="expected a finite number"):
                store.observe("a", serial, (9,), reward=reward)
        assert [(one.tokens, one.turn_ended) for one in store.partials()] == [(2, True)]


def test_a_store_of_the_format_before_turns_goes_on(path):
    with TrajectoryStore(path) as store:
        store.begin("r0", 0, [item("b"), item("c")])
        store.append("r0", [delta(0, [5, 6], name="b"), delta(0, [7], finish=STOP, name="c")])
        store.set_reward("c", 1.0)
        store.consume(["c"], 1)
    raw = sqlite3.connect(path)
    raw.executescript(
        "DROP TABLE session; DROP TABLE turn; ALTER TABLE delta DROP COLUMN observation; "
        "ALTER TABLE trajectory DROP COLUMN generated; ALTER TABLE trajectory DROP COLUMN outline; PRAGMA user_version = 3;"
    )
    raw.close()
    with TrajectoryStore(path) as store:
        assert store.audit()["inconsistent"] == []
        assert store.consumed_tokens() == [1]
        (resume,) = store.begin("r1", 0, [item("b")])
        assert (resume.kept_tokens, resume.turn_ended) == ((5, 6), False)
        assert store.append("r1", [delta(2, [8], turn_ends=True, name="b")]) == []
        serial = store.conversations(["b"])[0].turns[0].serial
        assert store.observe("b", serial, (90,), done=True).observation == (90,)
        assert store.experiences(["b"])[0].generated == (True, True, True, False)
    with TrajectoryStore(path) as store:
        assert store.audit()["inconsistent"] == []
