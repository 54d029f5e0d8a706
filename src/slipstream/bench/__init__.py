"""Measurements of slipstream and of its peers, in the same processes and in turns."""
