"""`slipstream run`: starts the ranks of a job on this and other hosts, and ends every one of them."""
