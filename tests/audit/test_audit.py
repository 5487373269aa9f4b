"""The audit explains numeric ties, and finds every bug that is planted in the engine."""

import sys
from functools import partial

import numpy as np
import pytest
import torch
from ouroboros.baselines import Greedy, Lookahead, PromptLookup, Speculative
from tiny import CONTEXT, by_modules, gpt2, llama, mostly_slow, noisy, plain, prompt_of

from ouroboros import CachedModel, Ouroboros, OuroborosPaper
from ouroboros.audit import audit
from ouroboros.audit.audit import WHOLE, Auditor, min_logit_perturbation
from ouroboros.core.select import Sampler, argmax
from ouroboros.decode import decode
from ouroboros.engine.eager import Eager

PROMPTS = [prompt_of(length, seed) for seed, length in enumerate((5, 9, 14, 20))]
MAX_NEW = 30
ENDS = (7, 5)
SAMPLED = Sampler(seed=1, temperature=0.8)
DECODE = sys.modules["ouroboros.decode"]


def decoders(draft: CachedModel) -> dict:
    sizes = {"window_size": 3, "ngram_size": 4, "verification_set_size": 4}
    return {
        "speculative": Speculative(draft, gamma=3),
        "lookahead": Lookahead(**sizes),
        "prompt_lookup": PromptLookup(max_ngram_size=2, num_tokens=4),
        "ouroboros": Ouroboros(draft, adapt=False),  # whose drafts do not depend on the time
        "ouroboros_paper": OuroborosPaper(draft, gamma=4, **sizes),
    }


@pytest.fixture(scope="module")
def model():
    return llama(seed=4, dtype=torch.float32, num_hidden_layers=2)


def with_engine(kind: type[Eager], model) -> CachedModel:
    """A model whose calls are made by another engine."""
    made = CachedModel(model, engine="eager")
    made.engine = kind(model, made.engine.info, made.cache)
    return made


class ShiftedMask(Eager):
    """Tree nodes do not see the last token that is cached."""

    def call(self, parts, *token):
        ((_, layout),) = parts
        self.last = max(layout.base + len(layout.missing) - 1, 0)
        return super().call(parts, *token)

    def forward(self, ids, positions, mask, *rest):
        if mask is not None:
            mask[..., self.last] = torch.finfo(mask.dtype).min
        return super().forward(ids, positions, mask, *rest)


class DroppedSlot(CachedModel):
    """The second of three or more kept slots is dropped, and the last stands twice."""

    def accept(self, sequence, path):
        kept = [path[0], *path[2:], path[-1]] if len(path) > 2 else path
        self.cache.keep([sequence.base + node for node in kept], sequence.base)
        sequence.tokens += [sequence.tree.tokens[node] for node in path]
        sequence.tree = None


def early_bonus(monkeypatch):
    """The token after an accepted draft is the prediction one node too early."""
    predict = DECODE.predict

    def wrong(model, sequence, tokens, tree, choose):
        chosen = yield from predict(model, sequence, tokens, tree, choose)
        path = tree.longest_match(chosen)
        if len(path) > 2:
            chosen[path[-1]] = chosen[path[-2]]
        return chosen

    monkeypatch.setattr(DECODE, "predict", wrong)


def late_end(monkeypatch):
    """An end inside a draft is kept with one token after it."""
    right = DECODE.Decoding.step

    def wrong(self):
        eos, self.eos = self.eos, ()
        record = yield from right(self)
        tokens, self.eos = self.trace.tokens, eos
        ends = [place for place in range(-record.new, 0) if tokens[place] in eos]
        if ends:
            del tokens[min(ends[0] + 2, 0) or len(tokens) :]
            self.left = 0
        return record

    monkeypatch.setattr(DECODE.Decoding, "step", wrong)


BUGS = {
    "shifted mask": (partial(with_engine, ShiftedMask), None, argmax),
    "dropped slot": (DroppedSlot, None, argmax),
    "bonus token off by one": (CachedModel, early_bonus, SAMPLED),
    "end kept one token too long": (CachedModel, late_end, argmax),
}


