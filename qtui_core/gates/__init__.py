"""Limits on the figures of a report: the gates of scripts and CI."""
