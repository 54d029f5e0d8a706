"""The public names of slipstream, as type checkers and editors see them: `__init__.py` loads them on first use."""

from slipstream.base.dtypes import Op
from slipstream.base.errors import Aborted as Aborted
from slipstream.base.errors import Mismatch as Mismatch
from slipstream.base.errors import PeerLost as PeerLost
from slipstream.base.errors import Refused as Refused
from slipstream.base.errors import SlipstreamError as SlipstreamError
from slipstream.base.errors import Timeout as Timeout
from slipstream.base.header import get_include as get_include
from slipstream.base.recording import timeline_mark as timeline_mark
from slipstream.base.recording import timeline_span as timeline_span
from slipstream.base.training import mark_step as mark_step
from slipstream.comm import BLOCK_INT8 as BLOCK_INT8
from slipstream.comm import Group as Group
from slipstream.comm import LaneStatistics as LaneStatistics
from slipstream.comm import LinkStatistics as LinkStatistics
from slipstream.comm import Work as Work
from slipstream.comm import all_gather as all_gather
from slipstream.comm import all_reduce as all_reduce
from slipstream.comm import all_to_all as all_to_all
from slipstream.comm import barrier as barrier
from slipstream.comm import broadcast as broadcast
from slipstream.comm import cross_rank as cross_rank
from slipstream.comm import cross_size as cross_size
from slipstream.comm import dequantize as dequantize
from slipstream.comm import empty as empty
from slipstream.comm import gather as gather
from slipstream.comm import init as init
from slipstream.comm import is_initialized as is_initialized
from slipstream.comm import link_statistics as link_statistics
from slipstream.comm import local_rank as local_rank
from slipstream.comm import local_size as local_size
from slipstream.comm import quantize as quantize
from slipstream.comm import rank as rank
from slipstream.comm import recv as recv
from slipstream.comm import reduce as reduce
from slipstream.comm import reduce_scatter as reduce_scatter
from slipstream.comm import scatter as scatter
from slipstream.comm import send as send
from slipstream.comm import shutdown as shutdown
from slipstream.comm import size as size
from slipstream.comm import world as world
from slipstream.launch.calls import run as run
from slipstream.observe.timeline import start_timeline as start_timeline
from slipstream.observe.timeline import stop_timeline as stop_timeline

__version__: str
SUM = Op.SUM
PROD = Op.PROD
MIN = Op.MIN
MAX = Op.MAX
AVG = Op.AVG
BAND = Op.BAND
BOR = Op.BOR
BXOR = Op.BXOR
