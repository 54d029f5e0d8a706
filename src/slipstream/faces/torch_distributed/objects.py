"""Tags on the objects that PyTorch pickles: nothing is unpickled that did not come from a rank of the job, unchanged.

PyTorch pickles above its back ends: they see bytes. So its object operations are wrapped, and with them the two
functions that turn an object into bytes and back. Within an operation of a group of ours, what travels of an object is

    mark 8 bytes | the rank in the group that sends, u32 | tag 32 bytes | pickle

The mark is no beginning of a pickle: a rank that knows no tags fails, and takes nothing. Groups of other back ends are
left as they are.
"""

from __future__ import annotations

import inspect
import struct
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from slipstream.comm.rendezvous.authentication import TAG_SIZE, Authenticator, authenticator
from slipstream.faces.torch_distributed.patches import is_ours, with_signature_of

__all__ = ["install"]

_c10d: Any = distributed_c10d
_MARK = b"\xffSLIPOBJ"
_HEAD = struct.Struct(f"<{len(_MARK)}sI{TAG_SIZE}s")


@dataclass(frozen=True)
class _Way:
    """Whose objects an operation moves. Ranks are those in the group; an index counts the objects of one call."""

    name: str  # the same on both sides
    sent: Callable[[int, int], int] = lambda index, me: index  # which object the one made at ``index`` is
    got: Callable[[int, int], int] = lambda index, me: index  # which one the one read at ``index`` is
    peer: str = ""  # the argument that names the other rank, or the one that has the objects


_WAYS = {
    "all_gather_object": _Way("all_gather_object", lambda *_: 0, lambda *_: 0),
    "gather_object": _Way("gather_object", lambda *_: 0, lambda *_: 0),
    "broadcast_object_list": _Way("broadcast_object_list", peer="src"),
    "scatter_object_list": _Way("scatter_object_list", got=lambda _, me: me, peer="src"),
    "send_object_list": _Way("send_object_list", peer="dst"),
    "recv_object_list": _Way("send_object_list", peer="src"),
}
_MESSAGES = ("send_object_list", "recv_object_list")


class _Call:
    """One call of an operation of a group of ours."""

    def __init__(self, group: Any, operation: str, peer: int | None) -> None:
        """``peer``: who sends, or gets, the objects; None if everybody sends, or if anybody may."""
        self._group, self._operation, self._peer = group, operation, peer
        self._way = _WAYS[operation]
        self._made = self._read = 0
        self._auth: Authenticator | None = None
        self._numbered = ""

    def end(self, whole: bool) -> None:
        """The number of the operation is used if objects have been read, or the call has come to its end."""
        if self._read or (whole and self._tags(self._peer)):
            self._group.object_numbers[self._numbered] += 1

    def sealed(self, pickled: bytes) -> bytes:
        """What is sent of an object."""
        me = self._group.rank()
        auth = self._tags(self._peer)
        part = f"object {self._way.sent(self._made, me)}"
        self._made += 1
        return _HEAD.pack(_MARK, me, auth.tag(part, self._rank(me), pickled)) + pickled

    def opened(self, data: bytes) -> bytes:
        """The pickle; SlipstreamError, and the end of the session, if it is not what was sent."""
        index, me = self._read, self._group.rank()
        mark, sender, tag = _HEAD.unpack(data[: _HEAD.size].ljust(_HEAD.size, b"\0"))
        if self._operation not in _MESSAGES:
            sender = index if self._peer is None else self._peer
        elif self._peer is not None:
            sender = self._peer
        elif sender >= self._group.size():
            sender = me  # nobody: the tag does not fit
        auth = self._tags(sender)
        if mark != _MARK:
            auth.refuse(
                self._rank(sender),
                "it has no tag. The data changed on the way, or that rank has another version of slipstream. "
                "Nothing of it was used",
            )
        pickled = data[_HEAD.size :]
        auth.check(f"object {self._way.got(index, me)}", self._rank(sender), pickled, tag)
        self._read += 1
        return pickled

    def _rank(self, rank: int) -> int:
        number: int = self._group.members.ranks[rank]
        return number

    def _tags(self, peer: int | None) -> Authenticator:
        """Those of this call; of a message that anybody may send, once the sender is known."""
        if self._auth is None:
            me = self._group.rank()
            if self._operation in _MESSAGES:
                ends = (me, peer) if self._operation == "send_object_list" else (peer, me)
                self._numbered = "{}>{}".format(*ends)
            number = self._group.object_numbers[self._numbered]
            self._auth = authenticator(
                self._group.members, self._way.name, f"torch/{self._numbered}/{number}"
            )
        return self._auth


_call: ContextVar[_Call | None] = ContextVar("the object operation under way", default=None)


def install() -> None:
    """Wraps the operations, wherever their names have been imported, and what pickles for them."""
    for name in _WAYS:
        original = getattr(_c10d, name, None)
        if original is not None:
            _replace_everywhere(name, original, _operation(name, original))
    _c10d._object_to_tensor = _sealing(_c10d._object_to_tensor)
    _c10d._tensor_to_object = _opening(_c10d._tensor_to_object)


def _replace_everywhere(name: str, original: Any, wrapped: Any) -> None:
    setattr(dist, name, wrapped)
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        if names.get(name) is original:
            names[name] = wrapped


def _operation(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(original)

    def operation(*args: Any, **kwargs: Any) -> Any:
        try:
            given = parameters.bind(*args, **kwargs).arguments
            group = given.get("group") or _c10d.GroupMember.WORLD
            peer = _peer(group, given, _WAYS[name].peer, name not in _MESSAGES) if is_ours(group) else None
        except Exception:  # PyTorch says what is wrong with the arguments
            return original(*args, **kwargs)
        if not is_ours(group):
            return original(*args, **kwargs)
        call, whole = _Call(group, name, peer), False
        token = _call.set(call)
        try:
            result = original(*args, **kwargs)
            whole = True
        finally:
            _call.reset(token)
            call.end(whole)
        return result

    return with_signature_of(original, operation)


def _peer(group: Any, given: Mapping[str, Any], argument: str, root: bool) -> int | None:
    """The rank in the group that the arguments name; if they name none, rank 0 of the job if it is a ``root``."""
    if not argument:
        return None
    in_group, in_job = given.get(f"group_{argument}"), given.get(argument)
    if in_group is not None:
        return int(in_group)
    if in_job is None and not root:
        return None
    return int(_c10d.get_group_rank(group, in_job or 0))


def _sealing(original: Callable[..., Any]) -> Callable[..., Any]:
    def object_to_tensor(obj: Any, device: Any, *rest: Any) -> Any:
        call = _call.get()
        if call is None:
            return original(obj, device, *rest)
        pickled, _ = original(obj, "cpu", *rest)
        data = bytearray(call.sealed(pickled.numpy().tobytes()))
        tensor = torch.frombuffer(data, dtype=torch.uint8).clone().to(device)
        return tensor, torch.tensor([len(data)], dtype=torch.long, device=device)

    return with_signature_of(original, object_to_tensor)


def _opening(original: Callable[..., Any]) -> Callable[..., Any]:
    def tensor_to_object(tensor: Any, size: Any, *rest: Any) -> Any:
        call = _call.get()
        if call is None:
            return original(tensor, size, *rest)
        pickled = bytearray(call.opened(tensor.cpu().numpy().tobytes()[: int(size)]))
        return original(torch.frombuffer(pickled, dtype=torch.uint8), len(pickled), *rest)

    return with_signature_of(original, tensor_to_object)
