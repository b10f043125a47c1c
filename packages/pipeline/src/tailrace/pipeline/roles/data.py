"""The data role: prompt pool, partial-response pool and experience buffer in one process (Laminar, section 3.1).

replicas ──begin, append──►  partial-response pool ──finish──► experience buffer  ◄──experiences, consume── trainer
                                                                      ▲ to_score, set_rewards
                                                                    scorer

Whoever calls it may repeat a call whose answer was lost because this process died: the store sees to that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tailrace.contracts import Abort, Command, Discarded, Event, Experience, Purpose, TrajectoryRef
from tailrace.pipeline.errors import RoleError
from tailrace.pipeline.roles.prompts import Prompts, item_metadata
from tailrace.pipeline.roles.worker import Worker
from tailrace.reward import ScoreItem
from tailrace.rollout.ports import PartialDelta, Resume
from tailrace.trajstore import Assignment, TrajectoryStateError, TrajectoryStore
from tailrace.trajstore import PartialDelta as StoredDelta

_OPEN_S, _CLOSE_S = 30.0, 10.0


class DataRole:
    """Owns the trajectory store and the prompts.

    Args:
        store: the SQLite file.
        prompts: arguments of `Prompts`.
        verifier: verifier of rows that name none.
        mixed_versions: a trajectory may go on under newer weights.
    """

    def __init__(self, *, store: Path, prompts: Mapping[str, Any], verifier: str, mixed_versions: bool = False) -> None:
        self._store = TrajectoryStore(store, mixed_versions=mixed_versions, open_timeout_s=_OPEN_S)
        self._prompts = Prompts(**prompts)
        self._verifier = verifier
        self._worker = Worker("discards", self._carry_out)

    # ---- for the executor -----------------------------------------------------------------------------------------

    def ready(self, version: int | None = None) -> dict[str, Any]:
        """What the store holds.

        Args:
            version: None at the first start, and where only this role has died: its callers go on where they were. Where the
                whole run starts again, the version that the trainer goes on from: what was trained on after it is held again,
                and nobody owns what is unfinished.
        """
        if version is not None:
            self._store.rollback(version)
        found = self._store.recover(keep_owners=version is None)
        return {"held": tuple(found.held), "partial": dict(found.partial)}

    def submit(self, commands: Sequence[Command]) -> None:
        """Discard what each `Abort` names."""
        self._worker.submit(commands)

    def events(self, timeout_s: float) -> list[Event]:
        """What was discarded since the last call; waits up to `timeout_s` seconds for something."""
        return self._worker.events(timeout_s)

    def adopt(self) -> None:
        """Another controller takes over."""
        self._worker.forget()

    def close(self) -> None:
        """Close the store."""
        self._worker.close(_CLOSE_S)
        self._store.close()

    def _carry_out(self, command: Command) -> None:
        if not isinstance(command, Abort):
            raise RoleError(f"the data role got {type(command).__name__} {command.seq}, expected Abort")
        self._store.discard(command.trajectories, command.reason.why.value)
        self._worker.put(Discarded(command.seq))

    # ---- for replicas ---------------------------------------------------------------------------------------------

    def begin(self, owner: str, version: int, refs: Sequence[TrajectoryRef]) -> list[Resume]:
        """A replica takes trajectories: their prompts and what they have, on the same version unless versions mix."""
        items = [
            Assignment(
                trajectory=ref.trajectory,
                group=ref.group,
                prompt_tokens=self._prompts.encode(ref),
                purpose=ref.purpose.value,
                metadata={"prompt": ref.prompt, "mode": ref.mode},
            )
            for ref in refs
        ]
        return [
            Resume(
                trajectory=resume.trajectory,
                prompt_tokens=tuple(resume.prompt_tokens),
                kept_tokens=tuple(resume.kept_tokens),
                complete=resume.complete,
            )
            for resume in self._store.begin(owner, version, items)
        ]

    def append(self, owner: str, deltas: Sequence[PartialDelta]) -> list[str]:
        """Tokens in progress; returns the trajectories that are no longer the owner's."""
        return self._store.append(
            owner,
            [
                StoredDelta(delta.trajectory, delta.offset, delta.version, delta.tokens, delta.logprobs, delta.finish)
                for delta in deltas
            ],
        )

    # ---- for the scorer -------------------------------------------------------------------------------------------

    def to_score(self, ids: Sequence[str]) -> list[ScoreItem]:
        """Finished trajectories as text, with what their verifier needs. Those that were dropped meanwhile are left out."""
        items = []
        for experience in self._store.finished(ids):
            ref = _ref(experience)
            prompt = self._prompts.prompt(ref)
            items.append(
                ScoreItem(
                    trajectory=experience.trajectory,
                    response_text=self._prompts.prefix(ref) + self._prompts.decode(experience.tokens),
                    answer=prompt.answer,
                    verifier=prompt.verifier or self._verifier,
                    metadata=item_metadata(prompt),
                )
            )
        return items

    def set_rewards(self, rewards: Mapping[str, float]) -> None:
        """Rewards of finished trajectories."""
        for trajectory, reward in rewards.items():
            with suppress(TrajectoryStateError):  # dropped and begun anew meanwhile: the reward came too late
                self._store.set_reward(trajectory, reward)

    # ---- for the trainer ------------------------------------------------------------------------------------------

    def experiences(self, ids: Sequence[str]) -> list[Experience]:
        """Finished trajectories with their tokens."""
        return self._store.experiences(ids)

    def consume(self, ids: Sequence[str], version: int) -> None:
        """A step that made `version` trained on these."""
        self._store.consume(ids, version)

    def roll_back(self, version: int) -> None:
        """The trainer goes on from a version: what was trained on after it is available again."""
        self._store.rollback(version)

    # ---- for the driver -------------------------------------------------------------------------------------------

    def audit(self) -> dict[str, Any]:
        """Counts by status."""
        return dict(self._store.audit())

    def trained_lengths(self) -> list[int]:
        """Response tokens of everything that was trained on."""
        return [row.tokens for row in self._store.consumed()]

    def export(self, path: Path) -> None:
        """Write what was trained on as JSONL."""
        self._store.export_jsonl(path)

    def samples(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """Prompt, response and reward of a few trajectories, for a person to read."""
        rows = []
        for experience in self._store.experiences(ids):
            prompt = self._prompts.prompt(_ref(experience))
            response = self._prompts.decode(experience.tokens)
            rows.append(
                {"prompt": prompt.prompt, "response": response, "answer": prompt.answer, "reward": experience.reward}
            )
        return rows


def _ref(experience: Experience) -> TrajectoryRef:
    """What `begin` was told of a trajectory."""
    about = experience.metadata
    prompt, purpose, mode = about["prompt"], Purpose(str(about["purpose"])), str(about["mode"])
    assert isinstance(prompt, int)
    return TrajectoryRef(experience.trajectory, experience.group, 0, purpose, mode, prompt=prompt)
