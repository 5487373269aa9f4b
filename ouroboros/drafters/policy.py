"""Which of Ouroboros' ideas are on: the published behaviour and ours are two values of one record.

Invariant: a policy changes *what is proposed* and nothing else, so every one of them is lossless.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """Which ideas are on, each a switch for ablations.

    `prompt_phrases`, `output_phrases`: take the n-grams of the prompt and of accepted output.
    `pool_while_filling`: use the pool while the Jacobi window is still being filled.
    `correct_always`: correct a verified suffix after a rejection too, not only on full acceptance.
    `agreements`: consecutive agreements between draft and target that make a phrase (None: N - 2).
    `tail_predictions`: the target's own predictions along a rejected tail become phrases.
    `context`: prefer phrases whose context agrees.
    `root_phrases`: branches from the pool at the root too, beside the draft.
    `runner_up`: the draft's second choice becomes a branch where its probability of being reached
    is at least this (0: never).
    `recall`: where a phrase's context agrees in at least this many tokens, draft from the pool
    alone, without the draft model (0: never).
    `stop_below`: stop drafting when the draft's own probability of the whole draft falls below
    this (0: never).
    `draft_cost`: a draft call's cost in target calls. Above 0, a call is made only where it is
    worth that by the steps so far (`ouroboros.drafters.pace.Worth`; 0: never weighed).
    `max_nodes`: no branch makes the tree larger than this.
    """

    prompt_phrases: bool = True
    output_phrases: bool = True
    pool_while_filling: bool = True
    correct_always: bool = True
    agreements: int | None = 1
    tail_predictions: bool = True
    context: bool = True
    root_phrases: bool = True
    runner_up: float = 0.03
    recall: int = 4
    stop_below: float = 0.3
    draft_cost: float = 0.0
    max_nodes: int = 64


OURS = Policy()
PAPER = Policy(
    prompt_phrases=False,
    output_phrases=False,
    pool_while_filling=False,
    correct_always=False,
    agreements=None,
    tail_predictions=False,
    context=False,
    root_phrases=False,
    runner_up=0.0,
    recall=0,
    stop_below=0.0,
    max_nodes=1 << 30,
)


def named(policy: str | Policy) -> Policy:
    """Return the policy of a name, or itself. Raises `ValueError` for another name."""
    if isinstance(policy, Policy):
        return policy
    names = {"ours": OURS, "paper": PAPER}
    if policy not in names:
        raise ValueError(f'policy {policy!r} is not "ours", "paper" or a Policy')
    return names[policy]
