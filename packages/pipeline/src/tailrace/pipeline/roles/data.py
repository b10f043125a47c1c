"""The data role: prompt pool, partial-response pool and experience buffer in one process (Laminar, section 3.1).

replicas ──begin, append──►  partial-response pool ──finish──► experience buffer  ◄──outlines, packed, consume── trainer
                               ▲ conversations, observe               ▲ to_score, set_rewards
                          environments                              scorer

A caller may repeat a call whose answer was lost because this process died: the store accepts repeated calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from tailrace.contracts import (
    Abort,
    Command,
    Discarded,
    Event,
    Experience,
    ExperienceOutline,
    FinishReason,
    Measure,
    Measured,
    PackedTokens,
    PartialDelta,
    Purpose,
    Resume,
    TrajectoryRef,
)
from tailrace.pipeline.roles.calls import DataCalls, FinishedLength, FinishedLengths
from tailrace.pipeline.roles.prompts import Prompts, PromptSettings, item_metadata
from tailrace.reward import ScoreItem
from tailrace.reward.items import of_turns
from tailrace.runtime.errors import RoleError
from tailrace.runtime.executor.doors import Ready
from tailrace.runtime.executor.seam import MemberStart
from tailrace.runtime.role_worker import RoleWorker
from tailrace.trajstore import (
    Assignment,
    Conversation,
    Prompt,
    TrajectoryStore,
    Turn,
)

_OPEN_S, _CLOSE_S = 30.0, 10.0
_TRIM_S = 10.0


@dataclass(frozen=True, slots=True)
class DataSettings:
    """Settings of the data role.

    Args:
        store: the SQLite file.
        prompts: the prompts.
        verifier: the verifier of rows that name none.
        mixed_versions: whether a trajectory may continue under newer weights.
        archive: file for trajectories that were trained on and leave the store; None: they are not kept.
    """

    store: Path
    prompts: PromptSettings
    verifier: str
    mixed_versions: bool = False
    archive: Path | None = None


class DataRole:
    """Owns the trajectory store and the prompts."""

    def __init__(self, settings: DataSettings, start: MemberStart = MemberStart()) -> None:  # noqa: B008 - frozen
        del start  # it calls nobody
        self._archive, self._verifier = settings.archive, settings.verifier
        self._prompts = Prompts(settings.prompts)  # before the store, which a start that fails would leave locked
        mixed = settings.mixed_versions
        self._store = TrajectoryStore(settings.store, mixed_versions=mixed, open_timeout_s=_OPEN_S)
        self._dropped = Dropped()
        self._lengths = FinishedLengths()
        self._lock = Lock()  # a trajectory is begun either before it is dropped or not at all
        self._worker = RoleWorker("discards", self._carry_out)

    # ---- for the executor -----------------------------------------------------------------------------------------

    def ready(self, version: int | None = None) -> Ready:
        """The content of the store.

        Args:
            version: None at the first start, or if only this role died and its callers continue. If the whole run restarts,
                the version that the trainer continues from. Trajectories trained on after it may then be consumed again,
                and unfinished ones lose their owners.
        """
        if version is not None:
            self._store.rollback(version)
        found = self._store.recover(keep_owners=version is None)
        return Ready(held=tuple(found.held), partial=dict(found.partial))

    def submit(self, commands: Sequence[Command]) -> None:
        """Discard the trajectories of each `Abort`, and measure the prompts of each `Measure`."""
        self._worker.submit(commands)

    def events(self, timeout_s: float) -> list[Event]:
        """`Discarded` and `Measured` events since the last call; waits up to `timeout_s` seconds for the first."""
        return self._worker.events(timeout_s)

    def adopt(self) -> None:
        """Prepare for another controller."""
        self._worker.forget()
        with self._lock:
            self._dropped.forget()

    def close(self) -> None:
        """Close the store."""
        self._worker.close(_CLOSE_S)
        self._store.close()

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Measure):
            refs = [TrajectoryRef("", 0, 0, Purpose.TRAIN, prompt=at) for at in command.prompts]
            lengths = tuple([len(self._prompts.encode(ref)) for ref in refs])
            self._worker.put(Measured(command.prompts, lengths, command.seq))
            return
        if not isinstance(command, Abort):
            raise RoleError(f"the data role got {type(command).__name__} {command.seq}, expected Abort or Measure")
        with self._lock:
            self._dropped.note(command.trajectories, command.seq)
            tokens = self._store.partial_tokens(command.trajectories)
            self._store.discard(command.trajectories, command.reason.why.value)
        self._worker.put(Discarded(command.seq, tokens))

    # ---- for replicas ---------------------------------------------------------------------------------------------

    def begin(self, owner: str, version: int, refs: Sequence[TrajectoryRef], seq: int) -> list[Resume]:
        """Give trajectories to a replica, with their prompts and tokens; of this version only, unless versions mix.

        Args:
            seq: number of the `Route`. Trajectories that were dropped since it was given are left out.
        """
        tokens: dict[tuple[Purpose, int, str], tuple[int, ...]] = {}  # of each prompt, which a group's samples share
        for ref in refs:
            if (prompt := (ref.purpose, ref.prompt, ref.mode)) not in tokens:
                tokens[prompt] = self._prompts.encode(ref)
        items = {
            ref.trajectory: Assignment(
                trajectory=ref.trajectory,
                group=ref.group,
                prompt_tokens=tokens[ref.purpose, ref.prompt, ref.mode],
                purpose=ref.purpose.value,
                metadata={"prompt": ref.prompt, "mode": ref.mode},
            )
            for ref in refs
        }
        with self._lock:
            wanted = self._dropped.wanted(refs, seq)
            return self._store.begin(owner, version, [items[ref.trajectory] for ref in wanted])

    def append(self, owner: str, deltas: Sequence[PartialDelta]) -> list[str]:
        """Store new tokens. Returns the trajectories that no longer belong to the owner."""
        return self._store.append(owner, deltas)

    # ---- for environments -----------------------------------------------------------------------------------------

    def conversations(self, ids: Sequence[str]) -> list[tuple[Conversation, Prompt, str]]:
        """Trajectories with their turns, each with its prompt's row and the text with which its first turn was made to begin.

        Those that were dropped are left out.
        """
        found = [(one, _ref(one.trajectory, one.group, one.metadata)) for one in self._store.conversations(ids)]
        return [(one, self._prompts.prompt(ref), self._prompts.prefix(ref)) for one, ref in found]

    def observe(
        self,
        trajectory: str,
        serial: int,
        tokens: Sequence[int],
        finish: FinishReason | None,
        reward: float,
        session: bytes | None,
        fresh: bool = False,
    ) -> Turn | None:
        """Store what an environment answered to a turn; see `TrajectoryStore.observe`. None if it comes too late.

        Args:
            finish: why the trajectory is done with it; None if it is not.
        """
        if finish is None:
            return self._store.observe(trajectory, serial, tokens, reward=reward, session=session, fresh=fresh)
        return self._store.observe(trajectory, serial, tokens, done=True, finish=finish, reward=reward)

    # ---- for the scorer -------------------------------------------------------------------------------------------

    def to_score(self, ids: Sequence[str]) -> list[ScoreItem]:
        """Finished trajectories as text, with their verifiers' inputs. Trajectories that were dropped are left out."""
        items = []
        for experience in self._store.finished(ids):
            ref = _ref(experience.trajectory, experience.group, experience.metadata)
            prompt = self._prompts.prompt(ref)
            if ref.purpose is Purpose.TRAIN:
                name, tokens = experience.trajectory, experience.generated_tokens
                cut = experience.finish is FinishReason.LENGTH
                self._lengths.note(name, prompt.prompt, tokens, experience.oldest_version, truncated=cut)
            answered = any(segment.observation for segment in experience.segments)
            text = self._prompts.decode(experience.tokens, experience.generated if answered else None)
            items.append(
                ScoreItem(
                    trajectory=experience.trajectory,
                    response_text=self._prompts.prefix(ref) + text,
                    answer=prompt.answer,
                    verifier=prompt.verifier or self._verifier,
                    metadata=item_metadata(prompt) | self._turns(experience),
                    prompt_text=prompt.prompt,
                )
            )
        return items

    def _turns(self, experience: Experience) -> dict[str, Any]:
        """What a verifier gets to know of turns; nothing of a response that no environment answered."""
        about = experience.metadata.get("environment")
        if not isinstance(about, Mapping):
            return {}
        last = self._prompts.decode(experience.last_turn)
        return of_turns(experience.turns, float(about["reward"]), bool(about["done"]), last)

    def set_rewards(self, rewards: Mapping[str, float]) -> None:
        """Store rewards of finished trajectories, but for those that were dropped, started again or forgotten meanwhile."""
        self._store.set_rewards(rewards)

    # ---- for the ranker -------------------------------------------------------------------------------------------

    def prompt_texts(self, prompts: Sequence[int]) -> list[str]:
        """The texts of prompts of the stream."""
        return [self._prompts.prompt(TrajectoryRef("", 0, 0, Purpose.TRAIN, prompt=at)).prompt for at in prompts]

    def finished_lengths(self, after: int) -> list[FinishedLength]:
        """Responses of training that finished after the one with this number, the last ones at least."""
        return self._lengths.since(after)

    # ---- for the trainer ------------------------------------------------------------------------------------------

    def experiences(self, ids: Sequence[str]) -> list[Experience]:
        """Finished trajectories with their tokens."""
        return self._store.experiences(ids)

    def outlines(self, ids: Sequence[str]) -> list[ExperienceOutline]:
        """Finished trajectories without their tokens."""
        return self._store.outlines(ids)

    def packed(self, wanted: Sequence[tuple[str, bool]]) -> list[PackedTokens]:
        """The tokens of finished trajectories, each with its prompt if that is wanted."""
        return self._store.packed(wanted)

    def consume(self, ids: Sequence[str], version: int) -> None:
        """Mark trajectories as trained on by the step that made `version`."""
        self._store.consume(ids, version)

    def roll_back(self, version: int) -> None:
        """Make trajectories available again that were trained on after a version, from which the trainer continues."""
        self._store.rollback(version)

    def trim(self, version: int) -> int:
        """Forget trajectories that are not needed any more, since the trainer never falls back behind this version.

        Returns after some seconds the number of those that it forgot. It is called until there are none.
        """
        return self._store.trim(version, self._archive, within_s=_TRIM_S)

    # ---- for the driver -------------------------------------------------------------------------------------------

    def audit(self) -> dict[str, Any]:
        """Counts by status."""
        return dict(self._store.audit())

    def trained_lengths(self) -> list[int]:
        """Number of generated tokens of each trajectory that was trained on."""
        return self._store.consumed_tokens()

    def export(self, path: Path) -> None:
        """Write the trajectories that were trained on to a file; see `TrajectoryStore.export`."""
        self._store.export(path)


