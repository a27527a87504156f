# SPDX-License-Identifier: Apache-2.0
"""What a call of Engine.generate asks for, prompt by prompt, as the library takes it."""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _c_api, _library
from ._arguments import as_json, ids_of, is_integer, list_of, number_of, of_prompt
from .specs import count

_DEFAULT_NEW_TOKENS = 128  # SGLang's
_SAMPLING: dict[str, Any] = {
    "max_new_tokens": None, "min_new_tokens": 0, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
    "frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "stop": None, "stop_token_ids": None,
    "ignore_eos": False, "no_stop_trim": False, "skip_special_tokens": True, "spaces_between_special_tokens": True,
    "logit_bias": None, "sampling_seed": None, "n": 1, "json_schema": None, "regex": None, "ebnf": None,
    "structural_tag": None,
}
_GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")  # in the order of sluice_grammar, from 1 on


def names_of(rid: Any, prompts: int, own: Callable[[], str]) -> list[str]:
    """A name for each prompt's request: of a list of them, or a name for all of them with the prompt's number."""
    if isinstance(rid, Sequence) and not isinstance(rid, (str, bytes)):
        names = [of_prompt("rid", rid, i, prompts) for i in range(prompts)]
        for name in names:
            _check_name(name)
        return names
    if rid is not None:
        _check_name(rid)
    name = own() if rid is None else rid
    return [name] if prompts == 1 else [f"{name}-{i}" for i in range(prompts)]


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"rid is {type(name).__name__}; accepted: str, or a list of str")


def values_of(options: Mapping[str, Any], index: int, prompts: int) -> dict[str, Any]:
    """One prompt's values of the options that may be lists with a value for each prompt."""
    values = {name: of_prompt(name, value, index, prompts) for name, value in options.items() if name != "token_ids_logprob"}
    labels = list_of("token_ids_logprob", _given(options["token_ids_logprob"]))
    if labels and not is_integer(labels[0]):  # a list of ids is one value
        labels = of_prompt("token_ids_logprob", labels, index, prompts)
    return {**values, "token_ids_logprob": labels}


def _given(values: Any) -> Any:
    """An array's truth does not say whether it was given."""
    return () if values is None else values


def make_request(ids: Sequence[int], values: Mapping[str, Any], keep: list[Any], *, vocab_size: int, context_length: int,
                 next_seed: Callable[[], int]) -> _c_api.Request:
    """The request of a prompt. keep: takes what it points to."""
    reader = _Reader(_params_of(values["sampling_params"]), keep, vocab_size)
    reader.array("prompt", ids_of("input_ids", ids, vocab_size), "prompt_count")
    reader.lengths(max(context_length - len(ids), 0))
    reader.sampling(next_seed)
    reader.stops()
    reader.bias()
    reader.grammar()
    if values["return_logprob"]:
        reader.logprobs(values, len(ids))
    return reader.request


def _params_of(given: Any) -> dict[str, Any]:
    """All sampling parameters, with the given ones that are not None in place of the defaults."""
    params = dict(_SAMPLING)
    if given is None:
        return params
    if not isinstance(given, Mapping):
        raise TypeError(f"sampling_params is {type(given).__name__}; accepted: a dict, or a list of dicts")
    for key, value in given.items():
        if key not in params:
            raise TypeError(f"sampling_params has {key!r}; accepted: {', '.join(params)}")
        if value is not None:
            params[key] = value
    return params


