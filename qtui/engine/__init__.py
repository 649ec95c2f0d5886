"""The child process that computes, so that the screen never waits.

`client` runs in the process of the screen (asyncio, no numpy, no torch), `worker` is the child,
`protocol` is how they communicate, and `operations` are what a request can name.
"""
