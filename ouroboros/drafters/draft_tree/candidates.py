"""Candidate tokens after a node, and the probability that each is the target's next token.

Candidates come from three sources. The first is phrases. A candidate t from phrases has a *share*,
computed by a PPM mixture (prediction by partial matching) over match lengths k:

    p_k(t) = (c_k(t) + STRENGTH p_{k-1}(t)) / (C_k + STRENGTH),   p_0 = 0

c_k(t) is the total weight of occurrences that match at least k tokens and continue with t; C_k is
the sum over all t. The weight of an occurrence is FADE ** (number of newer occurrences).

The second is the draft model's ranking, once it has scored the node; its shares are probabilities.
The third is the target's rankings after earlier nodes with the same token, in the same sequence. A
token's *ranked share* is its mean probability in them, weighted by FADE ** (number of newer
rankings) times MATCH ** (match length).

Logistic models turn features (named in `state`) into probabilities. There are four: for nodes that
the draft model has scored or not, and with or without such target rankings.

Estimates after a draft model's ranking are calibrated by a second logistic model, which learns from
every verified node: whether a long match or the draft is right depends on the text and the draft.

Invariants: an estimate depends on the text, the path, the ranking, the temperature, the sampler's
noise and the learned state, never on the rest of the tree; ties keep discovery order; a node's
child probabilities sum to at most 1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from ouroboros.core.noise import gumbel_of, position_key
from ouroboros.drafters.draft_tree import state
from ouroboros.drafters.draft_tree.phrase_index import (
    context_match,
    fill_path,
    find_occurrences,
    token_at,
)
from ouroboros.drafters.draft_tree.state import jit

FORMAT = "ouroboros-estimates-3"
N_PHRASE, N_DRAFT = len(state.PHRASE_FEATURES), len(state.DRAFT_FEATURES)
MODELS = {"index": state.PHRASE_FEATURES, "draft": state.DRAFT_FEATURES}
MODELS |= {f"ranked_{name}": features for name, features in MODELS.items()}
STRENGTH = 1.5
FADE = 0.95
MATCH = 3.0  # base of a ranking's weight, by match length
RECYCLED_WEIGHT = 1.5  # weight of a recycled prediction / of an occurrence in the text
MIN_SHARE, MIN_RATE = 0.002, 0.02  # shares and hit rates are clipped this far from 0 and 1
ROUNDING = 2.0**-23  # rounding error of a float32 share near 1
MAX_MARGIN, MAX_DRAFT_ODDS = 12.0, 7.6  # limits of margins and of the draft's log-odds, in logits
MAX_INPUT = 2.0  # limit of the calibration's inputs
LEARNING_RATE = 0.1  # of the calibration


@dataclass(frozen=True)
class Weights:
    """Weights of the logistic models.

    - `index`: for nodes with phrases alone, in the order of `PHRASE_FEATURES`
    - `draft`: for nodes that the draft model has scored, in the order of `DRAFT_FEATURES`
    - `ranked_index`, `ranked_draft`: the same for nodes with rankings of the target after earlier
      nodes with the same token
    - `about`: the prompts and the quality of the fit
    """

    index: tuple[float, ...]
    draft: tuple[float, ...]
    ranked_index: tuple[float, ...]
    ranked_draft: tuple[float, ...]
    about: Mapping[str, object] = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write the weights as JSON."""
        content = {
            "format": FORMAT,
            **{m: dict(zip(names, getattr(self, m), strict=True)) for m, names in MODELS.items()},
            "about": self.about,
        }
        Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path | None = None) -> Weights:
        """Read weights from a file, by default the shipped one. Raises `ValueError` for a file that
        cannot be read or has another format."""
        where = files(__package__) / "weights.json" if path is None else Path(path)
        try:
            content = json.loads(where.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise KeyError("format")
            models = {
                model: tuple(float(content[model][name]) for name in names)
                for model, names in MODELS.items()
            }
            return cls(**models, about=content["about"])
        except OSError as error:
            raise ValueError(f"cannot read the weights {where}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{where} holds no weights of this version ({error}): fit them again, or omit "
                "weights to use the shipped ones"
            ) from error


def fill_tables(s) -> None:
    """Fill the lookup tables `recency` (weight of an occurrence by the number of newer ones),
    `match_weight` (weight of a target's ranking by the length of its match) and `level_of` (index
    in ORDERS by match length)."""
    s.recency[:] = [FADE**age for age in range(state.CANDIDATES)]
    s.match_weight[:] = [MATCH**length for length in range(state.CONTEXT + 1)]
    lengths = range(state.LONGEST + 1)
    s.level_of[:] = [sum(n >= order for order in state.ORDERS) - 1 for n in lengths]


@jit
def _candidate(s, m, token, kind):
    """Return the index of the candidate `token`, after adding it if it is new. `kind` has the bits
    of its source (see `state`)."""
    known = m.slot[token]
    if known // state.CANDIDATES == s.stamp:
        c = known % state.CANDIDATES
    else:
        c = s.candidates
        s.candidates = c + 1
        m.slot[token] = s.stamp * state.CANDIDATES + c
        s.candidate[c] = token
        s.candidate_match[c] = 0
        s.candidate_kind[c] = 0
        s.runner_share[c] = 0.0
        for level in range(state.LEVELS):
            s.weight[c, level] = 0.0
    s.candidate_kind[c] = s.candidate_kind[c] | kind
    return c


@jit
def _count(s, m, token, length, kind, weight):
    """Count an occurrence followed by `token`: add `weight` to this candidate. `length` is the
    occurrence's match length, `kind` the bits of its source."""
    c = _candidate(s, m, token, kind)
    s.candidate_match[c] = max(s.candidate_match[c], length)
    if length > s.longest:
        s.longest = length
        s.longest_next = token
    level = s.level_of[length]
    s.weight[c, level] += weight
    s.total[level] += weight
    s.top_level = max(s.top_level, level)


@jit
def _count_rankings(s, m, node):
    """Add the tokens of the newest rankings after the node's token to the candidates, and compute
    their ranked shares."""
    number = m.newest_ranking[s.token[node]]
    oldest = max(s.rankings_before, s.rankings - state.RANKINGS)  # the newest one that is ignored
    age = 0
    while number > oldest and age < state.RECENT:
        row = number % state.RANKINGS
        length = context_match(s, m, m.ranking_context[row], s.depth[node])
        weight = s.recency[age] * s.match_weight[length]
        s.ranking_match = max(s.ranking_match, length)
        s.ranking_total += weight
        for place in range(state.RUNNERS):
            if m.ranking_shares[row, place] > 0.0:
                c = _candidate(s, m, m.ranking_ids[row, place], state.RANKED | state.CURRENT)
                s.runner_share[c] += weight * m.ranking_shares[row, place]
        number = m.ranking_context[row, state.CONTEXT]
        age += 1
    if age:
        for c in range(s.candidates):
            s.runner_share[c] /= s.ranking_total


@jit
def _mix_shares(s):
    """Compute the candidates' shares from their weights, by the PPM mixture (see the module)."""
    for level in range(s.top_level - 1, -1, -1):
        s.total[level] += s.total[level + 1]
    for c in range(s.candidates):
        s.share[c] = 0.0
        if s.candidate_match[c] == 0:  # only ranked
            continue
        for level in range(s.top_level - 1, -1, -1):
            s.weight[c, level] += s.weight[c, level + 1]
        share = 0.0
        for level in range(s.top_level + 1):
            share = (s.weight[c, level] + STRENGTH * share) / (s.total[level] + STRENGTH)
        s.share[c] = share


@jit
def _fill_shortlist(s):
    """Write the candidates with the largest `share` or `runner_share` to `shortlist`, in descending
    order, and their places in it to `candidate_rank`."""
    s.listed = 0
    for c in range(s.candidates):
        s.candidate_rank[c] = state.SHORTLIST
        s.larger_share[c] = max(s.share[c], s.runner_share[c])
        at = s.listed
        while at > 0 and s.larger_share[s.shortlist[at - 1]] < s.larger_share[c]:
            at -= 1
        if at < state.SHORTLIST:
            end = min(s.listed, state.SHORTLIST - 1)
            for place in range(end, at, -1):
                s.shortlist[place] = s.shortlist[place - 1]
            s.shortlist[at] = c
            s.listed = end + 1
    for place in range(s.listed):
        s.candidate_rank[s.shortlist[place]] = place


@jit
def find_candidates(s, m, node):
    """Write the tokens that phrases, recycled predictions and rankings propose after a node to
    `candidate`, their shares to `share` and `runner_share`; fill `shortlist`.

    The caller fills `path` and the node's occurrences first.
    """
    s.stamp += 1
    s.candidates = 0
    s.longest = 0
    s.longest_next = -1
    s.top_level = 0
    s.ranking_match = 0
    s.ranking_total = 0.0
    for level in range(state.LEVELS):
        s.total[level] = 0.0
    for age in range(s.occurrences[node]):
        at = s.occurrence[node, age]
        token = token_at(s, m, at + 1)
        kind = state.PHRASE | state.CURRENT if at >= s.start else state.PHRASE
        if token >= 0:
            _count(s, m, token, s.match[node, age], kind, s.recency[age])
    if s.recycle:
        number = m.newest_recycled[s.token[node]]
        age = 0
        overwritten = max(0, s.recycled - state.RING)  # the newest number that is overwritten
        while number > overwritten and age < state.RECENT:
            length = context_match(s, m, m.ring[number % state.RING], s.depth[node])
            weight = RECYCLED_WEIGHT * s.recency[age]
            kind = state.RECYCLED
            if number > s.recycled_before:
                kind |= state.CURRENT
            _count(s, m, m.ring[number % state.RING, state.CONTEXT], length, kind, weight)
            number = m.ring[number % state.RING, state.CONTEXT + 1]
            age += 1
        _count_rankings(s, m, node)
    _mix_shares(s)
    _fill_shortlist(s)


@jit
def log_odds(p, margin):
    """Return the log-odds of `p`, after clipping it to [margin, 1 - margin]."""
    p = min(max(p, margin), 1.0 - margin)
    return math.log(p / (1.0 - p))


@jit
def _set_phrase_features(s, x, c, token):
    """Write the phrase features of `token`, which is candidate `c`, into `x`. If `c` is negative,
    no phrase proposes the token."""
    match = s.candidate_match[c] if c >= 0 else 0
    x[0] = 1.0
    x[1] = log_odds(s.share[c] if c >= 0 else 0.0, MIN_SHARE)
    x[2] = math.log2(1.0 + match)
    x[3] = math.log2(1.0 + (s.candidate_rank[c] if c >= 0 else state.SHORTLIST))
    x[4] = 1.0 if c >= 0 and token == s.longest_next else 0.0
    x[5] = 1.0 if c >= 0 and match == s.longest else 0.0
    kind = s.candidate_kind[c] if c >= 0 else state.CURRENT
    x[6] = 1.0 if kind & state.PROPOSED == state.RECYCLED else 0.0
    x[7] = s.phrase_odds
    x[8] = s.temperature
    x[9] = s.temperature * x[1]
    x[10] = s.temperature * gumbel_of(s.noise_key, token) if s.noisy else 0.0
    x[11] = s.temperature * x[2]
    x[12] = 0.0 if kind & state.CURRENT else 1.0
    for i in range(13, N_PHRASE):
        x[i] = 0.0
    if s.ranking_match > 0:
        x[13] = math.log2(1.0 + s.ranking_match)
        x[14] = log_odds(s.runner_share[c] if c >= 0 else 0.0, MIN_SHARE)
        x[15] = x[14] * x[13]
        x[16] = s.temperature * x[14]
        x[17] = 1.0 if kind & (state.PROPOSED | state.RANKED) == state.RANKED else 0.0


@jit
def _set_draft_features(s, x, c, rank, scores, shares, ranks):
    """Write the draft features of a token into `x`, after its phrase features.

    `c` is the token's candidate index (negative: no phrase proposes it), `rank` its index in the
    draft model's ranking (negative: not in it). For the first `ranks` tokens of that ranking,
    `scores` has the logits divided by `s.logit_scale`, `shares` the probabilities.
    """
    last = ranks - 1
    while last > 0 and shares[last] <= 0.0:
        last -= 1
    if last == 0:  # the draft gives all probability to its first token
        share, margin = (1.0, MAX_MARGIN) if rank == 0 else (0.0, -MAX_MARGIN)
    elif rank >= 0:
        share = shares[rank]
        margin = s.logit_scale * (scores[rank] - scores[1 if rank == 0 else 0])
    else:
        share = 0.5 * shares[last]
        margin = s.logit_scale * (scores[last] - scores[0])
    others = 0.0
    for other in range(last + 1):
        if other != rank:
            others += shares[other]
    rest = max(others, 1.0 - share - ROUNDING)
    odds = MAX_DRAFT_ODDS if share > 0.0 else -MAX_DRAFT_ODDS
    if rest > 0.0 and share > 0.0:
        odds = min(max(s.logit_scale * math.log(share / rest), -MAX_DRAFT_ODDS), MAX_DRAFT_ODDS)
    margin = min(max(margin, -MAX_MARGIN), MAX_MARGIN)
    x[N_PHRASE] = odds
    x[N_PHRASE + 1] = margin
    x[N_PHRASE + 2] = math.log2(1.0 + (rank if rank >= 0 else state.RANKS))
    x[N_PHRASE + 3] = 1.0 if rank < 0 else 0.0
    x[N_PHRASE + 4] = 1.0 if c < 0 else 0.0
    x[N_PHRASE + 5] = s.draft_odds
    x[N_PHRASE + 6] = 1.0 if rank == 0 and c >= 0 and s.candidate_rank[c] == 0 else 0.0
    x[N_PHRASE + 7] = s.temperature * margin
    x[N_PHRASE + 8] = s.temperature * odds


@jit
def _calibrated(s, inputs, x, phrase, draft):
    """Return the calibrated log-odds of a token after the draft model's ranking, and write the
    inputs of the calibration. `phrase` and `draft` are the log-odds that its features `x` add."""
    odds = phrase + draft
    draft = min(max(0.25 * draft, -MAX_INPUT), MAX_INPUT)
    inputs[0] = 1.0
    inputs[1] = draft
    inputs[2] = min(max(0.25 * phrase, -MAX_INPUT), MAX_INPUT)
    inputs[3] = 0.25 * x[2]  # the match
    inputs[4] = draft * inputs[3]
    inputs[5] = x[N_PHRASE + 6]  # first for both
    for i in range(state.INPUTS):
        odds += s.calibration[i] * inputs[i]
    return odds


@jit
def learn_calibration(s, node, token):
    """Learn from the target's `token` after a judged node: a step of gradient descent on the log
    loss of its children's estimates."""
    for j in range(s.children[node]):
        hit = 1.0 if s.child_token[node, j] == token else 0.0
        for i in range(state.INPUTS):
            step = LEARNING_RATE * (hit - s.child_estimate[node, j])
            s.calibration[i] += step * s.child_input[node, j, i]


@jit
def _add_option(s, node, c, token, kind, rank, ranks):
    """Add a token to the node's options, with its probability, and insert it into `ranking`, which
    sorts the options by descending probability. The token is candidate `c`, or (`c` negative) only
    the draft model proposes it."""
    option = s.options
    s.options = option + 1
    x = s.features[option]
    _set_phrase_features(s, x, c, token)
    odds = 0.0
    known = 1 if s.ranking_match > 0 else 0
    if ranks:
        _set_draft_features(s, x, c, rank, s.ranked_score[node], s.ranked_share[node], ranks)
        drafted = 0.0
        for i in range(N_PHRASE):
            odds += s.draft_weights[known, i] * x[i]
        for i in range(N_PHRASE, N_DRAFT):
            drafted += s.draft_weights[known, i] * x[i]
        odds = _calibrated(s, s.option_input[option], x, odds, drafted)
    else:
        for i in range(N_PHRASE):
            odds += s.phrase_weights[known, i] * x[i]
    e = math.exp(-abs(odds))
    p = 1.0 / (1.0 + e) if odds >= 0 else e / (1.0 + e)
    s.option_token[option] = token
    s.option_prob[option] = p
    s.option_kind[option] = kind
    at = option
    while at > 0 and s.option_prob[s.ranking[at - 1]] < p:
        s.ranking[at] = s.ranking[at - 1]
        at -= 1
    s.ranking[at] = option


@jit
def list_options(s, m, node, ranks):
    """List the tokens that may follow a node: the `shortlist`, and the first `ranks` tokens of the
    draft model's ranking. Write them to `option_token`, their probabilities to `option_prob`, and
    their indices, most probable first, to `ranking`. Call `fill_path`, `find_occurrences` first."""
    find_candidates(s, m, node)
    if s.noisy:
        s.noise_key = position_key(s.seed, s.length - s.start + s.depth[node])
    s.options = 0
    for place in range(s.listed):
        c = s.shortlist[place]
        token = s.candidate[c]
        found = -1
        for rank in range(ranks - 1, -1, -1):
            if s.ranked[node, rank] == token and s.ranked_share[node, rank] > 0.0:
                found = rank
        kind = s.candidate_kind[c] | state.JUDGED if ranks else s.candidate_kind[c]
        _add_option(s, node, c, token, kind, found, ranks)
    for rank in range(ranks):
        if s.ranked_share[node, rank] <= 0.0:
            continue
        token = s.ranked[node, rank]
        known = m.slot[token]
        c = known % state.CANDIDATES if known // state.CANDIDATES == s.stamp else -1
        if c < 0 or s.candidate_rank[c] >= s.listed:
            _add_option(s, node, c, token, state.DRAFT, rank, ranks)


@jit
def find_children(s, m, node, ranks):
    """Make the most probable tokens of `list_options` the node's children, with probabilities that
    sum to at most 1. Tokens that were children before keep their nodes and subtrees."""
    list_options(s, m, node, ranks)
    count = min(s.options, s.max_children)
    total = 0.0
    for j in range(count):
        option = s.ranking[j]
        total += s.option_prob[option]
        s.option_node[j] = -1
        for old in range(s.children[node]):
            if s.child_token[node, old] == s.option_token[option]:
                s.option_node[j] = s.child_node[node, old]
    scale = 1.0 / max(1.0, total)
    for j in range(count):
        option = s.ranking[j]
        s.child_token[node, j] = s.option_token[option]
        s.child_prob[node, j] = s.option_prob[option] * scale
        s.child_kind[node, j] = s.option_kind[option]
        s.child_node[node, j] = s.option_node[j]
        if ranks:
            s.child_estimate[node, j] = s.option_prob[option]
            for i in range(state.INPUTS):
                s.child_input[node, j, i] = s.option_input[option, i]
    s.children[node] = count


@jit
def phrase_children(s, m, node):
    """Find a new node's children from phrases alone."""
    fill_path(s, node)
    find_occurrences(s, m, node)
    s.children[node] = 0
    s.ranks[node] = 0
    find_children(s, m, node, 0)
    s.longest_match[node] = s.longest
    s.phrase_children[node] = 0
    for j in range(s.children[node]):
        if s.child_kind[node, j] & state.PROPOSED:
            s.phrase_child[node, s.phrase_children[node]] = s.child_token[node, j]
            s.phrase_children[node] += 1
    s.top_phrase[node] = s.candidate[s.shortlist[0]] if s.listed else -1
