"""Drafters against recorded text: recordings, replays, imitated targets. No target is computed."""
