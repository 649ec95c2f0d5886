"""Panel 3: schemes of few bits side by side, code by code."""
