"""Ray Train with `TorchConfig(backend="slipstream")`: starts Ray and two workers itself."""

import os
import sys
import tempfile
from pathlib import Path

import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model

HERE = str(Path(__file__).parent)


def work(config):
    """A worker's part: leaves a file with its rank as name, once all checks have passed."""
    sys.path.insert(0, HERE)
    from ranks_agree import check, data

    x, y = data()
    model = prepare_model(torch.nn.Linear(5, 1))
    loader = prepare_data_loader(
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.nn.MSELoss()
    before = loss(model.module(x), y).item()
    for _ in range(5):
        for rows, wanted in loader:
            optimizer.zero_grad()
            loss(model(rows), wanted).backward()
            optimizer.step()
    check(model, before, loss(model.module(x), y).item())
    (Path(config["passed"]) / str(torch.distributed.get_rank())).touch()


os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray.init(address="local", num_cpus=3, include_dashboard=False, _node_ip_address="127.0.0.1")
with tempfile.TemporaryDirectory() as folder:
    passed = Path(folder) / "passed"
    passed.mkdir()
    TorchTrainer(
        work,
        train_loop_config={"passed": str(passed)},
        torch_config=TorchConfig(backend="slipstream"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=folder),
    ).fit()
    assert sorted(one.name for one in passed.iterdir()) == ["0", "1"]
print("passed on two workers")
