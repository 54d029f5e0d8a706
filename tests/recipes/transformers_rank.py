"""Hugging Face Trainer, unchanged: `slipstream run --replace gloo`."""

import tempfile

import torch
from ranks_agree import check, data
from transformers import Trainer, TrainingArguments


class Net(torch.nn.Module):
    """What Trainer wants of a model: a loss in what it returns."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(5, 1)

    def forward(self, x, labels):
        found = self.linear(x)
        return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}


x, y = data()
rows = [{"x": one, "labels": label} for one, label in zip(x, y, strict=True)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        num_train_epochs=10,
        per_device_train_batch_size=4,
        learning_rate=0.1,
        optim="sgd",
        max_grad_norm=0,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model=Net(), args=arguments, train_dataset=rows)
    before = torch.nn.functional.mse_loss(trainer.model.linear(x), y).item()
    trainer.train()
    after = torch.nn.functional.mse_loss(trainer.model.linear(x), y).item()
check(trainer.model, before, after)
