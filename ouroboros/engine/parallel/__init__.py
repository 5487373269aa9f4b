"""Score a token tree on several devices: each scores a subtree; they exchange tokens."""
