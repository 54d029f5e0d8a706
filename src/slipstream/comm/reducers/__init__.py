"""A job's reducers, as its workers see them."""
