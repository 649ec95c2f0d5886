"""How each convention is run: one module for each library, which imports that library.

Nothing outside the child process imports these.
"""
