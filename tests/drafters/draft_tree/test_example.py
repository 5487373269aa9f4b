"""One step of the drafter, worked out by hand on a text of four distinct tokens.

The text is `a b c a b d a b`; its last token `b` is the root of the tree.

1. Phrases. `b` occurred twice before, both times after `a`, so both places match 2 tokens. The
   newer one, of weight 1, continues with `d`, the older one, of weight 0.95, with `c`.
2. Candidates. The mixture p_k = (c_k + 1.5 p_{k-1}) / (C_k + 1.5) over match lengths k = 1, 2, with
   C_1 = C_2 = 1.95, gives

       d:  p_1 = 1 / 3.45 = 0.290,     p_2 = (1 + 1.5 * 0.290) / 3.45 = 0.416
       c:  p_1 = 0.95 / 3.45 = 0.275,  p_2 = (0.95 + 1.5 * 0.275) / 3.45 = 0.395

   After `d`, as after `c`, one place matches, with 3 tokens (`a b d`), and continues with `a`:

       a:  p_1 = 1 / 2.5 = 0.4,  p_2 = (1 + 1.5 * 0.4) / 2.5 = 0.64,  p_3 = 0.784

3. The tree. The estimator here takes a share as the probability. Best first, the children of the
   root join with 0.416 and 0.395, then `a` below `d`, reached with 0.416 * 0.784 = 0.326; `a` below
   `c`, with 0.395 * 0.784 = 0.310, would be next, but the tree is limited to four nodes:

       b --0.416--> d --0.784--> a
        \\--0.395--> c

4. What is kept. The target's tokens after the nodes b, d, c, a are d, a, b, b. The path b d a
   matches, so the step yields `d a b`: two drafted tokens and the target's own.
5. What is learned. The prediction `b` after the rejected `c` is recycled with its context, nearest
   token first: the next time the text reads `a b c`, `b` is a candidate.
"""

import pytest

from ouroboros.drafters.draft_tree.candidates import Weights
from ouroboros.drafters.draft_tree.state import DRAFT_FEATURES, PHRASE_FEATURES
from ouroboros.drafters.draft_tree.tree_grower import TreeGrower

A, B, C, D = 1, 2, 3, 4
SHARE_ONLY = Weights(
    *(
        tuple(float(name == "log-odds of the share") for name in PHRASE_FEATURES),
        (0.0,) * len(DRAFT_FEATURES),
    )
    * 2
)


def test_a_step_by_hand():
    grower = TreeGrower(SHARE_ONLY, max_nodes=4)
    grower.set_costs(verify=[1.0], call=[1.0])  # verifying four nodes costs no more than one
    grower.start()
    no_draft_model = -1
    assert not grower.begin([A, B, C, A, B, D, A, B], 10, no_draft_model)

    proposal = grower.proposal()
    assert proposal.tokens == (B, D, C, A)
    assert proposal.parents == (-1, 0, 0, 1)
    assert proposal.probability == pytest.approx((1.0, 0.416, 0.395, 0.784), abs=5e-4)
    assert proposal.source[1:] == ("phrase",) * 3

    chosen = [D, A, B, B]
    path = proposal.longest_match(chosen)
    assert path == [0, 1, 3]
    assert [proposal.tokens[node] for node in path[1:]] + [chosen[path[-1]]] == [D, A, B]

    grower.learn(chosen, path)
    assert grower.state_dict()["recycled"] == [[C, B, A, D, B, A, B]]
