"""What a whole checkpoint contains, and what each scheme would do to it.

`census` needs only headers and no numpy; `inspect` reads values.
"""
