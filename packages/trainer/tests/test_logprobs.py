import pytest
import torch

from tailrace.trainer.policy_model import token_logprobs


@pytest.mark.parametrize("budget", [0, 1 << 24, 17 * 5, 1])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_equals_log_softmax_in_value_and_gradient(budget, temperature):
    torch.manual_seed(0)
    hidden = torch.randn(23, 8, requires_grad=True)
    weight = torch.randn(17, 8, requires_grad=True)
    targets = torch.randint(0, 17, (23,))
    slope = torch.randn(23)
    found, entropy = token_logprobs(
        hidden, weight, targets, temperature=temperature, entropy=True, logits_budget=budget
    )
    (found * slope).sum().backward()
    grads = hidden.grad.clone(), weight.grad.clone()
    hidden.grad = weight.grad = None
    table = (hidden @ weight.T / temperature).log_softmax(-1)
    expected = table.gather(1, targets[:, None])[:, 0]
    (expected * slope).sum().backward()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, -(table.exp() * table).sum(-1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(grads, (hidden.grad, weight.grad), atol=1e-5, rtol=1e-5)


def test_gradient_against_finite_differences():
    # float32 inside, hence the wide tolerance.
    torch.manual_seed(1)
    hidden = torch.randn(4, 5, dtype=torch.float64)
    weight = torch.randn(6, 5, dtype=torch.float64)
    targets = torch.tensor([0, 5, 2, 2])
    leaf = hidden.float().requires_grad_()
    token_logprobs(leaf, weight.float(), targets)[0].sum().backward()
    step = 1e-6
    for row in range(4):
        for column in range(5):
            moved = hidden.clone()
            moved[row, column] += step
            now, before = ((h @ weight.T).log_softmax(-1).gather(1, targets[:, None]).sum() for h in (moved, hidden))
            assert leaf.grad[row, column].item() == pytest.approx(((now - before) / step).item(), abs=1e-4)
