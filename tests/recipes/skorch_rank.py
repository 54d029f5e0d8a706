"""skorch with its module in DistributedDataParallel, over `init_process_group("slipstream")`."""

import torch
import torch.distributed as dist
from ranks_agree import check, data
from skorch import NeuralNetRegressor


class Net(NeuralNetRegressor):
    """Averages gradients over the ranks."""

    def initialize_module(self):
        super().initialize_module()
        self.module_ = torch.nn.parallel.DistributedDataParallel(self.module_)
        return self


dist.init_process_group("slipstream")
torch.manual_seed(dist.get_rank())  # DDP makes the models one
x, y = data()
mine = slice(dist.get_rank(), None, dist.get_world_size())
options = {"module__in_features": 5, "module__out_features": 1, "lr": 0.1, "max_epochs": 10}
net = Net(torch.nn.Linear, **options, batch_size=8, train_split=None, verbose=0)
net.fit(x[mine].numpy(), y[mine].numpy())
check(net.module_, net.history[0, "train_loss"], net.history[-1, "train_loss"])
dist.destroy_process_group()
