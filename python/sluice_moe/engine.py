# SPDX-License-Identifier: Apache-2.0
"""Whole models: a checkpoint folder that generates text, with SGLang's names (Engine, sampling_params, meta_info)."""
from __future__ import annotations

import atexit
import ctypes
import itertools
import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

from . import _c_api, _library
from ._answers import AsyncStream, Batch, Stream, finish, iterate
from ._arguments import as_json, encoded, ids_of, is_integer, list_of, number_of
from ._callbacks import ProgressFn, callbacks_of, in_a_call, interruptible, progress_of
from ._control import Control, Living
from ._request import make_request, names_of, values_of
from .specs import count

Prompts = Union[str, "list[str]"]


class Engine(Control):
    """A checkpoint and its cache of keys and values, run by a thread of the library. Any thread may call anything.

    model_path: folder of a Hugging Face checkpoint.
    load_format: "auto" reads its tensors; "dummy" needs only config.json and the tokenizer's files, and fills the weights with
        random numbers, always the same: for runs without the checkpoint. Such tensors cannot be read. A checkpoint takes their
        place by update_weights_from_disk(), or by update_weights_from_tensor() with all its tensors.
    dtype: of activations: "bfloat16" ("auto") or "float32". kv_cache_dtype: of cached keys and values: "auto" (dtype),
        "bfloat16" or "fp8_e4m3", which halves their memory.
    quantization: BF16 weights are quantised to it while loading: fp8, fp8_channel, fp8_block, mxfp8, nvfp4_online, mxfp4.
    quantization_rest: with it, for the linears that are no routed experts; default: the same for 8 bits, else BF16.
    quantization_head: with it, for the output head; default: BF16.
    device: "cpu", "cuda", "cuda:N", "auto" (a Hopper GPU, else the CPU): where the model runs. moe_runner_backend: what runs the experts ("auto", "cpu", ...).
    context_length: the longest prompt with its answer, in tokens; default: the model's.
    max_running_requests: answers that are worked on at once. max_queued_requests: answers that may wait: a call is taken whole
        while fewer wait; None: any number.
    chunked_prefill_size: prompt tokens per step; -1: whole prompts; default: 512 on the CPU, 8192 on a GPU.
    max_total_tokens: tokens of keys and values. mem_fraction_static: in its place, what weights and cache together may take of
        the device's memory, at most 1. The cache is never larger than max_running_requests contexts.
    disable_radix_cache: no prefix is found again.
    speculative_algorithm: "NEXTN" drafts with the checkpoint's own head; the text stays the same. A step makes at most
        speculative_num_steps drafts, as measured times and right drafts make them pay; speculative_fixed_steps: always
        as many.
    enable_deterministic_inference: an answer depends on its prompt, parameters and seed alone; the cpu always works so.
    nvfp4_per_token_activation: beside NVFP4 weights, activations are scaled by each token, and the checkpoint's input scales are
        not used. quantization="nvfp4_online" always does so.
    fp8_sums: of FP8 weights on a GPU: "float32" adds as Blackwell and the CPU do; "tensor-core" adds 128 products in 14 bits, and is
        quicker. fp8_block_numerics: "exact", or "trtllm", which rounds the first product's result to FP8 before the activation.
    page_size: tokens that the prefix cache shares at a time; default: 64.
    disable_cuda_graph, cuda_graph_max_bs, disable_overlap_schedule: on a GPU: launch the kernels of every step one by one; the
        most sequences of a step that is replayed from a CUDA graph (default: 256); wait for the tokens of each step before
        the next one is launched. The CPU does the first and the last always.
    random_seed: of answers whose parameters give no sampling_seed; None: the operating system's.
    threads: of the host; 0: every usable core.
    progress: True draws bars on standard error (tqdm's where it is installed); or a function of what is done, how much, of
        how much, and the unit.
    log: a function of the level ("debug", "info", "warning") and the line.

    Raises NotFound, BadFile, Unsupported and the other exceptions of this package with the library's sentence.
    """

    def __init__(self, model_path: str | os.PathLike[str], *, load_format: str = "auto", dtype: str = "auto",
                 quantization: str | None = None, quantization_rest: str | None = None, device: str = "cpu",
                 moe_runner_backend: str = "auto",
                 context_length: int | None = None, kv_cache_dtype: str = "auto", quantization_head: str | None = None,
                 max_running_requests: int | None = None, max_queued_requests: int | None = None,
                 chunked_prefill_size: int | None = None, max_total_tokens: int | None = None,
                 mem_fraction_static: float | None = None,
                 disable_radix_cache: bool = False, speculative_algorithm: str | None = None,
                 speculative_num_steps: int = 3, speculative_fixed_steps: bool = False,
                 enable_deterministic_inference: bool = False,
                 nvfp4_per_token_activation: bool = False, fp8_sums: str = "float32", fp8_block_numerics: str = "exact",
                 page_size: int | None = None, disable_cuda_graph: bool = False, cuda_graph_max_bs: int | None = None,
                 disable_overlap_schedule: bool = False, random_seed: int | None = None, threads: int = 0,
                 progress: bool | ProgressFn = False, log: Callable[[str, str], None] | None = None) -> None:
        super().__init__()
        folder = _library.text("model_path", os.fspath(model_path))
        if speculative_algorithm not in (None, "NEXTN"):
            raise ValueError(f"speculative_algorithm is {speculative_algorithm!r}; accepted: None, 'NEXTN'")
        speculates = speculative_algorithm is not None
        model = _c_api.ModelOptions(
            dtype=None if dtype == "auto" else _name("dtype", dtype), quantization=_name("quantization", quantization),
            quantization_rest=_name("quantization_rest", quantization_rest),
            quantization_head=_name("quantization_head", quantization_head),
            kv_cache_dtype=_name("kv_cache_dtype", kv_cache_dtype),
            moe_backend=_name("moe_runner_backend", moe_runner_backend), load_format=_name("load_format", load_format),
            nvfp4_per_token_activation=bool(nvfp4_per_token_activation),
            fp8_tensor_core_sums=_second_of("fp8_sums", fp8_sums, "float32", "tensor-core"),
            fp8_block_trtllm=_second_of("fp8_block_numerics", fp8_block_numerics, "exact", "trtllm"),
            deterministic=bool(enable_deterministic_inference) or speculates)
        self._progress = progress_of(progress)
        callbacks = callbacks_of(self._progress, log)
        options = _c_api.EngineOptions(
            threads=count("threads", threads, 0, 4096), device=_name("device", device), model=ctypes.pointer(model),
            context_length=_size("context_length", context_length),
            max_running=_size("max_running_requests", max_running_requests, 4096),
            max_queued=2**30 if max_queued_requests is None else _size("max_queued_requests", max_queued_requests, 2**30),
            prefill_chunk=-1 if chunked_prefill_size == -1 else _size("chunked_prefill_size", chunked_prefill_size, 2**20),
            cache_tokens=_size("max_total_tokens", max_total_tokens, 2**30),
            mem_fraction_static=_share("mem_fraction_static", mem_fraction_static),
            no_prefix_cache=bool(disable_radix_cache), block_size=_size("page_size", page_size, 4096),
            graph_max_sequences=-1 if disable_cuda_graph else _size("cuda_graph_max_bs", cuda_graph_max_bs, 4096),
            no_overlap=bool(disable_overlap_schedule),
            speculative_steps=count("speculative_num_steps", speculative_num_steps, 1, 64) if speculates else 0,
            speculative_fixed_steps=bool(speculative_fixed_steps),
            **callbacks)
        seed = None if random_seed is None else count("random_seed", random_seed, -2**63, 2**64 - 1)
        self._seeds = random.Random(seed)
        self._names = itertools.count()
        self._handle = interruptible(lambda: _library.Handle(
            "engine", lambda out: _library.call("sluice_engine_create", folder, options, out), "sluice_engine_destroy",
            keep=callbacks))  # loading again uses them, too
        info, limits = _c_api.ModelInfo(), _c_api.EngineInfo()
        _library.call("sluice_engine_get_model_info", self._handle.get(), info)
        _library.call("sluice_engine_get_info", self._handle.get(), limits)
        self.model_path = os.fspath(model_path)
        self._device = device
        self.vocab_size: int = info.vocab
        self.context_length: int = limits.context_length
        self.model_info = {"vocab_size": info.vocab, "hidden_size": info.hidden, "num_hidden_layers": info.layers,
                           "max_position_embeddings": info.max_positions, "weight_bytes": info.weight_bytes,
                           "has_draft": bool(info.has_draft), "row_invariant": bool(info.row_invariant)}
        _open_engines.add(self._handle)

    # --- Text

    def encode(self, text: str) -> list[int]:
        """The ids of a text, as the engine takes it for a prompt; special tokens in it are read as such."""
        given = encoded("text", text)
        return _library.read_ids("sluice_engine_encode", len(given) + 8, self._handle.get(), given, len(given))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of ids, which are below vocab_size."""
        array = ids_of("ids", ids, self.vocab_size)
        return _library.read_text("sluice_engine_decode", self._handle.get(), array, len(array),
                                  bool(skip_special_tokens))

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True,
                    **variables: Any) -> list[int]:
        """The ids of a chat by the checkpoint's template. variables: of the template: tools, enable_thinking, ..."""
        if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
            raise TypeError(f"messages is {type(messages).__name__}; accepted: a list of dicts with role and content")
        chat = as_json("messages", list(messages))
        more = b"{" + b",".join(as_json("name", key) + b":" + as_json(key, value) for key, value in variables.items()) + b"}"
        return _library.read_ids("sluice_engine_encode_chat", 256 + 2 * len(chat), self._handle.get(), chat, more,
                                 bool(add_generation_prompt))

    # --- Answers

    def generate(self, prompt: Prompts | None = None, sampling_params: Any = None, input_ids: Any = None,
                 return_logprob: Any = False, logprob_start_len: Any = None, top_logprobs_num: Any = None,
                 token_ids_logprob: Any = None, stream: bool = False, return_text_in_logprobs: bool = False,
                 rid: Any = None) -> Any:
        """The answer to a prompt, or the answers to a list of them in its order.

        prompt: a text or a list of texts; or input_ids: a list of token ids, or a list of such lists.
        sampling_params: a dict for all prompts, or a list with one for each: max_new_tokens (128), min_new_tokens,
            temperature (1; 0: greedy), top_p, top_k, min_p, frequency_penalty, presence_penalty, repetition_penalty, stop,
            stop_token_ids, ignore_eos, no_stop_trim, skip_special_tokens, spaces_between_special_tokens (changes
            nothing), logit_bias, sampling_seed, n; and what the text must be, one of json_schema (a string or a dict), regex, ebnf, structural_tag.
        return_logprob: log probabilities in meta_info, natural logarithms of the model's own probabilities: of new tokens,
            from logprob_start_len on (-1: none) of the prompt's, with the top_logprobs_num likeliest tokens and
            those of token_ids_logprob. Each may be a list with a value for each prompt. The first of the prompt's is
            None, as in SGLang, wherever they start.
        stream: an iterator of answers so far, one per step, in place of the answer. The engine runs until its streams
            end, also when nothing else refers to it.
        rid: the request's name, for abort_request() and as meta_info's id; of several prompts a list of names, or one, to
            which each prompt's number is added. Default: "gen-" and a number. With n > 1 the id of an answer is that and
            the choice's number. abort_request() with the name of one prompt or answer ends all of the call.

        An answer is a dict: text, output_ids, meta_info (id, finish_reason, prompt_tokens, completion_tokens,
        cached_tokens, weight_version, e2e_latency, input_token_logprobs, output_token_logprobs, ...; a log probability is
        (value, id, text or None)), and in lists index. Raises Busy when the queue is full, Error when a request fails in
        the model. Other Python threads run meanwhile, and Ctrl-C cancels the requests.
        """
        batch = self._batch(prompt, sampling_params, input_ids, return_logprob, logprob_start_len, top_logprobs_num,
                            token_ids_logprob, return_text_in_logprobs, rid)
        running = self._submit(batch)
        return iterate(running) if stream else finish(running, self._progress)

    async def async_generate(self, prompt: Prompts | None = None, sampling_params: Any = None, input_ids: Any = None,
                             return_logprob: Any = False, logprob_start_len: Any = None, top_logprobs_num: Any = None,
                             token_ids_logprob: Any = None, stream: bool = False, return_text_in_logprobs: bool = False,
                             rid: Any = None) -> Any:
        """As generate(), in an asyncio event loop. With stream an asynchronous iterator. A cancelled task cancels its
        requests."""
        batch = self._batch(prompt, sampling_params, input_ids, return_logprob, logprob_start_len, top_logprobs_num,
                            token_ids_logprob, return_text_in_logprobs, rid)
        running = AsyncStream(lambda wake: self._submit(batch, wake))
        return running.iterate() if stream else await running.finish()

    def chat(self, messages: Any, sampling_params: Any = None, *, stream: bool = False,
             chat_template_kwargs: Mapping[str, Any] | None = None, tools: Any = None, **options: Any) -> Any:
        """The assistant's answer to a list of messages (dicts with role and content), or the answers to several chats.

        tools, chat_template_kwargs: variables of the checkpoint's template. options: generate()'s. Special tokens that a
        message spells out are plain text.
        """
        if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence) or not messages:
            what = "an empty list" if isinstance(messages, list) else type(messages).__name__
            raise TypeError(f"messages is {what}; accepted: a list of dicts with role and content, or "
                            "a list of such lists")
        for name in ("prompt", "input_ids"):
            if name in options:
                raise TypeError(f"{name} is given to chat(); accepted: messages")
        variables = dict(chat_template_kwargs or {})
        if tools is not None:
            variables["tools"] = tools
        several = not isinstance(messages[0], Mapping)
        ids = [self.encode_chat(chat, **variables) for chat in (messages if several else [messages])]
        return self.generate(sampling_params=sampling_params, input_ids=ids if several else ids[0], stream=stream,
                             **options)

    def score(self, query: Any, items: Any, label_token_ids: Sequence[int], apply_softmax: bool = False,
              item_first: bool = False) -> list[list[float]]:
        """For each item the probabilities of the label tokens as the next one after query + item (item_first: item +
        query). apply_softmax: among the labels alone, so that they add up to 1. query and items are texts, or lists of
        ids."""
        labels = list(ids_of("label_token_ids", label_token_ids, self.vocab_size))
        if not labels:
            raise ValueError("label_token_ids is empty; accepted: at least one id")
        items = [items] if isinstance(items, str) else list_of("items", items)
        if not items:
            return []
        if is_integer(items[0]):  # the ids of one item
            items = [items]
        texts = isinstance(query, str)
        for item in items:
            if isinstance(item, str) != texts:
                raise TypeError("query and items are of different kinds; accepted: texts, or lists of ids")
        prompts: Any = [item + query if item_first else query + item for item in items] if texts else [
            [*item, *query] if item_first else [*query, *item] for item in items]
        prompts, _ = self._prompts(prompts, None) if texts else self._prompts(None, prompts)
        for i, prompt in enumerate(prompts):
            if len(prompt) >= self.context_length:
                raise ValueError(f"items[{i}] has {len(prompt)} tokens with query; accepted: at most "
                                 f"{self.context_length - 1}, what the context of {self.context_length} has beside the label")
        answers = self.generate(input_ids=prompts, return_logprob=True, token_ids_logprob=[labels] * len(prompts),
                                sampling_params={"max_new_tokens": 1, "temperature": 0, "ignore_eos": True})
        scores = []
        for answer in answers:
            logprobs = [row[0] for row in answer["meta_info"]["output_token_ids_logprobs"][0]]
            values = [math.exp(l - max(logprobs) if apply_softmax else l) for l in logprobs]
            total = sum(values) if apply_softmax else 1.0
            scores.append([v / total for v in values])
        return scores

    # --- The engine itself

    def get_server_info(self) -> dict[str, Any]:
        """Sizes of the cache, limits, and how many answers run and wait now."""
        info = _c_api.EngineInfo()
        _library.call("sluice_engine_get_info", self._handle.get(), info)
        return {"model_path": self.model_path, "weight_version": self._versions.at(info.weight_updates),
                "context_length": info.context_length, "max_total_num_tokens": info.cache_tokens,
                "cache_bytes": info.cache_bytes, "max_running_requests": info.max_running,
                "num_running_reqs": info.running, "num_queue_reqs": info.queued, "version": _library.version()}

    def shutdown(self) -> None:
        """Aborts what runs and frees the model. Calls of other threads that are under way return first: for five seconds this
        waits for them, after that the last of them frees the model."""
        self._handle.close(0 if in_a_call() else 5)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *unused: Any) -> None:
        self.shutdown()

    # --- Requests

    def _batch(self, prompt: Any, params: Any, input_ids: Any, return_logprob: Any, start: Any, top: Any, named: Any,
               texts: bool, rid: Any) -> Batch:
        ids, several = self._prompts(prompt, input_ids)
        options = {"sampling_params": params, "return_logprob": return_logprob, "logprob_start_len": start,
                   "top_logprobs_num": top, "token_ids_logprob": named}
        names = names_of(rid, len(ids), lambda: f"gen-{next(self._names)}")
        batch = Batch(several, self._versions.at, self.decode if texts else None)
        for i, (one, name) in enumerate(zip(ids, names)):
            request = make_request(one, values_of(options, i, len(ids)), batch.keep, vocab_size=self.vocab_size,
                                   context_length=self.context_length, next_seed=lambda: self._seeds.getrandbits(63))
            batch.add(request, one, name)
        if isinstance(rid, str):
            batch.rids.add(rid)
        return batch

    def _prompts(self, prompt: Any, input_ids: Any) -> tuple[list[Any], bool]:
        """The ids of each prompt, and whether a list of prompts was given."""
        if (prompt is None) == (input_ids is None):
            raise ValueError("prompt and input_ids: exactly one of them must be given")
        if prompt is not None:
            several = not isinstance(prompt, str)
            if several and not isinstance(prompt, Sequence):
                raise TypeError(f"prompt is {type(prompt).__name__}; accepted: str, or a list of str")
            ids: list[Any] = [self.encode(p) for p in (prompt if several else [prompt])]
        else:
            input_ids = list_of("input_ids", input_ids)
            several = len(input_ids) > 0 and not is_integer(input_ids[0])
            ids = [ids_of("input_ids", one, self.vocab_size)[:] for one in (input_ids if several else [input_ids])]
        if not ids:
            raise ValueError("there are no prompts; accepted: at least one")
        return ids, several

    def _submit(self, batch: Batch, wake: int = 0) -> Stream:
        stream = Stream(self._handle, batch, wake)
        self._streams.add(stream)
        return stream


# What the library takes for None: its own default.
def _size(name: str, value: int | None, most: int = 2**62) -> int:
    return 0 if value is None else count(name, value, 1, most)


def _second_of(name: str, value: str, first: str, second: str) -> bool:
    if value not in (first, second):
        raise ValueError(f"{name} is {value!r}; accepted: {first!r}, {second!r}")
    return value == second


def _share(name: str, value: float | None) -> float:
    if value is None:
        return 0.0
    share = number_of(name, value)
    if share == 0:  # the library's None
        raise ValueError(f"{name} is 0; accepted: more than 0, at most 1")
    return share


def _name(name: str, value: str | None) -> bytes | None:
    return None if value is None else _library.text(name, value)


_open_engines: Living[_library.Handle] = Living()  # a stream may keep one without its Engine


@atexit.register
def _close_all() -> None:
    """Before the interpreter ends: an engine's thread must not call it afterwards, nor a thread that Ctrl-C left at work."""
    engines = list(_open_engines)
    for engine in engines:
        engine.close()
    for engine in engines:
        engine.close(30)
