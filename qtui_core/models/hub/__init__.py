"""Models on the hub: what a repository holds, its files by byte range, and its errors."""
