"""Replays a recorded step: what is alive when, and what the caching allocator reserves."""
