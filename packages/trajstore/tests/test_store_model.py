"""Random calls against a slow obvious model, with the store closed and opened again in between."""

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tailrace.contracts import FinishReason
from tailrace.trajstore import Assignment, PartialDelta, TrajectoryStateError, TrajectoryStore

names = st.sampled_from(["a", "b", "c"])
owners = st.sampled_from(["r0", "r1"])
versions = st.integers(0, 2)


class Model:
    """One trajectory as plain lists."""

    def __init__(self):
        self.status, self.owner, self.version = "partial", None, 0
        self.reward, self.consumed = None, None
        self.begin_anew()

    def begin_anew(self):
        """Tokens as plain lists; of each, whether an environment answered it; where contexts begin; each turn."""
        self.tokens, self.versions, self.observed, self.fresh = [], [], [], []
        self.turns, self.session = [], None

    @property
    def waits(self):
        return bool(self.turns) and self.turns[-1]["answer"] is None


class StoreMachine(RuleBasedStateMachine):
    mixed = False

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "store.db"
        self.store = self.open()
        self.model = {}
        self.next_token = 0
        self.trainer = 0

    def open(self):
        return TrajectoryStore(self.path, mixed_versions=self.mixed, synchronous="off", logprobs="float32")

    def teardown(self):
        self.store.close()
        self.folder.cleanup()

    @rule(owner=owners, version=versions, chosen=st.sets(names, min_size=1))
    def begin(self, owner, version, chosen):
        resumes = self.store.begin(owner, version, [Assignment(name, 0, (1,)) for name in sorted(chosen)])
        for name, resume in zip(sorted(chosen), resumes, strict=True):
            known = self.model.get(name)
            if known is None or known.status == "discarded":
                known = self.model[name] = Model()
            assert resume.complete == (known.status != "partial")
            if known.status == "partial":
                if known.version != version and not self.mixed:
                    known.begin_anew()
                known.owner, known.version = owner, version
            assert list(resume.kept_tokens) == known.tokens
            assert [value == 0.0 for value in resume.kept_logprobs] == known.observed
            assert resume.turn_ended == (known.status == "partial" and known.waits)
            assert resume.context == max(known.fresh, default=0)
            assert (resume.repeated > 0) <= bool(known.fresh)

    @rule(owner=owners, name=names, count=st.integers(0, 3), skew=st.sampled_from([0, 0, 0, -1, 1]),
          version=st.none() | versions, end=st.sampled_from(["", "", "turn", "turn", "response"]),
          again=st.booleans())  # fmt: skip
    def append(self, owner, name, count, skew, version, end, again):
        known, last = self.model.get(name), end == "response"
        offset = max(0, (len(known.tokens) if known else 0) + skew)
        version = (known.version if known else 0) if version is None else version
        tokens = tuple(range(self.next_token, self.next_token + count))
        self.next_token += count
        finish = FinishReason.STOP if last else None
        delta = PartialDelta(name, offset, version, tokens, (-1.0,) * count, finish, turn_ends=end == "turn")
        fits = (
            known is not None
            and known.status == "partial"
            and known.owner == owner
            and offset == len(known.tokens)
            and not known.waits
            and (self.mixed or version == known.version or not (tokens or end))
            and (end != "turn" or count or (known.observed and not known.observed[-1]))
        )
        # Tokens and an end are new each time, so only an empty delta can look like one that is stored.
        if not tokens and (end or known is None or not fits) and not (fits and end):
            return
        assert self.store.append(owner, [delta]) == ([] if fits else [name])
        if fits:
            known.tokens += tokens
            known.versions += [version] * count
            known.observed += [False] * count
            if end == "turn":
                known.turns.append({"ends": len(known.tokens), "answer": None, "reward": 0, "done": False})
            known.status = "complete" if last else "partial"
        if again and fits:
            assert self.store.append(owner, [delta]) == []

    @rule(name=names, count=st.integers(0, 3), reward=st.integers(-1, 2), done=st.booleans(),
          session=st.none() | st.binary(max_size=3), late=st.booleans(), again=st.booleans(),
          fresh=st.booleans())  # fmt: skip
    def observe(self, name, count, reward, done, session, late, again, fresh):
        known = self.model.get(name)
        found = self.store.conversations([name])
        if known is None or known.status == "discarded":
            assert found == []
            return
        turns = found[0].turns
        if not turns:
            return
        turn, expected = turns[-1], known.turns[-1]
        tokens = tuple(range(self.next_token, self.next_token + count))
        self.next_token += count
        if not tokens and not done:
            return
        serial = turn.serial + 1000 if late else turn.serial
        stored = self.store.observe(name, serial, tokens, done=done, reward=reward, session=session, fresh=fresh)
        if late:
            assert stored is None
            return
        if expected["answer"] is None:
            expected.update(answer=list(tokens), reward=reward, done=done)
            if fresh and tokens:
                known.fresh.append(len(known.tokens))
            known.versions += [known.versions[-1]] * count
            known.tokens += tokens
            known.observed += [True] * count
            if done:
                known.status, known.session = "complete", None
            elif session is not None:
                known.session = session
        assert [list(stored.observation), stored.reward, stored.done, stored.fresh] == [
            expected["answer"], expected["reward"], expected["done"], expected["ends"] in known.fresh
        ]  # fmt: skip
        if again:  # another member answers the same turn: the first answer stays
            assert self.store.observe(name, serial, (9, 9, 9), reward=7, session=b"other") == stored

    @rule(name=names, reward=st.integers(0, 1))
    def reward(self, name, reward):
        known = self.model.get(name)
        if known is not None and known.status == "complete":
            assert self.store.set_reward(name, reward)
            known.reward = reward

    @rule(name=names)
    def consume(self, name):
        known = self.model.get(name)
        if known is None:
            return
        if known.status == "complete" and known.reward is not None:
            self.trainer += 1
            self.store.consume([name], self.trainer)
            known.status, known.consumed = "consumed", self.trainer
            return
        try:
            self.store.consume([name], self.trainer + 1)
        except TrajectoryStateError:
            return
        raise AssertionError(f"consumed {name}, which was {known.status}")

    @rule(back=st.integers(0, 2))
    def rollback(self, back):
        self.trainer = max(0, self.trainer - back)
        undone = self.store.rollback(self.trainer)
        expected = [name for name, known in self.model.items() if (known.consumed or 0) > self.trainer]
        assert sorted(undone) == sorted(expected)
        for name in expected:
            self.model[name].status, self.model[name].consumed = "complete", None

    @rule(name=names)
    def discard(self, name):
        known = self.model.get(name)
        if known is None or known.status == "consumed":
            return
        assert self.store.discard([name], "test") == ([name] if known.status != "discarded" else [])
        known.status = "discarded"

    @rule()
    def reopen(self):
        self.store.close()
        self.store = self.open()

    @rule()
    def recover(self):
        found = self.store.recover()
        assert found.held == {name: known.reward for name, known in self.model.items() if known.status == "complete"}
        partial = {name: known for name, known in self.model.items() if known.status == "partial"}
        assert found.partial == {name: (known.version, len(known.tokens)) for name, known in partial.items()}
        for known in partial.values():
            known.owner = None

    @invariant()
    def the_store_equals_the_model(self):
        audit = self.store.audit()
        assert audit["consumed_twice"] == audit["inconsistent"] == []
        statuses = {name: str(status) for name, status in self.store.statuses(["a", "b", "c"]).items()}
        assert statuses == {name: known.status for name, known in self.model.items()}
        done = [name for name, known in self.model.items() if known.status in ("complete", "consumed")]
        for name, experience in zip(done, self.store.experiences(done), strict=True):
            known = self.model[name]
            assert list(experience.tokens) == known.tokens
            assert [part.version for part in experience.segments for _ in part.tokens] == known.versions
            assert experience.reward == known.reward
            assert [not generated for generated in experience.generated] == known.observed
            (outline,) = self.store.outlines([name])
            assert outline.spans == experience.spans
            starts = [sum(count for _, count, _ in outline.spans[:at]) for at in range(len(outline.spans))]
            assert [at for at, (*_, kind) in zip(starts, outline.spans, strict=True) if kind == 2] == known.fresh
            answered = [turn for turn in known.turns if turn["answer"] is not None]
            about = {"turns": len(answered), "reward": sum(turn["reward"] for turn in answered),
                     "done": any(turn["done"] for turn in answered)}  # fmt: skip
            assert experience.metadata.get("environment") == (about if answered else None)
        there = [name for name, known in self.model.items() if known.status != "discarded"]
        for name, conversation in zip(there, self.store.conversations(there), strict=True):
            known = self.model[name]
            assert conversation.session == known.session
            start = 0
            for turn, expected in zip(conversation.turns, known.turns, strict=True):
                assert (turn.start, list(turn.response)) == (start, known.tokens[start : expected["ends"]])
                assert turn.observation == (None if expected["answer"] is None else tuple(expected["answer"]))
                start = expected["ends"] + len(expected["answer"] or ())
        assert {partial.trajectory: (partial.tokens, partial.turn_ended) for partial in self.store.partials()} == {
            name: (len(known.tokens), known.waits) for name, known in self.model.items() if known.status == "partial"
        }


class MixedStoreMachine(StoreMachine):
    mixed = True


TestSingleVersion = StoreMachine.TestCase
TestMixedVersions = MixedStoreMachine.TestCase
TestSingleVersion.settings = TestMixedVersions.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
