"""``python -m slipstream`` is the ``slipstream`` command."""

from slipstream.cli.entry import main

if __name__ == "__main__":
    main()
