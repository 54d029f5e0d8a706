"""``python -m slipstream`` is the ``slipstream`` command."""

from slipstream.cli.main import main

if __name__ == "__main__":
    main(prog_name="slipstream")
