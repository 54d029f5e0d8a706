"""What `slipstream.comm` loads on first use."""

from slipstream.comm.collectives.arrays import all_gather as all_gather
from slipstream.comm.collectives.arrays import all_reduce as all_reduce
from slipstream.comm.collectives.arrays import all_to_all as all_to_all
from slipstream.comm.collectives.arrays import barrier as barrier
from slipstream.comm.collectives.arrays import broadcast as broadcast
from slipstream.comm.collectives.arrays import gather as gather
from slipstream.comm.collectives.arrays import recv as recv
from slipstream.comm.collectives.arrays import reduce as reduce
from slipstream.comm.collectives.arrays import reduce_scatter as reduce_scatter
from slipstream.comm.collectives.arrays import scatter as scatter
from slipstream.comm.collectives.arrays import send as send
from slipstream.comm.collectives.block_int8 import BLOCK_INT8 as BLOCK_INT8
from slipstream.comm.collectives.block_int8 import dequantize as dequantize
from slipstream.comm.collectives.block_int8 import quantize as quantize
from slipstream.comm.collectives.buffers import empty as empty
from slipstream.comm.collectives.work import Work as Work
from slipstream.comm.membership.group import Group as Group
from slipstream.comm.membership.group import world as world
from slipstream.comm.membership.job import cross_rank as cross_rank
from slipstream.comm.membership.job import cross_size as cross_size
from slipstream.comm.membership.job import init as init
from slipstream.comm.membership.job import is_initialized as is_initialized
from slipstream.comm.membership.job import local_rank as local_rank
from slipstream.comm.membership.job import local_size as local_size
from slipstream.comm.membership.job import rank as rank
from slipstream.comm.membership.job import shutdown as shutdown
from slipstream.comm.membership.job import size as size
from slipstream.comm.membership.statistics import LaneStatistics as LaneStatistics
from slipstream.comm.membership.statistics import LinkStatistics as LinkStatistics
from slipstream.comm.membership.statistics import link_statistics as link_statistics

__all__: list[str]
