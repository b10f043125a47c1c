"""The data role: prompt pool, partial-response pool and experience buffer in one process (Laminar, section 3.1).

replicas ──begin, append──►  partial-response pool ──finish──► experience buffer  ◄──experiences, consume── trainer
                                                                      ▲ to_score, set_rewards
                                                                    scorer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.contracts import Experience, Purpose, TrajectoryRef
from tailrace.pipeline.roles.prompts import Prompts, item_metadata
from tailrace.reward import ScoreItem
from tailrace.rollout.ports import PartialDelta, Resume
from tailrace.trajstore import Assignment, Status, TrajectoryStore
from tailrace.trajstore import PartialDelta as StoredDelta


@dataclass(frozen=True, slots=True)
class Held:
    """What the store kept over a crash of the run."""

    finished: dict[str, float | None]
    partial: dict[str, tuple[int, int]]


class DataRole:
    """Owns the trajectory store and the prompts.

    Args:
        store: the SQLite file.
        prompts: arguments of `Prompts`.
        verifier: verifier of rows that name none.
        mixed_versions: a trajectory may go on under newer weights.
    """

    def __init__(self, *, store: Path, prompts: Mapping[str, Any], verifier: str, mixed_versions: bool = False) -> None:
        self._store = TrajectoryStore(store, mixed_versions=mixed_versions)
        self._prompts = Prompts(**prompts)
        self._verifier = verifier

    def ready(self) -> bool:
        """Answers once the role is up."""
        return True

    def begin(self, owner: str, version: int, refs: Sequence[TrajectoryRef]) -> list[Resume]:
        """A replica takes trajectories: their prompts and what they have, on the same version unless versions mix."""
        items = [
            Assignment(
                trajectory=ref.trajectory,
                group=ref.group,
                prompt_tokens=self._prompts.encode(ref),
                purpose=ref.purpose.value,
                metadata={"mode": ref.mode},
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

    def experiences(self, ids: Sequence[str]) -> list[Experience]:
        """Finished trajectories with their tokens."""
        return self._store.experiences(ids)

    def to_score(self, ids: Sequence[str]) -> list[ScoreItem]:
        """Finished trajectories as text, with what their verifier needs. Those that were dropped meanwhile are left out."""
        items = []
        complete = [name for name, status in self._store.statuses(ids).items() if status is Status.COMPLETE]
        for experience in self._store.experiences(complete):
            ref = self._ref(experience)
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
            self._store.set_reward(trajectory, reward)

    def consume(self, ids: Sequence[str], version: int) -> None:
        """A step that made `version` trained on these."""
        self._store.consume(ids, version)

    def discard(self, ids: Sequence[str], reason: str) -> None:
        """These will not be trained on."""
        self._store.discard(ids, reason)

    def roll_back(self, durable: int) -> None:
        """What was trained on after a checkpoint is available again."""
        self._store.rollback(durable)

    def recover(self) -> Held:
        """What is held for a run that goes on."""
        recovery = self._store.recover()
        return Held(dict(recovery.held), dict(recovery.partial))

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
            prompt = self._prompts.prompt(self._ref(experience))
            response = self._prompts.decode(experience.tokens)
            rows.append(
                {"prompt": prompt.prompt, "response": response, "answer": prompt.answer, "reward": experience.reward}
            )
        return rows

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _ref(self, experience: Experience) -> TrajectoryRef:
        is_eval = experience.trajectory.startswith("e")
        mode = str(experience.metadata.get("mode", ""))
        purpose = Purpose.EVAL if is_eval else Purpose.TRAIN
        return TrajectoryRef(experience.trajectory, experience.group, 0, purpose, mode)
