"""Score one token tree on several devices: each scores a subtree, then they exchange the chosen
tokens."""
