# SPDX-License-Identifier: Apache-2.0
"""What a trainer calls of an Engine, with SGLang's names: pauses, other weights, memory given back for a while."""
from __future__ import annotations

import bisect
import contextlib
import ctypes
import hashlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from . import _c_api, _library, _named_tensors, errors
from ._answers import Stream
from ._arguments import list_of
from ._callbacks import interruptible
from ._distributed import Groups
from .specs import count

Member = TypeVar("Member")

_PAUSES = ("abort", "retract", "in_place")  # by their numbers in c.h
_MEMORY = {"weights": 1, "kv_cache": 2, "cuda_graph": 0}  # graphs live with the weights
_NAMES_KEPT = 4096  # of weight versions, for answers that are still being read
_MOST_VALUES = 2**20


class Living(Generic[Member]):
    """Objects for as long as they live. Any thread may add one while another goes through them."""

    def __init__(self) -> None:
        self._members: weakref.WeakValueDictionary[int, Member] = weakref.WeakValueDictionary()
        self._numbers = itertools.count()

    def add(self, member: Member) -> None:
        self._members[next(self._numbers)] = member

    def __iter__(self) -> Iterator[Member]:
        # The list is made in one step. A WeakSet's is not: it fails when it grows or shrinks meanwhile.
        for reference in self._members.valuerefs():
            if (member := reference()) is not None:
                yield member


class Versions:
    """The names of an engine's weights, by how often they had been replaced."""

    def __init__(self) -> None:
        self._counts, self._names = [0], ["0"]

    def at(self, updates: int) -> str:
        return self._names[max(bisect.bisect_right(self._counts, updates) - 1, 0)]

    def next(self) -> str:
        newest = self._names[-1]
        return str(int(newest) + 1) if newest.isdigit() else "1"

    def set(self, updates: int, name: str) -> None:
        if self._counts[-1] == updates:
            self._names[-1] = name
            return
        # A new list, as other threads read.
        self._names = [*self._names[-_NAMES_KEPT:], name]
        self._counts = [*self._counts[-_NAMES_KEPT:], updates]

    def forget(self, updates: int) -> None:
        if self._counts[-1] == updates and updates > 0:
            self._counts, self._names = self._counts[:-1], self._names[:-1]


def _version(name: str, version: Any) -> str | None:
    if version is not None and not isinstance(version, str):
        raise TypeError(f"{name} is {type(version).__name__}; accepted: str")
    return version


