"""Replay drafters against recorded text, where no target is computed; simulate drafts on it."""
