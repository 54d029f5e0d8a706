"""skorch by accelerate: `slipstream run --replace gloo`."""

import numpy as np
import torch
from accelerate import Accelerator
from ranks_agree import check, data
from skorch import NeuralNetRegressor
from skorch.hf import AccelerateMixin


class Net(AccelerateMixin, NeuralNetRegressor):
    """skorch's way to use accelerate."""


x, y = (one.numpy().astype(np.float32) for one in data())
net = Net(
    torch.nn.Linear,
    module__in_features=5,
    module__out_features=1,
    accelerator=Accelerator(cpu=True),
    lr=0.1,
    max_epochs=10,
    batch_size=8,
    train_split=None,
    callbacks__print_log=None,
)
net.fit(x, y)
check(net.module_, net.history[0, "train_loss"], net.history[-1, "train_loss"])
