"""slipstream in the place of Horovod: `slipstream run --horovod` puts this folder before all others."""

try:
    from slipstream.as_horovod.importing import stand_in
except ModuleNotFoundError as error:
    if error.name != "slipstream":
        raise
    import sys

    text = f"slipstream stands in for Horovod here, but {sys.executable} does not have it: install slipstream there"
    raise ModuleNotFoundError(text, name="slipstream") from None

stand_in(__name__)
