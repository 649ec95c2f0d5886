"""A recorded step replayed: what is alive when, and what the caching allocator reserves."""
