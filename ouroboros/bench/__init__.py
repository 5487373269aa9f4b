"""Benchmarks: tasks, runs, measures, verdicts, replays, reports, advice. Imports run downwards in
this order: tasks, measure, run, verdict, replay, report, advice, campaign.
"""
