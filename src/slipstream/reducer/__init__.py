"""A reducer: a node without a framework that sums what the workers of jobs send it. `slipstream reducer` runs it."""
