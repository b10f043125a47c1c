"""The environment role on a real store and real worker processes: its answers, and what becomes of sessions that are gone."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tailrace.contracts import (
    Call,
    CallFailed,
    Close,
    FinishReason,
    Interrupt,
    PartialDelta,
    Purpose,
    SessionOrigin,
    TrajectoryRef,
    Turned,
)
from tailrace.pipeline.roles.data import DataRole
from tailrace.pipeline.roles.environment import EnvironmentRole, EnvironmentSettings
from tailrace.pipeline.roles.observations import Glue, Observations
from tailrace.runtime.errors import RoleError
from tailrace.runtime.executor.doors import Ready

ENVIRONMENTS = '''
import os
import time


class Adds:
    """Adds up what it is told. It can be restored and replayed."""

    replayable = True

    def __init__(self):
        self.total = 0

    def reset(self, row):
        self.answer = row["answer"]
        return ""

    def step(self, action):
        if action.startswith("="):
            return {"observation": "", "done": True, "reward": float(action[1:].strip() == self.answer)}
        if action == "*":
            time.sleep(60)
        if action == "()":
            return {"observation": 7, "done": False}
        if action == "/":
            return {"observation": "1 " * 500, "done": False}
        if action == "-":
            return {"observation": "", "done": False}
        self.total += int(action)
        return {"observation": f"= {self.total} ", "done": False, "reward": 0.5}

    def snapshot(self):
        return str(self.total).encode()

    def restore(self, state):
        self.total = int(state)

    def close(self):
        pass


class Replayed(Adds):
    snapshot = restore = None


class Fragile(Replayed):
    replayable = False


class Drifts(Replayed):
    """It says that it is replayable, and is not."""

    def step(self, action):
        return {"observation": f"= {os.getpid()} ", "done": False}


class Begun(Replayed):
    """It tells whether a turn begins as it was made to begin."""

    def step(self, action):
        return {"observation": "= 1 " if action.startswith("= ") else "= 2 ", "done": False}


class Speaks(Adds):
    def reset(self, row):
        return "hello"


class Asks(Adds):
    def reset(self, row):
        super().reset(row)
        return row["prompt"]


class Numbers(Replayed):
    """Begins with its row's seed and the row's own prompt."""

    def __init__(self, drift=0):
        super().__init__()
        self.drift = drift

    def reset(self, row):
        super().reset(row)
        return f"{row['prompt']} {row['seed'] + self.drift}"


class Renders:
    """Speaks in token ids: answers with the ids of the turn, the other way round."""

    replayable = tokenized = True

    def __init__(self, shift=0, forks=False, drifts=False):
        self.shift, self.forks, self.drifts = shift, forks, drifts

    def reset(self, row):
        return [3, 4, 5]

    def step(self, action):
        said = {"observation": [token + self.shift for token in reversed(action)], "done": len(action) > 9}
        self.forks, fresh = self.drifts, self.forks
        return {**said, "fresh": fresh}

    def close(self):
        pass


class Recalls(Renders):
    """Begins a context with the prompt and one token more behind each turn."""

    def step(self, action):
        return {"observation": [3, 4, 5, 6], "done": False, "fresh": True}
'''
STOP = 0


@pytest.fixture(scope="module")
def environments(tmp_path_factory):
    path = tmp_path_factory.mktemp("environments") / "adds.py"
    path.write_text(ENVIRONMENTS)
    return path


@pytest.fixture
def tokenizer(model):
    return Tokenizer.from_file(str(model / "tokenizer.json"))


@pytest.fixture
def store(data_settings, caller):
    role = caller.role = DataRole(data_settings)
    yield role
    role.close()


class Turns:
    """A replica that says what a test wants: each turn ends with the stop token."""

    def __init__(self, store, tokenizer, stop):
        self.store, self.tokenizer, self.stop = store, tokenizer, stop
        self.length = {}

    def says(self, name, text, prompt=3, **asked):
        (resume,) = self.store.begin("r0#1", 0, [TrajectoryRef(name, 0, 0, prompt=prompt, **asked)], seq=9)
        tokens = (*self.tokenizer.encode(text, add_special_tokens=False).ids, self.stop)
        delta = PartialDelta(name, len(resume.kept_tokens), 0, tokens, (-1.0,) * len(tokens), turn_ends=True)
        assert self.store.append("r0#1", [delta]) == []
        self.length[name] = len(resume.kept_tokens) + len(tokens)


@pytest.fixture
def replica(store, tokenizer):
    return Turns(store, tokenizer, STOP)


@pytest.fixture
def make(caller, store, environments, model, split_settings):
    roles = []

    def start(name="Adds", **options):
        arguments = {
            "store": caller,
            "environment": f"{environments}:{name}",
            "options": {},
            "workers": 1,
            "call_s": 20.0,
            "max_turns": 8,
            "max_tokens": 200,
            "tokenizer": model / "tokenizer.json",
            "stop_token_ids": (STOP,),
        }
        roles.append(EnvironmentRole(*split_settings(EnvironmentSettings, **{**arguments, **options})))
        return roles[-1]

    yield start
    for role in roles:
        role.close()


def ask(role, gather, seq, *names):
    """What it answers to a call of trajectories, in the order of their names."""
    role.submit([Call(seq, "0", names)])
    events = gather(role, lambda events: len(events) == len(names), "an answer to each")
    return sorted(events, key=lambda event: event.trajectory)


def test_turns_are_answered_in_the_session_of_their_trajectory(make, replica, gather, store, tokenizer):
    role = make()
    assert role.ready() == Ready()
    replica.says("a", "4")
    replica.says("b", "5")
    a, b = ask(role, gather, 1, "a", "b")
    assert (a.trajectory, a.turn, a.done, a.answers, a.session) == ("a", 1, False, 1, SessionOrigin.HELD)
    ((talk, *_),) = store.conversations(["b"])
    assert tokenizer.decode(list(talk.turns[0].observation)).split() == ["=", "5"]
    assert b.tokens == replica.length["b"] + len(talk.turns[0].observation)
    replica.says("a", "3")
    (a,) = ask(role, gather, 2, "a")
    ((talk, *_),) = store.conversations(["a"])
    assert tokenizer.decode(list(talk.turns[1].observation)).split() == ["=", "7"]
    replica.says("a", "= 3")  # the row's answer
    (a,) = ask(role, gather, 3, "a")
    assert (a.turn, a.done, a.tokens, a.reason) == (3, True, replica.length["a"], FinishReason.STOP)
    (item,) = store.to_score(["a"])
    assert item.metadata["turns"]["reward"] == 2.0
    assert role._pool.open_sessions == 1  # b's


def test_a_call_that_is_repeated_is_answered_from_the_store(make, replica, gather):
    role = make()
    replica.says("a", "4")
    (first,) = ask(role, gather, 1, "a")
    (again,) = ask(make(), gather, 2, "a")  # of another process, which never saw it
    assert (again.turn, again.tokens, again.answers) == (first.turn, first.tokens, 2)


@pytest.mark.parametrize(("name", "origin"), [("Adds", SessionOrigin.RESTORED), ("Replayed", SessionOrigin.REPLAYED)])
def test_a_session_goes_on_in_another_process(make, replica, gather, store, tokenizer, name, origin):
    replica.says("a", "4")
    (held,) = ask(make(name), gather, 1, "a")
    assert held.session is SessionOrigin.HELD
    replica.says("a", "5")
    (again,) = ask(make(name), gather, 2, "a")
    assert (again.turn, again.session) == (2, origin)
    ((talk, *_),) = store.conversations(["a"])
    assert tokenizer.decode(list(talk.turns[1].observation)).split() == ["=", "9"]


@pytest.mark.parametrize(("mode", "first"), [("forced", "1"), ("sampled", "2")])
def test_an_environment_reads_the_beginning_that_a_first_turn_was_forced_to_have(
    make, replica, gather, store, tokenizer, mode, first
):
    for turn in (1, 2):  # in two processes: the second one plays the first turn again, and finds the same answer
        replica.says("a", "4", purpose=Purpose.EVAL, mode=mode)
        (answered,) = ask(make("Begun"), gather, turn, "a")
        assert isinstance(answered, Turned)
    ((talk, *_),) = store.conversations(["a"])
    assert [tokenizer.decode(list(turn.observation)).split()[-1] for turn in talk.turns] == [first, "2"]


def test_a_worker_that_dies_loses_no_session(make, replica, gather, store, tokenizer, until):
    role = make("Replayed")
    replica.says("a", "4")
    ask(role, gather, 1, "a")
    (pid,) = role._pool.pids
    os.kill(pid, signal.SIGKILL)
    replica.says("a", "5")
    (again,) = ask(role, gather, 2, "a")
    assert again.session is SessionOrigin.REPLAYED
    ((talk, *_),) = store.conversations(["a"])
    assert tokenizer.decode(list(talk.turns[1].observation)).split() == ["=", "9"]


@pytest.mark.parametrize(
    ("name", "said"), [("Fragile", "neither a snapshot of it nor"), ("Drifts", "is not what the store")]
)
def test_a_session_that_cannot_be_had_again_is_lost_by_name(make, replica, gather, name, said):
    replica.says("a", "4")
    ask(make(name), gather, 1, "a")
    replica.says("a", "5")
    (failed,) = ask(make(name), gather, 2, "a")
    assert isinstance(failed, CallFailed)
    assert failed.lost
    assert said in failed.reason


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("()", "nonsense"),
        ("/", "expected fewer than the 200 of a response"),
        ("x", "raised ValueError"),
    ],
)
def test_what_is_no_answer_fails_by_name_and_nobody_else(make, replica, gather, action, said):
    role = make()
    replica.says("a", action)
    replica.says("b", "4")
    failed, answered = ask(role, gather, 1, "a", "b")
    assert isinstance(failed, CallFailed)
    assert not failed.lost
    assert said in failed.reason
    assert isinstance(answered, Turned)
    assert role._pool.open_sessions == 1


def test_an_answer_without_words_is_an_empty_line(make, replica, gather, store, tokenizer):
    replica.says("a", "-")
    (answered,) = ask(make(), gather, 1, "a")
    assert not answered.done
    ((talk, *_),) = store.conversations(["a"])
    assert list(talk.turns[0].observation) == tokenizer.encode("\n", add_special_tokens=False).ids != []


def test_an_answer_that_the_tokenizer_has_no_token_for_fails_by_name(make, replica, gather, monkeypatch):
    monkeypatch.setattr(Observations, "tokens", lambda *_: ())
    replica.says("a", "-")
    (failed,) = ask(make(), gather, 1, "a")
    assert "with nothing, expected an observation or `done`" in failed.reason


def test_a_turn_that_is_too_long_for_an_environment_fails_by_name_and_nobody_else(make, replica, gather, monkeypatch):
    monkeypatch.setattr("tailrace.environment.session_pool.TEXT_CHARACTERS", 1)
    role = make()
    replica.says("a", "14")
    replica.says("b", "4")
    failed, answered = ask(role, gather, 1, "a", "b")
    assert failed.reason == "found an action of 2 characters, expected at most 1"
    assert isinstance(answered, Turned)
    assert role._pool.open_sessions == 1


def test_a_call_past_its_deadline_fails_by_name(make, replica, gather):
    role = make(call_s=5.0)  # a worker starts and opens the session in that time, too
    replica.says("a", "*")
    (failed,) = ask(role, gather, 1, "a")
    assert "did not answer 'step' within 5 s" in failed.reason


def test_a_first_observation_that_no_model_reads_is_refused(make, replica, gather):
    replica.says("a", "4")
    (failed,) = ask(make("Speaks"), gather, 1, "a")
    assert "began with 'hello', which the model has not read" in failed.reason


def test_a_first_observation_that_the_prompt_says_is_none_of_its_own(make, replica, gather):
    replica.says("a", "4")
    (answered,) = ask(make("Asks"), gather, 1, "a")
    assert isinstance(answered, Turned)


def begin(role, prompt, seed, observation):
    """Give the store's prompts a beginning, as a run's own files have it."""
    row = role._prompts._train._rows[3]
    about = {"where": "line 4", "prompt": prompt, "seed": seed, "observation": observation}
    role._prompts._train._rows[3] = replace(row, metadata={"metadata": {}, "beginning": about})


def test_a_session_must_begin_with_what_the_prompt_was_made_of(make, replica, gather, store):
    begin(store, "count", 7, "count 7")
    replica.says("a", "4")
    (answered,) = ask(make("Numbers"), gather, 1, "a")
    assert isinstance(answered, Turned)
    replica.says("b", "4")
    (failed,) = ask(make("Numbers", options={"drift": 1}), gather, 2, "b")
    assert isinstance(failed, CallFailed)
    assert not failed.lost
    assert "began with 'count 8', and the model has read 'count 7': expected the same each time" in failed.reason


def test_a_session_that_is_played_again_must_begin_with_it_too(make, replica, gather, store):
    begin(store, "count", 7, "count 7")
    replica.says("a", "4")
    ask(make("Numbers"), gather, 1, "a")
    replica.says("a", "5")
    (failed,) = ask(make("Numbers", options={"drift": 1}), gather, 2, "a")
    assert isinstance(failed, CallFailed)
    assert failed.lost
    assert "was played again, and the environment" in failed.reason


def test_an_environment_that_renders_gets_and_says_tokens(make, replica, gather, store, tokenizer):
    begin(store, "", 7, [3, 4, 5])
    assert store._prompts.encode(TrajectoryRef("a", 0, 0, prompt=3)) == (3, 4, 5)
    role = make("Renders", glue=Glue("+ ", " = "))
    replica.says("a", "4 + 5")
    ask(role, gather, 1, "a")
    ((talk, *_),) = store.conversations(["a"])
    assert talk.turns[0].observation == tuple(
        reversed(talk.turns[0].response)
    )  # the end of the turn included, and no glue
    assert talk.turns[0].response[-1] == STOP
    replica.says("a", "6")
    (again,) = ask(make("Renders"), gather, 2, "a")
    assert again.session is SessionOrigin.REPLAYED
    replica.says("b", "4")
    (failed,) = ask(make("Renders", options={"shift": 500}), gather, 3, "b")
    assert f"expected one below {tokenizer.get_vocab_size()}: does it have the model's tokenizer?" in failed.reason
    begin(store, "", 7, [3, 4, 6])
    replica.says("c", "4")
    (failed,) = ask(role, gather, 4, "c")
    assert "began with [3, 4, 5], and the model has read [3, 4, 6]" in failed.reason


def test_a_context_of_its_own_is_stored_and_played_again(make, replica, gather, store):
    begin(store, "", 7, [3, 4, 5])
    role = make("Renders", options={"forks": True})
    for turn, fresh in enumerate((True, False), 1):
        replica.says("a", "4 + 5")
        (answered,) = ask(role, gather, turn, "a")
        ((talk, *_),) = store.conversations(["a"])
        assert (talk.turns[-1].fresh, answered.tokens) == (fresh, 2 * replica.length["a"] - talk.turns[-1].start)
    replica.says("a", "6")
    (again,) = ask(make("Renders", options={"forks": True}), gather, 3, "a")
    assert again.session is SessionOrigin.REPLAYED
    replica.says("a", "6")
    (failed,) = ask(make("Renders", options={"forks": True, "drifts": True}), gather, 4, "a")
    assert failed.lost
    assert "which is not what the store has" in failed.reason


@pytest.mark.parametrize(("room", "ends"), [(1, False), (0, True)])
def test_what_a_context_repeats_counts_as_no_response(room, ends, make, replica, gather, store):
    """Three of the four tokens of the first answer are the prompt's; the second answer is the first one again."""
    begin(store, "", 7, [3, 4, 5])
    replica.says("a", "4 + 5")
    first = replica.length["a"]
    ask(make("Recalls"), gather, 1, "a")
    replica.says("a", "6")
    generated = replica.length["a"] - 4
    (answered,) = ask(make("Recalls", max_tokens=generated + 1 + room), gather, 2, "a")
    assert (answered.done, answered.reason) == ((True, FinishReason.LENGTH) if ends else (False, answered.reason))
    assert answered.tokens == first + 4 + (generated - first) + (0 if ends else 4)


