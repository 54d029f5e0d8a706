"""What `hvd.elastic.TorchState` keeps and shares, and how `hvd.elastic.ElasticSampler` deals samples."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import slipstream.torch as hvd  # noqa: E402
from faces.rank_jobs import Ranks  # noqa: E402
from slipstream.faces.horovod.elastic import HostsUpdatedInterrupt, ObjectState  # noqa: E402
from slipstream.faces.torch import state_handlers  # noqa: E402


def filled(value: float) -> Any:
    """A model with this everywhere."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(value)
    return model


def values(model: Any) -> set[float]:
    """All there are in it."""
    return {number for tensor in model.state_dict().values() for number in tensor.flatten().tolist()}


def check_sync() -> None:
    model = filled(hvd.rank() + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (hvd.rank() + 1), momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1 + hvd.rank())
    state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, batch=20 + hvd.rank(), names=["a"])
    assert (state.batch, values(model)) == (20 + hvd.rank(), {hvd.rank() + 1.0})
    state.sync()
    assert (state.batch, state.names, values(model)) == (20, ["a"], {1.0})
    assert (state.model, state.optimizer, state.scheduler) == (model, optimizer, scheduler)
    assert (optimizer.param_groups[0]["lr"], scheduler.step_size) == (0.1, 1)
    assert scheduler.optimizer is optimizer
    state.batch = 30
    model.load_state_dict(filled(5).state_dict())
    state.restore()  # to what all ranks have, without a commit
    assert (state.batch, values(model)) == (20, {1.0})


def test_sync_gives_all_ranks_the_state_of_rank_0(two: Ranks) -> None:
    two(check_sync)


def check_restore() -> None:
    model = filled(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    state = hvd.elastic.TorchState(model, optimizer, history=[1], epoch=10)

    def step() -> dict[str, Any]:
        optimizer.zero_grad()
        model(torch.ones(4, 2) * torch.arange(4).unsqueeze(1)).square().sum().backward()
        optimizer.step()
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}

    step()
    state.history.append(2)
    state.epoch = 11
    state.commit()
    expected = step()
    for _ in range(2):  # a commit bears it to be gone back to more than once
        state.history.append(3)
        state.epoch = 12
        state.restore()
        assert (state.history, state.epoch) == ([1, 2], 11)
        assert all(param.grad is None for param in model.parameters())  # they were of a step that is lost
        found = step()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_restore_goes_back_to_the_last_commit(two: Ranks) -> None:
    two(check_restore)


def check_replaced() -> None:
    state = hvd.elastic.TorchState(filled(1))
    state.model = filled(2)
    state.model.load_state_dict(filled(3).state_dict())
    state.restore()
    assert values(state.model) == {2.0}
    with pytest.raises(TypeError, match="model has been something with a state_dict: it cannot become int"):
        state.model = 3


def test_a_model_may_be_replaced(two: Ranks) -> None:
    two(check_replaced)


def dealt(processed: int, count: int, **options: Any) -> list[int]:
    sampler = hvd.elastic.ElasticSampler(range(count), **options)
    sampler.load_state_dict({"epoch": 0, "processed_num": processed})
    assert len(sampler) == len(list(sampler))
    assert sampler.processed_indices.isdisjoint(sampler.remaining_indices)
    return list(sampler)


@pytest.mark.parametrize(
    ("processed", "count", "expected"),
    [
        (0, 6, [[0, 3], [1, 4], [2, 5]]),
        (0, 7, [[0, 3, 6], [1, 4, 0], [2, 5, 1]]),
        (4, 7, [[4], [5], [6]]),
        (6, 7, [[6], [6], [6]]),
        (7, 7, [[], [], []]),
        (9, 7, [[], [], []]),
    ],
)
def test_what_is_left_is_dealt_in_equal_shares(
    three: Ranks, processed: int, count: int, expected: list[list[int]]
) -> None:
    assert three(deal_unshuffled, processed, count) == expected


def deal_unshuffled(processed: int, count: int) -> list[int]:
    return dealt(processed, count, shuffle=False)


def check_shuffled() -> list[int]:
    sampler = hvd.elastic.ElasticSampler(range(50), seed=3)
    same = torch.utils.data.DistributedSampler(range(50), hvd.size(), hvd.rank(), seed=3)
    first = list(sampler)
    assert first == list(same)
    sampler.set_epoch(1)
    same.set_epoch(1)
    assert list(sampler) == list(same) != first
    torch.set_default_device("meta")  # what a script makes its tensors on
    try:
        sampler.set_epoch(0)
    finally:
        torch.set_default_device(None)
    assert list(sampler) == first
    sampler.set_epoch(1)
    return list(sampler)


