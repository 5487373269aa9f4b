"""The audit of a run: what `ouroboros.audit` finds of one completion, asked of all in a folder.

`run_audit` judges and writes audit.jsonl, `audit_report` reads it and says it in words.
"""