def test_the_last_turn_that_it_may_have_ends_a_trajectory(make, replica, gather):
    role = make(max_turns=1)
    replica.says("a", "4")
    (last,) = ask(role, gather, 1, "a")
    assert (last.done, last.tokens, last.reason) == (True, replica.length["a"], FinishReason.LENGTH)
    assert role._pool.open_sessions == 0
    (again,) = ask(make(), gather, 2, "a")  # of another process, which finds it in the store
    assert (again.done, again.tokens, again.reason) == (True, replica.length["a"], FinishReason.LENGTH)


def test_an_answer_that_leaves_no_room_for_the_next_turn_ends_a_trajectory(make, replica, gather, store):
    replica.says("a", "4")
    room = replica.length["a"] + 3
    (last,) = ask(make(max_tokens=room), gather, 1, "a")
    assert (last.done, last.tokens, last.reason) == (True, replica.length["a"], FinishReason.LENGTH)
    (item,) = store.to_score(["a"])
    assert item.metadata["turns"]["reward"] == 0.5
    assert store.experiences(["a"])[0].finish is FinishReason.LENGTH


@pytest.mark.parametrize("name", ["Adds", "Replayed"])
def test_a_session_whose_answer_came_second_does_not_go_on(make, replica, gather, store, tokenizer, name):
    """A member that was given up lives on and is first: what it answered stays, and the next turn goes on from there."""
    role = make(name)
    replica.says("a", "4")
    observe = role._data.observe

    def second(name, serial, *answer):
        if not first:
            first.append(tuple(tokenizer.encode("= 4 5", add_special_tokens=False).ids))
            store.observe("a", serial, first[0], None, 0.5, None)
        return observe(name, serial, *answer)

    first, role._data.observe = [], second
    (answered,) = ask(role, gather, 1, "a")
    ((talk, *_),) = store.conversations(["a"])
    assert talk.turns[0].observation == first[0]
    assert answered.tokens == replica.length["a"] + len(first[0])
    replica.says("a", "5")
    (failed,) = ask(role, gather, 2, "a")
    assert isinstance(failed, CallFailed)  # played again it says another thing than what the store has
    assert failed.lost


