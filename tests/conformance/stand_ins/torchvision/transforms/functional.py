"""Nothing: the programs import it for transforms that they do not use."""
