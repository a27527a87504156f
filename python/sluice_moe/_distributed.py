# SPDX-License-Identifier: Apache-2.0
"""A trainer's torch process groups, joined beside whatever group the process is in already."""
from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from . import errors
from ._arguments import list_of
from ._named_tensors import dtype_name
from .specs import count

TIMEOUT = timedelta(minutes=30)  # torch's own for gloo; a trainer may compute before it broadcasts


def _torch() -> Any:
    try:
        import torch
        import torch.distributed
    except ImportError as problem:
        raise errors.Unsupported(f"weights from a process group need torch: {problem}") from problem
    if not torch.distributed.is_available():
        raise errors.Unsupported("this torch was built without torch.distributed, which weights from a process group need")
    return torch


class Groups:
    def __init__(self) -> None:
        self._groups: dict[str, tuple[Any, str]] = {}  # and the backend

    def join(self, address: str, port: int, rank: int, world_size: int, name: str, backend: str) -> tuple[bool, str]:
        if backend not in ("nccl", "gloo"):
            raise ValueError(f"backend is {backend!r}; accepted: 'nccl', 'gloo'")
        if not isinstance(address, str) or not isinstance(name, str):
            raise TypeError(f"master_address is {type(address).__name__} and group_name {type(name).__name__}; accepted: str")
        port = count("master_port", port, 1, 65535)
        world_size = count("world_size", world_size, 2, 2**31 - 1)
        rank = count("rank_offset", rank, 1, world_size - 1)
        if name in self._groups:
            raise errors.InvalidArgument(f"group_name is {name!r}, a group that was joined already; leave it with "
                                         "destroy_weights_update_group() first")
        torch = _torch()
        c10d = torch.distributed.distributed_c10d
        # A group of its own that no default group knows, as trainers make it: torch's public functions make subgroups of
        # the default group only. The store's prefix is the group's name on both sides.
        store, rank, world_size = next(c10d.rendezvous(f"tcp://{address}:{port}", rank, world_size, timeout=TIMEOUT))
        store.set_timeout(TIMEOUT)
        group, _ = c10d._new_process_group_helper(world_size, rank, [], c10d.Backend(backend),
                                                  c10d.PrefixStore(name, store), group_name=name, timeout=TIMEOUT)
        c10d._world.pg_group_ranks[group] = {i: i for i in range(world_size)}
        self._groups[name] = group, backend
        return True, f"joined the group {name} as rank {rank} of {world_size}"

    def leave(self, name: str) -> tuple[bool, str]:
        if name not in self._groups:
            raise errors.InvalidArgument(f"group_name is {name!r}; accepted: a group that was joined"
                                         f"{''.join(', ' + repr(n) for n in self._groups)}")
        group, _ = self._groups.pop(name)
        _torch().distributed.destroy_process_group(group)
        return True, f"left the group {name}"

    def receive(self, name: str, names: Sequence[str], dtypes: Sequence[Any], shapes: Sequence[Sequence[int]], device: str,
                flat: bool) -> list[tuple[str, Any]]:
        """What rank 0 broadcasts, tensor by tensor or, flat, all bytes at once."""
        names, dtypes, shapes = list_of("names", names), list_of("dtypes", dtypes), list_of("shapes", shapes)
        if not len(names) == len(dtypes) == len(shapes) or not names:
            raise ValueError(f"names, dtypes and shapes have {len(names)}, {len(dtypes)} and {len(shapes)} entries; accepted: "
                             "one of each for every tensor, at least one")
        if name not in self._groups:
            raise errors.InvalidArgument(f"group_name is {name!r}; join it with init_weights_update_group() first")
        torch = _torch()
        group, backend = self._groups[name]
        place = "cpu" if backend == "gloo" else device if device.startswith("cuda") else "cuda"
        types: list[Any] = [getattr(torch, dtype_name(d), None) for d in dtypes]
        for given, known in zip(dtypes, types):
            if not isinstance(known, torch.dtype):
                raise ValueError(f"dtypes has {given!r}; accepted: torch's types and their names")
        sizes = [tuple(int(s) for s in shape) for shape in shapes]
        if not flat:
            tensors = []
            for dtype, shape in zip(types, sizes):
                tensors.append(torch.empty(shape, dtype=dtype, device=place))
                torch.distributed.broadcast(tensors[-1], src=0, group=group)
            return list(zip(names, tensors))
        lengths = [math.prod(shape) * dtype.itemsize for dtype, shape in zip(types, sizes)]
        whole = torch.empty(sum(lengths), dtype=torch.uint8, device=place)
        torch.distributed.broadcast(whole, src=0, group=group)
        out, at = [], 0
        for given, dtype, shape, length in zip(names, types, sizes, lengths):
            # A copy, as a tensor of a wider type must begin at a multiple of its size.
            out.append((given, whole[at:at + length].clone().view(dtype).reshape(shape)))
            at += length
        return out