def test_the_order_is_that_of_pytorchs_sampler(two: Ranks) -> None:
    found = two(check_shuffled)
    assert sorted(found[0] + found[1]) == list(range(50))


def check_records() -> None:
    sampler = hvd.elastic.ElasticSampler(range(16))
    loader = torch.utils.data.DataLoader(range(16), batch_size=2, sampler=sampler)
    state = hvd.elastic.TorchState(sampler=sampler)
    state.sync()
    had: set[int] = set()
    for number, batch in enumerate(loader):
        assert batch.tolist() == sampler.get_indices(number, 2)
        if number == 2:
            break
        had |= set(hvd.allgather(batch).tolist())
        sampler.record_batch(number, 2)
        assert (sampler.processed_num, sampler.processed_indices) == (4 * (number + 1), had)
    state.commit()
    assert len(list(loader)) == 4  # the epoch is dealt as it was
    sampler.record_indices(reversed(sampler.get_indices(2, 2)))
    assert sampler.processed_num == 12
    with pytest.raises(ValueError, match="not the samples that come next"):
        sampler.record_indices(sampler.get_indices(0, 2))
    state.restore()
    assert sampler.processed_num == 8
    assert set(hvd.allgather(torch.tensor(list(sampler))).tolist()) == set(range(16)) - had
    sampler.set_epoch(1)
    assert (len(sampler), sampler.processed_indices) == (8, set())


def test_samples_that_are_recorded_do_not_come_again(two: Ranks) -> None:
    two(check_records)


def check_reset() -> list[str]:
    said: list[str] = []
    state = hvd.elastic.TorchState(epoch=0)
    state.register_reset_callbacks([lambda: said.append("first"), lambda: said.append("second")])
    state.on_reset()
    return said


def test_callbacks_come_in_their_order(two: Ranks) -> None:
    assert two(check_reset) == [["first", "second"]] * 2


class Counted(state_handlers.StateHandler):
    """Of a list: what is kept is its length."""

    def save(self) -> None:
        self.length = len(self.value)

    def restore(self) -> None:
        del self.value[self.length :]

    def sync(self) -> None:
        self.length = int(hvd.broadcast(torch.tensor(self.length), 0))
        self.restore()


def check_handlers() -> None:
    before = state_handlers.get_handler_registry()
    state_handlers.set_handler_registry([(list, Counted), *before])
    try:
        state = hvd.elastic.TorchState(filled(1), names=["a"] * (hvd.rank() + 1), epoch=3)
        names = state.names
        state.commit()
        state.sync()
        assert names == ["a"]
        names.append("b")
        state.restore()
        assert names == ["a"]
        state.names = [1, 2, 3]  # by the same handler
        state.names.append(4)
        state.restore()
        assert state.names == [1, 2, 3]
        state.names = torch.nn.Linear(1, 1)  # by another
        state.restore()
        assert set(state.names.state_dict()) == {"weight", "bias"}
        with pytest.raises(TypeError, match="names has been something with a state_dict"):
            state.names = 3
    finally:
        state_handlers.set_handler_registry(before)
    model, optimizer = filled(1), torch.optim.SGD([torch.ones(1, requires_grad=True)])
    sampler = hvd.elastic.ElasticSampler(range(4))
    handlers = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=1)._handlers
    assert {name: type(one).__name__ for name, one in handlers.items()} == {
        "model": "ModelStateHandler",
        "optimizer": "OptimizerStateHandler",
        "sampler": "SamplerStateHandler",
    }


def test_a_type_may_have_a_handler_of_its_own(two: Ranks) -> None:
    two(check_handlers)


def interrupted(state: Any) -> bool | None:
    """Whether the commit says that hosts were removed alone; None if it says nothing."""
    try:
        state.commit()
    except HostsUpdatedInterrupt as interrupt:
        return interrupt.skip_sync
    return None


def test_a_commit_says_that_hosts_were_updated() -> None:
    state = ObjectState(lambda obj: obj, lambda: 0, epoch=1)
    assert interrupted(state) is None
    state.on_hosts_updated(1.0, 1)
    assert [interrupted(state), interrupted(state)] == [True, None]
    state.on_hosts_updated(2.0, 1)
    state.on_hosts_updated(3.0, 2)
    assert interrupted(state) is False
    state.on_hosts_updated(3.0, 1)
    assert interrupted(state) is None
    state.on_hosts_updated(4.0, 2)
    state.on_reset()  # the job is another one
    assert interrupted(state) is None


def test_a_state_without_its_three_methods_says_so() -> None:
    state = hvd.elastic.State(lambda obj: obj, lambda: 0)
    for method in (state.save, state.restore, state.sync, state.commit):
        with pytest.raises(NotImplementedError):
            method()
