"""Losses of a ranker, with truncated samples as censored ones."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from tailrace.ranker.learned.samples import Samples, known_longer


def pairwise(scores: Tensor, samples: Samples) -> Tensor:
    """Logistic loss over pairs of prompts (RankNet, Burges et al. 2005), each pair of samples counted by its difference.

    With E[(L_i - L_j)+] against E[(L_j - L_i)+] tokens, from all pairs of their samples whose order is known, the loss is
    least where s_i > s_j exactly if i is longer on average: the first less the second is the difference of the means.
    Counted by one each, pairs would teach which prompt is usually longer, and a prompt that is seldom but much longer would
    be none of the longest.

    Args:
        scores: [n].
        samples: of the n prompts.

    Returns:
        A scalar; 0 if no order is known.
    """
    longer = known_longer(samples.logs, samples.cut, samples.there, samples)  # [n, S, n, S]
    tokens = samples.logs.exp()
    by = (tokens[:, :, None, None] - tokens[None, None]) * longer
    most = samples.there.sum(1).float()
    wins = by.sum(dim=(1, 3)) / (most[:, None] * most[None, :])  # a prompt with more samples does not count more
    weight = (wins + wins.T).triu(1)
    if not weight.any():
        return scores.sum() * 0.0
    target = wins / (wins + wins.T).where(wins + wins.T > 0, torch.ones(()))
    loss = F.binary_cross_entropy_with_logits(scores[:, None] - scores[None, :], target, reduction="none")
    return (loss * weight).sum() / weight.sum()


def list_mle(scores: Tensor, samples: Samples, drawn: torch.Generator) -> Tensor:
    """Negative log-likelihood of the order of one sample of each prompt (ListMLE, Xia et al. 2008; Plackett-Luce).

    Where truncation hides the order, a sample competes only with those known to be shorter: Cox's partial likelihood, with time
    running backwards. Without truncation and ties that is ListMLE.

    Args:
        scores: [n].
        samples: of the n prompts.
        drawn: draws the samples.

    Returns:
        A scalar, the mean over prompts that are known to be longer than another; 0 if there is none.
    """
    chosen = torch.multinomial(samples.there.float(), 1, generator=drawn)
    one = Samples(*(part.gather(1, chosen) for part in (samples.logs, samples.cut, samples.there)))
    shorter = known_longer(one.logs[:, 0], one.cut[:, 0], one.there[:, 0], one)[..., 0]  # [n, n]
    competes = shorter | torch.eye(len(scores), dtype=torch.bool)
    terms = torch.logsumexp(scores[None, :].masked_fill(~competes, -torch.inf), dim=1) - scores
    told = shorter.any(1)
    return terms[told].mean() if told.any() else scores.sum() * 0.0


def pinball(logs: Tensor, samples: Samples, share: float) -> Tensor:
    """Quantile loss of ln tokens; a truncated sample only says where its length is not (Powell, J. Econometrics 32, 1986).

    Args:
        logs: [n], predicted quantiles.
        samples: of the n prompts.
        share: the quantile's.

    Returns:
        A scalar, the mean over prompts.
    """
    error = samples.logs - logs[:, None]
    loss = torch.maximum(share * error, (share - 1) * error)
    counts = samples.there & ~(samples.cut & (error < 0))
    return ((loss * counts).sum(1) / samples.there.sum(1)).mean()
