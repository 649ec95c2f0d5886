"""The child process that computes, so that the screen never waits.

`client` runs beside the screen (asyncio, no numpy, no torch), `worker` is the child,
`protocol` is what travels between them and `operations` is what can be asked for.
"""
