"""Compiled token selection chooses as torch does."""

import pytest
import torch

from ouroboros.core.ranking import rank

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocab"), [(1, 5), (3, 64), (2, 1000)])
@pytest.mark.parametrize("temperature", [1.0, 0.8])
@pytest.mark.parametrize("noisy", [False, True])
def test_the_best_tokens_their_scores_and_shares_are_torchs(dtype, rows, vocab, temperature, noisy):
    torch.manual_seed(vocab)
    logits = (4 * torch.randn(rows, vocab)).to(dtype)
    warped = logits.float() if temperature == 1.0 else logits.float() / temperature
    noise = torch.randn(rows, vocab) if noisy else None
    scores = warped + noise if noisy else warped
    table = torch.from_numpy(rank(logits, 4, temperature=temperature, noise=noise))
    best = scores.sort(dim=-1, descending=True, stable=True)  # ties go to the lowest id
    assert torch.equal(table[:, 0].long(), best.indices[:, :4])
    assert torch.equal(table[:, 1].float(), best.values[:, :4])
    shares = warped.double().softmax(-1).gather(-1, best.indices[:, :4])
    torch.testing.assert_close(table[:, 2], shares, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize(
    ("row", "best"),
    [
        ([1.0, 2.0, 2.0], 1),
        ([-1.0, -0.0, 0.0], 1),
        ([0.0, NAN, INF], 1),
        ([0.0, INF, -NAN], 2),
        ([-INF, -INF, -5.0], 2),
        ([-INF, -INF, -INF], 0),
        ([-2.0, -1.0, -3.0], 1),
    ],
)
def test_ties_zeros_and_numbers_that_are_not_finite(row, best):
    assert rank(torch.tensor([row]), 1)[0, 0, 0] == best
