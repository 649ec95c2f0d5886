"""`python -m qtui` is the same program as `qtui`."""

from qtui.cli import main

if __name__ == "__main__":
    main()
