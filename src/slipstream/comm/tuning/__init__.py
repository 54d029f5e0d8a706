"""Tunes what the cost model and the links leave open, by what operations take: in the first steps, then silence."""
