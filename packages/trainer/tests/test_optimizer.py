"""Muon against the singular value decomposition, and against torch's own."""

import pytest
import torch

from tailrace.trainer.optimizer import Muon, MuonWithAdamW, orthogonalised


@pytest.mark.parametrize("shape", [(64, 64), (128, 64), (64, 192)])
def test_orthogonalised_keeps_the_singular_vectors_and_levels_the_values(shape):
    torch.manual_seed(0)
    matrices = torch.randn(3, *shape)
    levelled = orthogonalised(matrices)
    u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
    in_basis = u.mT @ levelled @ vh.mT
    values = in_basis.diagonal(dim1=1, dim2=2)
    # the iteration maps every singular value that is not tiny into about [0.7, 1.2]
    assert (values[:, : shape[0] // 2] > 0.6).all()
    assert (values < 1.3).all()
    assert (in_basis - torch.diag_embed(values)).abs().max() < 1e-3


def test_one_step_agrees_with_torchs_muon():
    torch.manual_seed(1)
    start, gradient = torch.randn(32, 16), torch.randn(32, 16)
    ours, theirs = start.clone().requires_grad_(), start.clone().requires_grad_()
    mine, peer = Muon([ours], lr=0.02), torch.optim.Muon([theirs], lr=0.02, momentum=0.95, weight_decay=0.0)
    ours.grad, theirs.grad = gradient.clone(), gradient.clone()
    mine.step()
    peer.step()
    assert (ours - theirs).abs().max() < 2e-3  # the peer orthogonalises in bfloat16


def test_embeddings_and_norms_go_to_adamw():
    parameters = {
        "model.embed_tokens.weight": torch.ones(8, 4),
        "model.layers.0.mlp.up_proj.weight": torch.ones(4, 4),
        "model.layers.0.input_layernorm.weight": torch.ones(4),
    }
    optimizer = MuonWithAdamW(parameters, betas=(0.9, 0.95), weight_decay=0.0, muon_lr_scale=5.0)
    sizes = [[tuple(p.shape) for p in group["params"]] for group in optimizer.param_groups]
    assert sizes == [[(8, 4), (4,)], [(4, 4)]]
    assert [group.get("lr_scale", 1.0) for group in optimizer.param_groups] == [1.0, 5.0]
