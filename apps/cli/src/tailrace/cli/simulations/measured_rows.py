"""What was measured of both stages, as the options with which provisioning `balanced` chooses its start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.build import build_spec


def rows(
    config: RunConfig, coefficients: Sequence[float], kv_tokens: int, train_s: float, lengths: Sequence[int]
) -> Iterator[str]:
    """Lines of TOML: a row for the replicas and one for the trainer, where all replicas are alike, and the lengths.

    Args:
        config: of the run that was measured.
        coefficients: k1 to k4 of a decoding step, with the KV cache counted in tokens.
        kv_tokens: tokens that the KV cache of a replica holds; 0 if that is not known.
        train_s: seconds of training on a batch.
        lengths: response tokens.
    """
    yield f"train_s = {train_s:.4g}"
    yield f"lengths = {list(lengths)}"
    spec = build_spec(config)
    if len(spec.pools) > 1:
        return
    spans = spec.pools[0].tp if spec.pools else spec.tp
    found = ", ".join(f"{value:.4g}" for value in coefficients)
    yield f"replica_costs = [[{spans}, {kv_tokens}, {found}]]"
    yield f"training_times = [[{config.trainer.processes}, {train_s:.4g}]]"