class Control:
    """A part of Engine. All calls raise what goes wrong, and return (True, a sentence) where SGLang returns (success,
    message)."""

    _handle: _library.Handle
    _device: str

    def __init__(self) -> None:
        self._streams: Living[Stream] = Living()
        self._versions = Versions()
        self._updating = threading.Lock()
        self._pending_version: str | None = None  # given with tensors between begin and end
        self._groups = Groups()

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        """Ends the requests of one call, by a rid that it was given or the id of one of its answers, or all. Their answers say
        so. Any of these names ends all prompts and choices of the call."""
        for stream in self._streams:
            if abort_all or rid in stream.batch.rids:
                stream.cancel()

    def flush_cache(self) -> None:
        """Forgets every cached prefix that no request uses."""
        interruptible(lambda: _library.call("sluice_engine_flush_cache", self._handle.get()))

    # --- Pauses

    def pause_generation(self, mode: str = "abort") -> None:
        """Holds the engine between two steps; requests are taken and wait. What runs is aborted ("abort"), is computed
        anew afterwards ("retract"), or goes on with what it has ("in_place")."""
        if mode not in _PAUSES:
            raise ValueError(f"mode is {mode!r}; accepted: {', '.join(_PAUSES)}")
        interruptible(lambda: _library.call("sluice_engine_pause", self._handle.get(), _PAUSES.index(mode)))

    def continue_generation(self) -> None:
        """Ends a pause."""
        _library.call("sluice_engine_continue", self._handle.get())

    # --- Weights

    def update_weights_from_disk(self, model_path: str | os.PathLike[str], load_format: str | None = None,
                                 weight_version: str | None = None) -> tuple[bool, str]:
        """The weights of another checkpoint of the same model; what runs is aborted, but in an engine that is paused it
        goes on with the new weights. Its tensors are read, also in an engine of dummy weights. Needs memory for both.
        Raises what loading raises, and then the old weights stay."""
        folder = _library.text("model_path", os.fspath(model_path))
        if load_format not in (None, "auto", "safetensors"):
            raise ValueError(f"load_format is {load_format!r}; accepted: None, 'auto', 'safetensors'")
        self._replace(weight_version, lambda: _library.call("sluice_engine_update_weights", self._handle.get(), folder))
        return True, f"the weights of {os.fspath(model_path)} are in use, as version {self._weight_version}"

    def update_weights_from_tensor(self, named_tensors: Any, load_format: str | None = None, flush_cache: bool = True,
                                   weight_version: str | None = None, abort_all_requests: bool = False
                                   ) -> tuple[bool, str]:
        """Some tensors by their names in the checkpoint, of its types and shapes; all of them or none.

        named_tensors: a list of (name, tensor), or a dict: torch tensors of any device, numpy, DLPack, buffers; bfloat16
            may come as its bits in uint16, float8 in uint8. In an engine with quantization= the checkpoint's BF16 comes,
            and is quantised on arrival to the loader's bits; a checkpoint that is quantised takes codes and scales.
        load_format: None, "auto", "direct"; or "flattened_bucket": named_tensors is a dict of flattened_tensor and
            metadata, a FlattenedTensorBucket of SGLang, or a list of them. Nothing is unpickled.
        flush_cache: cached prefixes are always forgotten; False asks for nothing else.
        abort_all_requests: ends what runs, also in a paused engine.

        What the tensors do not touch is shared with the old weights, so that a call costs the modules that it names. The
        tensors are copied. Raises Busy while the weights are released.

        An engine of load_format "dummy" takes all tensors of a checkpoint of its configuration so, in any number of calls.
        The dummies run until none that the model needs is missing; the sentence says how many have come. Until then any
        name may come; then those that the model does not use are left out, and a name that never came is refused. float8
        must come as such there, not in uint8.
        """
        if load_format == "flattened_bucket":
            given = _named_tensors.of_bucket(named_tensors)
        elif load_format in (None, "auto", "direct"):
            given = _named_tensors.named_tensors(named_tensors)
        else:
            raise ValueError(f"load_format is {load_format!r}; accepted: None, 'auto', 'direct', 'flattened_bucket'")
        array, keep = _named_tensors.as_structs(self._handle, given)
        in_place = self._replace(
            weight_version, lambda: _library.call("sluice_engine_update_tensors", self._handle.get(), array, len(array),
                                                  bool(abort_all_requests)))
        del keep
        used = self._used(given)
        if used == 0:
            return True, f"the running weights have none of these {len(given)} tensors"
        if not in_place:
            return True, f"{len(given)} tensors wait for {self._awaited()}"
        return True, f"{used} tensors are in use, as version {self._weight_version}"

    def _used(self, given: Sequence[tuple[str, Any]]) -> int:
        """How many of these the running weights have. All of them for a folder's weights, and while dummies run."""
        if self._sent()[1] == 0:
            return len(given)
        used = 0
        with contextlib.ExitStack() as stack:
            try:
                weights = stack.enter_context(_named_tensors.Weights(self._handle))
            except errors.Unsupported:  # dummies have no tensors
                return len(given)
            for name, _ in given:
                with contextlib.suppress(errors.NotFound):
                    weights.index(name)
                    used += 1
        return used

    def _sent(self) -> tuple[int, int, str]:
        """Of an engine that began with dummies: how many tensors have come, of how many, and the first that is missing."""
        come, total = ctypes.c_int64(), ctypes.c_int64()
        missing = _library.read_text("sluice_engine_sent_tensors", self._handle.get(), come, total)
        return come.value, total.value, missing

    def _awaited(self) -> str:
        """What tensors wait for that came and are not in place."""
        come, total, missing = self._sent()
        if not missing:
            return "end_weight_update()"
        return f"the others: {come} of the model's {total} have come, {missing!r} is missing"

    def begin_weight_update(self) -> tuple[bool, str]:
        """From now on tensors are only kept; end_weight_update() puts all of them in place at once. A release of the weights
        and update_weights_from_disk() drop what has come, and so end the update."""
        with self._alone():
            interruptible(lambda: _library.call("sluice_engine_begin_update", self._handle.get()))
            self._pending_version = None
        return True, "tensors wait for end_weight_update()"

    def end_weight_update(self, weight_version: str | None = None, abort_all_requests: bool = False) -> tuple[bool, str]:
        """Puts the tensors since begin_weight_update() in place; no tensor is an error. After an error none of them is, and
        the old weights stay."""
        self._replace(_version("weight_version", weight_version) or self._pending_version,
                      lambda: _library.call("sluice_engine_end_update", self._handle.get(), bool(abort_all_requests)))
        return True, f"the tensors since begin_weight_update() are in use, as version {self._weight_version}"

    def init_weights_update_group(self, master_address: str, master_port: int, rank_offset: int, world_size: int,
                                  group_name: str = "weight_update_group", backend: str = "nccl") -> tuple[bool, str]:
        """Joins the trainer's torch process group of that name as rank `rank_offset`; the trainer is rank 0. backend:
        "nccl", for tensors on the engine's GPU or GPU 0, or "gloo", for the host's. Needs torch."""
        return interruptible(lambda: self._groups.join(master_address, master_port, rank_offset, world_size, group_name,
                                                       backend))

    def destroy_weights_update_group(self, group_name: str = "weight_update_group") -> tuple[bool, str]:
        """Leaves the group."""
        return self._groups.leave(group_name)

    def update_weights_from_distributed(self, names: Sequence[str], dtypes: Sequence[Any],
                                        shapes: Sequence[Sequence[int]], group_name: str = "weight_update_group",
                                        flush_cache: bool = True, load_format: str | None = None,
                                        weight_version: str | None = None, abort_all_requests: bool = False
                                        ) -> tuple[bool, str]:
        """update_weights_from_tensor() with tensors that rank 0 of the group broadcasts, one by one in this order; with
        load_format "flattened_bucket" all of them as one tensor of bytes."""
        if load_format not in (None, "auto", "direct", "flattened_bucket"):
            raise ValueError(f"load_format is {load_format!r}; accepted: None, 'auto', 'direct', 'flattened_bucket'")
        tensors = interruptible(lambda: self._groups.receive(group_name, names, dtypes, shapes, self._device,
                                                             load_format == "flattened_bucket"))
        return self.update_weights_from_tensor(tensors, None, flush_cache, weight_version, abort_all_requests)

    def update_weight_version(self, new_version: str, abort_all_requests: bool = False) -> tuple[bool, str]:
        """Another name for the weights that run."""
        if not isinstance(new_version, str) or not new_version:
            raise TypeError(f"new_version is {new_version!r:.80}; accepted: a name")
        if abort_all_requests:
            self.abort_request(abort_all=True)
        with self._alone():
            self._versions.set(self._updates(), new_version)
        return True, f"the weights are version {new_version}"

    def get_weights_by_name(self, name: str, truncate_size: int = 100) -> list[Any] | float:
        """The first `truncate_size` rows of a tensor of the checkpoint, or of what updates put in its place, as nested
        lists. Raises NotFound."""
        truncate_size = count("truncate_size", truncate_size, 1)
        with _named_tensors.Weights(self._handle) as weights:
            index = weights.index(name)
            _, _, shape = weights.describe(index)
            if not shape:
                return weights.values(index, 1)[0]
            shape = (min(shape[0], truncate_size), *shape[1:])
            total = 1
            for size in shape:
                total *= size
            if total > _MOST_VALUES:
                raise ValueError(f"truncate_size is {truncate_size}: {total} values; accepted: at most {_MOST_VALUES} values")
            values: list[Any] = weights.values(index, total)
        for size in reversed(shape[1:]):
            values = [values[i:i + size] for i in range(0, len(values), size)] if size else []
        return values

    def weights_checker(self, action: str = "checksum", skip_tensor_list: Sequence[str] = ()) -> dict[str, Any]:
        """Checksums of the tensors that the running weights were made of: the SHA-256 of each one's bytes, as a
        safetensors file has them, and one over all, of names and checksums in the order of the names. The server's
        /weights_checker gives the same."""
        if action != "checksum":
            raise ValueError(f"action is {action!r}; accepted: 'checksum'")
        skipped = set(list_of("skip_tensor_list", skip_tensor_list))

        def read() -> dict[str, str]:
            with _named_tensors.Weights(self._handle) as weights:
                all_of_them = (weights.describe(i)[0] for i in range(len(weights)))
                return {name: weights.checksum(i) for i, name in enumerate(all_of_them) if name not in skipped}

        checksums = interruptible(read)
        total = hashlib.sha256("".join(name + checksum for name, checksum in checksums.items()).encode()).hexdigest()
        return {"success": True, "message": f"SHA-256 of {len(checksums)} tensors",
                "ranks": [{"per_gpu_checksum": total, "checksums": checksums}],
                "per_engine_checksum": hashlib.sha256(total.encode()).hexdigest(), "weight_version": self._weight_version}

    # --- Memory

    def release_memory_occupation(self, tags: Sequence[str] | None = None) -> None:
        """Gives memory back to the system: the "weights", the "kv_cache", or both (None). Nothing may run: Busy; pause
        with "abort" or "retract" first. Until all of it is resumed generate() raises Busy. Weights come back from the
        checkpoint's files, dummies are made again; tensors that updates had put in place must be brought again."""
        memory = self._memory(tags)
        if memory:
            interruptible(lambda: _library.call("sluice_engine_release_memory", self._handle.get(), memory))

    def resume_memory_occupation(self, tags: Sequence[str] | None = None) -> None:
        """Takes the memory again."""
        memory = self._memory(tags)
        if memory:
            interruptible(lambda: _library.call("sluice_engine_resume_memory", self._handle.get(), memory))

    @staticmethod
    def _memory(tags: Sequence[str] | None) -> int:
        memory = 0
        for tag in list(_MEMORY) if tags is None else list_of("tags", tags):
            if not isinstance(tag, str) or tag not in _MEMORY:
                raise ValueError(f"tags has {tag!r}; accepted: {', '.join(_MEMORY)}")
            memory |= _MEMORY[tag]
        return memory

    # --- Versions

    def _updates(self) -> int:
        info = _c_api.EngineInfo()
        _library.call("sluice_engine_get_info", self._handle.get(), info)
        return int(info.weight_updates)

    @property
    def _weight_version(self) -> str:
        return self._versions.at(self._updates())

    def _alone(self) -> threading.Lock:
        """The lock of those who replace weights. In a fork, where it may stay locked for ever, this raises."""
        self._handle.get()
        return self._updating

    def _replace(self, version: Any, work: Callable[[], None]) -> bool:
        """work(), which may replace the weights: then they are `version`, from the first token on. False: it did not."""
        version = _version("weight_version", version)
        with self._alone():
            now = self._updates()
            self._versions.set(now + 1, version or self._versions.next())
            try:
                interruptible(work)
            except Exception:  # after Ctrl-C the work goes on
                self._versions.forget(now + 1)
                raise
            if self._updates() > now:
                self._pending_version = None
                return True
            self._versions.forget(now + 1)
            self._pending_version = version or self._pending_version
            return False
