"""Jobs and groups of ranks: who takes part, how a process enters and leaves, and how survivors of a failure go on."""