def references(model, choose=argmax, eos=()) -> dict[tuple[int, ...], list[int]]:
    """Plain decoding's new tokens for each prompt."""
    engine, rule = CachedModel(model), {"max_new": MAX_NEW, "eos": eos, "choose": choose}
    return {tuple(p): decode(engine, Greedy(), p, **rule).new_tokens for p in PROMPTS}


def audited(model, engine, plainly, choose=argmax, eos=()) -> dict[str, list]:
    """Return the findings on every decoder under `engine`, one for each prompt."""
    drafters = decoders(CachedModel(noisy(model, noise=0.05)))
    auditor = Auditor(CachedModel(model))
    found: dict[str, list] = {name: [] for name in drafters}
    for prompt in PROMPTS:
        rule = {"max_new": MAX_NEW, "eos": eos, "choose": choose}
        others = {n: decode(engine, d, prompt, **rule).new_tokens for n, d in drafters.items()}
        findings, _ = auditor.judge(prompt, plainly[tuple(prompt)], others, choose=choose)
        for name in found:
            found[name].append(findings[name])
    return found


def verdicts(found: dict[str, list]) -> set[str]:
    return {finding.verdict for findings in found.values() for finding in findings}


@pytest.mark.parametrize(
    "name", mostly_slow(BUGS, quick=["shifted mask", "end kept one token too long"])
)
def test_a_planted_bug_is_convicted(model, monkeypatch, name):
    make, plant, choose = BUGS[name]
    eos = ENDS if "end" in name else ()
    plainly = references(model, choose, eos)
    if plant is not None:
        plant(monkeypatch)
    found = audited(model, make(model), plainly, choose, eos)
    assert verdicts(found) <= {"identical", "BUG"}
    assert any(finding.verdict == "BUG" for finding in found["ouroboros"])


class Late(Eager):
    """A single token's position is one too large."""

    def forward(self, ids, positions, mask, *rest):
        return super().forward(ids, positions + (ids.numel() == 1), mask, *rest)


@pytest.mark.parametrize("kind", [Eager, Late])
def test_plain_decoding_itself_is_compared_with_float64(model, kind):
    prompt = PROMPTS[1]
    reference = decode(with_engine(kind, model), Greedy(), prompt, max_new=MAX_NEW).new_tokens
    findings, controls = Auditor(CachedModel(model)).judge(
        prompt, reference, {"again": reference}, choose=argmax, controls=True
    )
    assert findings["again"].verdict == "identical" and [c.rows for c in controls] == [1, 8, WHOLE]
    assert all(c.positions == MAX_NEW and 0 < c.noise < 1e-4 for c in controls)
    right = [*prompt, *reference] == plain(model, prompt, MAX_NEW)
    assert right == (kind is Eager) == (findings[None].verdict == "identical")
    assert right or findings[None].verdict == "BUG"
    assert all(bool(control.differ) != right for control in controls)


@pytest.fixture
def half():
    """A random bf16 model with little to choose between tokens."""
    model = llama(seed=4, dtype=torch.float32, num_hidden_layers=2)
    with torch.no_grad():
        model.lm_head.weight.mul_(0.15)
    return model.to(torch.bfloat16)


def test_in_half_precision_ties_are_called_ties(half):
    found = audited(half, by_modules(half), references(half))
    assert verdicts(found) == {"identical", "numeric tie"}
    tie = next(f for fs in found.values() for f in fs if f.verdict == "numeric tie")
    assert 0 <= tie.shift <= tie.noise and tie.expected != tie.found
    assert abs(tie.margin) <= 2 * tie.shift + 1e-9