class _Reader:
    """Fills in a request, one part of the parameters after the other."""

    def __init__(self, params: dict[str, Any], keep: list[Any], vocab_size: int) -> None:
        self.request = _c_api.Request()
        self._params, self._keep, self._vocab_size = params, keep, vocab_size

    def array(self, name: str, items: Any, length: str) -> None:
        self._keep.append(items)
        setattr(self.request, name, items)
        setattr(self.request, length, len(items))

    def lengths(self, room: int) -> None:
        params, request = self._params, self.request
        request.n = count("n", params["n"], 1, 128)
        new = params["max_new_tokens"]
        request.score_only = new is not None and count("max_new_tokens", new) == 0
        # Without room for an answer 0, which the library reads as what there is, and refuses by the prompt's length.
        request.max_new_tokens = min(_DEFAULT_NEW_TOKENS, room) if new is None else new
        request.min_new_tokens = count("min_new_tokens", params["min_new_tokens"])

    def sampling(self, next_seed: Callable[[], int]) -> None:
        params, request = self._params, self.request
        for key in ("temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"):
            setattr(request, key, number_of("sampling_params." + key, params[key]))
        for key in ("top_p", "repetition_penalty"):  # 0 would be read as the default
            if params[key] == 0:
                raise ValueError(f"sampling_params.{key} is 0; accepted: more than 0")
        request.top_k = max(count("top_k", params["top_k"], -1), 0)
        seed = params["sampling_seed"]
        seed = next_seed() if seed is None else count("sampling_seed", seed, -2**63, 2**64 - 1)
        request.seed = seed & (2**64 - 1)

    def stops(self) -> None:
        params, request = self._params, self.request
        texts = [params["stop"]] if isinstance(params["stop"], str) else list_of("sampling_params.stop", _given(params["stop"]))
        stops: Any = [_library.text("sampling_params.stop", s) for s in texts]
        self.array("stop", (ctypes.c_char_p * len(stops))(*stops), "stop_count")
        self._keep.append(stops)
        self.array("stop_tokens", ids_of("stop_token_ids", _given(params["stop_token_ids"]), self._vocab_size),
                   "stop_token_count")
        request.ignore_eos, request.include_stop = bool(params["ignore_eos"]), bool(params["no_stop_trim"])
        request.keep_special_tokens = not params["skip_special_tokens"]

    def bias(self) -> None:
        bias = self._params["logit_bias"]
        bias = {} if bias is None else bias
        if not isinstance(bias, Mapping):
            raise TypeError(f"sampling_params.logit_bias is {type(bias).__name__}; accepted: a dict of ids and numbers")
        try:
            tokens = [int(key) if isinstance(key, str) else key.__index__() for key in bias]
        except (TypeError, ValueError, AttributeError):
            raise ValueError(f"sampling_params.logit_bias has keys {list(bias)!r:.80}; accepted: token ids, as integers or "
                             "str") from None
        numbers = [number_of("sampling_params.logit_bias", value) for value in bias.values()]
        self.array("bias_tokens", ids_of("logit_bias", tokens, self._vocab_size), "bias_count")
        self.array("bias_values", (ctypes.c_float * len(numbers))(*numbers), "bias_count")

    def grammar(self) -> None:
        params = self._params
        given = [name for name in _GRAMMARS if params[name] is not None]
        if len(given) > 1:
            raise ValueError(f"sampling_params has {' and '.join(given)}; accepted: one of them")
        for name in given:
            text = params[name] if isinstance(params[name], str) or name in ("regex", "ebnf") else as_json(
                "sampling_params." + name, params[name]).decode()
            self.request.grammar = _library.text("sampling_params." + name, text)
            self.request.grammar_kind = _GRAMMARS.index(name) + 1

    def logprobs(self, values: Mapping[str, Any], prompt_length: int) -> None:
        request = self.request
        request.logprobs = 1
        number = values["top_logprobs_num"]
        request.top_logprobs = count("top_logprobs_num", 0 if number is None else number, 0, 2**31 - 1)
        self.array("logprob_tokens", ids_of("token_ids_logprob", _given(values["token_ids_logprob"]), self._vocab_size),
                   "logprob_token_count")
        start = values["logprob_start_len"]
        start = -1 if start is None else count("logprob_start_len", start, -1, prompt_length)
        if 0 <= start < prompt_length:  # at its end there is none, as with -1
            request.prompt_logprobs, request.prompt_logprobs_from = 1, start
