"""Replay drafters on recorded text, without computing the target."""
