"""How the ranks of a job find each other: the store, its handshake and secret, addresses, and who is which rank."""