def test_a_tie_is_one_up_to_the_largest_rounding_error_of_the_text(monkeypatch):
    """Wherever it is: the completion's own error is another draw."""
    model, noise = llama(dtype=torch.float32), torch.zeros(MAX_NEW)
    monkeypatch.setattr(audit, "logit_noise", lambda *logits: noise)
    new = decode(CachedModel(model), Greedy(), PROMPTS[0], max_new=MAX_NEW).new_tokens
    other, auditor = {"x": [*new[:5], (new[5] + 1) % 13, *new[6:]]}, Auditor(CachedModel(model))
    for largest, verdict in ((0.0, "BUG"), (1e9, "numeric tie")):
        noise[-1] = largest
        findings, _ = auditor.judge(PROMPTS[0], new, other, choose=argmax)
        assert findings["x"].verdict == verdict and findings["x"].noise == largest


@pytest.mark.slow
def test_what_follows_a_tie_is_judged_too(half):
    """The text after the first difference has no plain decoding's beside it; float64 judges it."""
    draft, auditor, seen = CachedModel(noisy(half, noise=0.05)), Auditor(by_modules(half)), 0
    for prompt in PROMPTS:
        reference = decode(by_modules(half), Greedy(), prompt, max_new=MAX_NEW).new_tokens
        for drafter in decoders(draft).values():
            new = decode(by_modules(half), drafter, prompt, max_new=MAX_NEW).new_tokens
            spoilt = [*new[:-3], *((token + 5) % 13 for token in new[-3:])]
            others = {"right": new, "spoilt": spoilt}
            found, _ = auditor.judge(prompt, reference, others, choose=argmax)
            if found["right"].verdict == "numeric tie" and found["right"].index < MAX_NEW - 4:
                seen += 1
                assert found["spoilt"].verdict == "BUG"
    assert seen


def test_a_text_that_ends_with_the_context_is_judged():
    """Nothing is fed beyond the last position: learned positions end there."""
    model, prompt = gpt2(), prompt_of(50)
    new = decode(CachedModel(model), Greedy(), prompt, max_new=99).new_tokens
    assert len(prompt) + len(new) == CONTEXT + 1
    findings, controls = Auditor(CachedModel(model)).judge(
        prompt, new, {"same": new}, choose=argmax, controls=True
    )
    assert findings[None].verdict == "identical" and controls[0].positions == len(new)


def test_missing_and_truncated_completions_are_bugs(model):
    prompt = PROMPTS[0]
    reference = decode(CachedModel(model), Greedy(), prompt, max_new=9).new_tokens
    others = {"none": None, "short": reference[:-1], "long": [*reference, 4], "same": reference}
    findings, _ = Auditor(CachedModel(model)).judge(prompt, reference, others, choose=argmax)
    assert {name: f.verdict for name, f in findings.items()} == {
        **dict.fromkeys(("none", "short", "long"), "BUG"),
        **dict.fromkeys(("same", None), "identical"),
    }
    assert "missing" in findings["none"].reason and "ends before" in findings["short"].reason
    assert findings["long"].index == 9 and findings["long"].expected is None


@pytest.mark.parametrize(
    ("settings", "logits", "gains", "token", "most"),
    [
        ({"top_k": 2}, [2.0, 1.5, 1.4, -3.0], [0, 0, 9, 0], 2, 0.12),
        ({"top_p": 0.72}, [2.0, 1.5, 1.4, -3.0], [0, 0, 9, 0], 2, 0.12),
        ({"min_p": 0.3}, [2.0, 1.5, 1.9 + np.log(0.3), -3.0], [0, 0, 9, 0], 2, 0.12),
        ({"top_k": 2}, [3.0, 1.0001, 1.0, -3.0], [0, 6, 0, 0], 0, 1e-4),
    ],
    ids=["top_k", "top_p", "min_p", "a rival falls out"],
)
def test_the_shift_reaches_over_a_cut(settings, logits, gains, token, most):
    """The token lies just below the cut, or above a rival that would fall out: the distance is the
    cut's."""
    logits, gains = torch.tensor(logits, dtype=torch.float64), torch.tensor(gains)
    sampler = Sampler(**settings)
    shift = min_logit_perturbation(logits, token, lambda z: sampler.warped(z[None])[0] + gains)
    assert 0 < shift < most