def _ref(trajectory: str, group: int, about: Mapping[str, object]) -> TrajectoryRef:
    """The reference with which `begin` got a trajectory, from its metadata."""
    prompt, purpose, mode = about["prompt"], Purpose(str(about["purpose"])), str(about["mode"])
    assert isinstance(prompt, int)
    return TrajectoryRef(trajectory, group, 0, purpose, mode, prompt=prompt)


MOST_DROPPED = 65_536
"""Trajectories that are remembered: more than are dropped while one command is on its way."""


class Dropped:
    """Remembers by which `Abort` trajectories were dropped. What begins after it was routed after it.

    Otherwise the tokens of a trajectory that nobody wants would stay in the store for good: its replica is told to stop it, but
    the store has dropped it already. What a process of the store remembers ends with it.

    Args:
        most: trajectories that are remembered, those that were dropped last.
    """

    def __init__(self, most: int = MOST_DROPPED) -> None:
        self._most = most
        self._seqs: dict[str, int] = {}

    def note(self, names: Iterable[str], seq: int) -> None:
        """Note that an `Abort` of a number dropped trajectories."""
        for name in names:
            self._seqs.pop(name, None)
            self._seqs[name] = seq
        while len(self._seqs) > self._most:
            del self._seqs[next(iter(self._seqs))]

    def wanted(self, refs: Sequence[TrajectoryRef], seq: int) -> Sequence[TrajectoryRef]:
        """Trajectories of the `Route` with this number that were not dropped since it was given."""
        if not self._seqs:
            return refs
        return [ref for ref in refs if self._seqs.get(ref.trajectory, 0) < seq]

    def forget(self) -> None:
        """Forget all: the numbers begin anew, with another controller or process."""
        self._seqs.clear()


if TYPE_CHECKING:
    _: type[DataCalls] = DataRole  # mypy checks it here
