"""The ``slipstream`` command."""
