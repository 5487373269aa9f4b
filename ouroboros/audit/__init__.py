"""Is a completion what plain decoding gives: identical, a numeric tie, or a BUG.

From outside take `Auditor` of `audit`; the rest measures the noise of arithmetic.
"""
