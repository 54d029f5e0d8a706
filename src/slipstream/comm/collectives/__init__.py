"""Collectives: on addresses for the faces of frameworks, on arrays for users."""
