"""Compiled token selection chooses as torch does."""

from timeit import repeat

import pytest
import torch

from ouroboros.core.ranking import rank
from ouroboros.core.select import gumbel

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocab"), [(1, 5), (3, 64), (2, 1000)])
@pytest.mark.parametrize("temperature", [1.0, 0.8])
@pytest.mark.parametrize("noisy", [False, True])
def test_the_best_tokens_their_scores_and_shares_are_torchs(dtype, rows, vocab, temperature, noisy):
    torch.manual_seed(vocab)
    logits = (4 * torch.randn(rows, vocab)).to(dtype)
    warped = logits.float() if temperature == 1.0 else logits.float() / temperature
    positions = range(7, 7 + rows) if noisy else ()
    scores = warped + gumbel(3, positions, vocab, "cpu") if noisy else warped
    found = rank(logits, 4, temperature=temperature, seed=3, positions=positions)
    table = torch.from_numpy(found)
    best = scores.sort(dim=-1, descending=True, stable=True)  # ties go to the lowest id
    assert torch.equal(table[:, 0].long(), best.indices[:, :4])
    assert torch.equal(table[:, 1].float(), best.values[:, :4])
    shares = warped.double().softmax(-1).gather(-1, best.indices[:, :4])
    torch.testing.assert_close(table[:, 2], shares, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 300.0, 1e30])
@pytest.mark.parametrize("trimmed", [False, True])
def test_noise_is_computed_for_all_tokens_that_may_be_among_the_best(spread, trimmed):
    """Flat, steep and huge logits, many of them equal, and ids that a trimmed head scores."""
    torch.manual_seed(1)
    logits = (spread * torch.randn(40, 3000)).bfloat16()
    logits[:, ::7] = logits[:, :1]
    ids = torch.randperm(9000)[:3000].sort().values if trimmed else torch.arange(3000)
    noise = gumbel(-5, range(40), 9000, "cpu")[:, ids]
    best = (logits.float() + noise).sort(dim=-1, descending=True, stable=True)
    given = {"ids": ids} if trimmed else {}
    for count in (1, 6):
        table = torch.from_numpy(rank(logits, count, seed=-5, positions=range(40), **given))
        assert torch.equal(table[:, 0].long(), best.indices[:, :count])
        assert torch.equal(table[:, 1].float(), best.values[:, :count])


def test_ids_that_top_k_excludes_are_not_drawn_one_by_one():
    """Their scores are equal: only the first ones are needed."""
    logits = torch.randn(4, 50_000)
    excluded = logits.masked_fill(logits < logits.topk(3).values[:, 2:], -INF)
    full, few = (
        min(repeat(lambda some=some: rank(some, 6, positions=range(4)), number=1, repeat=7))
        for some in (logits, excluded)
    )
    assert few < 10 * full
    ids = rank(excluded, 6, positions=range(4))[:, 0]
    assert ids[:, 3:].tolist() == [[i for i in range(9) if i not in row][:3] for row in ids[:, :3]]


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
    logits = torch.tensor([row])
    assert rank(logits, 1)[0, 0, 0] == best
    if not logits.isfinite().all():
        first = (logits + gumbel(0, [0], len(row), "cpu")).sort(descending=True, stable=True)
        assert rank(logits, 1, positions=[0])[0, 0, 0] == first.indices[0, 0]
