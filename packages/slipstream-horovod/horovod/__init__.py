"""slipstream in the place of Horovod; the modules below are in slipstream.as_horovod.modules."""

from slipstream.as_horovod.importing import stand_in

stand_in(__name__)