def test_what_is_closed_is_not_answered_and_has_no_session(make, replica, gather, until):
    role = make()
    replica.says("a", "*")
    replica.says("b", "4")
    role.submit([Call(1, "0", ("a", "b", "unknown"))])
    (answered,) = gather(role, bool, "the answer to b")
    role.submit([Close(2, "0", ("a", "b", "unknown"))])
    until(lambda: role._pool.open_sessions == 0, "its sessions to end")
    assert answered.trajectory == "b"
    assert role.events(0.0) == []


def test_what_is_dropped_meanwhile_is_not_answered(make, replica, store, until):
    role = make()
    replica.says("a", "4")
    store._store.discard(["a"], "surplus")
    role.submit([Call(1, "0", ("a",))])
    until(lambda: not role._calls, "the call to end")
    assert role.events(0.0) == []


def test_another_controller_begins_without_sessions(make, replica, gather, until):
    role = make()
    replica.says("a", "4")
    ask(role, gather, 1, "a")
    role.adopt()
    until(lambda: role._pool.open_sessions == 0, "its sessions to end")


def test_what_is_not_its_own_is_refused(make):
    with pytest.raises(RoleError, match="an environment got Interrupt 4, expected Call or Close"):
        make().submit([Interrupt(4, "r0", ("a",))])


def test_an_environment_that_cannot_be_had_is_told_in_one_line(make):
    with pytest.raises(Exception, match=r"colour") as refused:
        make(options={"colour": 1})
    assert len(str(refused.value).splitlines()) == 1


def test_an_answer_is_encoded_by_itself_and_literally(model, tokenizer):
    plain = Observations(model / "tokenizer.json", (STOP,), None)
    end = tokenizer.id_to_token(STOP)
    for text in ("= 7 ", f"3{end}4"):
        tokens = plain.tokens(text, "3 + 4 = ")
        assert STOP not in tokens
    assert plain.action((*tokenizer.encode("1 + 2", add_special_tokens=False).ids, STOP)) == "1 + 2"


def test_a_chat_model_reads_an_answer_in_the_words_of_its_template(model):
    glue = Glue("+ ", " = ")
    chats = Observations(model / "tokenizer.json", (STOP,), glue)
    plain = Observations(model / "tokenizer.json", (STOP,), None)
    own, before, after = (plain.tokens(text, "") for text in ("7", "+ ", " = "))
    assert chats.tokens("7", "1 + 2 = ") == (*before, *own, *after)
    assert chats.tokens("7", "of a file, without the template") == own
    assert Path(model).is_dir()
