"""A program that chooses TensorFlow's threads and devices after `hvd.init`, as scripts of Horovod do.

Prints how many threads the process has in the end. The argument: "function" or "session".
"""

from __future__ import annotations

import sys
from pathlib import Path

import tensorflow as tf

import slipstream.tensorflow as hvd

THREADS = 40  # more than TensorFlow takes by itself, with all others


def main() -> None:
    """Runs a graph with operations that wait."""
    hvd.init()
    if sys.argv[1] == "session":
        config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=THREADS)
        with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
            found = session.run(hvd.allreduce(tf.ones(3), op=hvd.Sum))
    else:
        cpus = tf.config.list_physical_devices("CPU")
        tf.config.threading.set_intra_op_parallelism_threads(THREADS)  # these raise once there is a context
        tf.config.set_visible_devices(cpus)
        tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
        found = tf.function(lambda: hvd.allreduce(tf.ones(3), op=hvd.Sum))().numpy()
        assert len(tf.config.list_logical_devices("CPU")) == 2
    assert found.tolist() == [hvd.size()] * 3
    print("threads:", len(list(Path("/proc/self/task").iterdir())), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
