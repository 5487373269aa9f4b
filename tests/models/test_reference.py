"""`ouroboros.reference()` loads the shipped pair."""

import torch

import ouroboros


def test_the_pair_agrees_on_its_words():
    pair = ouroboros.reference(dtype=torch.bfloat16)
    target, draft, tokenizer = pair
    assert pair.target.dtype == pair.draft.dtype == torch.bfloat16 and not target.training
    assert target.config.vocab_size == draft.config.vocab_size >= len(tokenizer)
    assert sum(p.numel() for p in draft.parameters()) < sum(p.numel() for p in target.parameters())
    assert tokenizer.decode(tokenizer("def f", add_special_tokens=False).input_ids) == "def f"
    masks = tokenizer(["a = 1", "def mean(values):"], padding=True).attention_mask
    assert masks[0][0] == 0 and masks[0][-1] == masks[1][0] == 1
