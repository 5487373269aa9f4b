"""Replay drafters on recorded text, without computing the target; simulate draft models."""
