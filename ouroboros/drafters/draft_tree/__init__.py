"""Growing one token tree from phrases, recycled predictions and a draft's ranking: no model in it.

`growth.Growth` is the door: a state, and the steps on it as lists and arrays. Behind it, one idea a
file, in the order of a step: `index` (where else a token stands), `recycling` (what the target said
after rejected ones), `mixture` (what may follow, with what share), `estimate` (how likely that is
the target's choice), `kids`, `grow` (the tree), `worth` (ask the draft? verify how much?), `learn`.
"""
