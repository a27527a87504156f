# SPDX-License-Identifier: Apache-2.0
"""The structs, constants and functions of include/sluice/c.h that this package uses, as ctypes declares them."""
from __future__ import annotations

import ctypes
from ctypes import (
    POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p,
)
from typing import Any

F32, BF16 = 0, 1  # sluice_dtype
BUFFER_TOO_SMALL = 9
FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_TIMED_OUT, FINISH_ERROR = range(6)  # sluice_finish
STREAM_WAITING, STREAM_EVENT, STREAM_DONE = range(3)
VERSION = "0.1"  # the library's major and minor number, whose structs are below


class Struct(ctypes.Structure):
    """A struct of c.h that begins with its own size; fields that are not given are zero."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class Matrices(ctypes.Structure):
    _fields_ = [("codes", c_void_p), ("scales", c_void_p), ("global_scales", c_void_p)]


class MoeWeights(Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("up", Matrices), ("gate", Matrices), ("down", Matrices),
        ("input_scale1", c_float), ("input_scale2", c_float),
        ("bias_up", c_void_p), ("bias_gate", c_void_p), ("bias_down", c_void_p),
        ("alpha", c_void_p), ("beta", c_void_p), ("limit", c_void_p),
    ]


class MoeArgs(Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("tokens", c_int64), ("hidden", c_void_p), ("logits", c_void_p),
        ("logits_dtype", c_int32), ("bias", c_void_p), ("bias_dtype", c_int32), ("topk_ids", c_void_p),
        ("topk_weights", c_void_p), ("topk_weights_dtype", c_int32), ("output", c_void_p), ("workspace", c_void_p),
        ("workspace_size", c_int64), ("chosen_ids", c_void_p), ("chosen_weights", c_void_p),
    ]


class MoeSpecInfo(Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("experts", c_int64), ("top_k", c_int64), ("hidden", c_int64), ("inter", c_int64),
        ("local_offset", c_int64), ("local_experts", c_int64), ("weights", c_char_p), ("inputs", c_char_p),
        ("dtype", c_int32), ("gated", c_int), ("bias", c_int), ("act_params", c_int), ("routed", c_int),
        ("finalize", c_int),
    ]


class FormatInfo(Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("bits", c_int), ("code_type", c_char_p), ("scale_type", c_char_p),
        ("group_rows", c_int), ("group_cols", c_int), ("global_scale", c_int), ("inputs", c_char_p),
    ]


class Shard(Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("tp_rank", c_int), ("tp_size", c_int), ("ep_rank", c_int), ("ep_size", c_int),
    ]


class RouteArgs(Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("tokens", c_int64), ("logits", c_void_p), ("logits_dtype", c_int32),
        ("bias", c_void_p), ("bias_dtype", c_int32), ("ids", c_void_p), ("weights", c_void_p),
    ]


class FourOverSix(Struct):
    _fields_ = [("struct_size", c_size_t), ("error", c_char_p), ("e4m3_max", c_int), ("fast_error", c_int)]


class QuantizeArgs(Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("coding", c_char_p), ("x", c_void_p), ("dtype", c_int32), ("rows", c_int64),
        ("cols", c_int64), ("input_scale", c_void_p), ("codes", c_void_p), ("scales", c_void_p), ("layout", c_int32),
        ("row_scales", c_void_p), ("encodes", c_int), ("four_over_six", POINTER(FourOverSix)),
    ]


class DequantizeArgs(Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("coding", c_char_p), ("rows", c_int64), ("cols", c_int64), ("codes", c_void_p),
        ("scales", c_void_p), ("layout", c_int32), ("row_scales", c_void_p), ("input_scale", c_void_p),
        ("x", c_void_p),
    ]


class GemmOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("rows", c_int64), ("cols", c_int64), ("weights", c_char_p), ("inputs", c_char_p),
        ("dtype", c_int32), ("w", Matrices), ("input_scale", c_float), ("bias", c_void_p), ("fp8_f32_sums", c_int),
        ("deterministic", c_int),
    ]


class GemmArgs(Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("tokens", c_int64), ("x", c_void_p), ("y", c_void_p), ("workspace", c_void_p),
        ("workspace_size", c_int64),
    ]


class CudaQueue(Struct):
    _fields_ = [("struct_size", c_size_t), ("stream", c_void_p), ("num_tokens", c_void_p), ("no_pdl", c_int)]


class CudaGemmArgs(Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("tokens", c_int64), ("x", c_void_p), ("codes", c_void_p), ("scales", c_void_p),
        ("layout", c_int32), ("row_scales", c_void_p), ("y", c_void_p), ("workspace", c_void_p),
        ("workspace_size", c_int64),
    ]


LogFn = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)
ProgressFn = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_int64, c_int64, c_char_p)


class ModelOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("dtype", c_char_p), ("quantization", c_char_p), ("moe_backend", c_char_p),
        ("nvfp4_per_token_activation", c_int), ("fp8_block_trtllm", c_int), ("fp8_tensor_core_sums", c_int),
        ("deterministic", c_int), ("quantization_rest", c_char_p), ("kv_cache_dtype", c_char_p),
        ("quantization_head", c_char_p), ("load_format", c_char_p),
    ]


class ModelInfo(Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("vocab", c_int64), ("hidden", c_int64), ("layers", c_int64),
        ("max_positions", c_int64), ("weight_bytes", c_int64), ("has_draft", c_int), ("row_invariant", c_int),
    ]


class EngineOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("threads", c_int), ("device", c_char_p), ("model", POINTER(ModelOptions)), ("log", LogFn),
        ("progress", ProgressFn), ("user", c_void_p), ("context_length", c_int64), ("max_running", c_int),
        ("max_queued", c_int), ("prefill_chunk", c_int64), ("cache_tokens", c_int64), ("block_size", c_int64),
        ("no_prefix_cache", c_int), ("state_snapshots", c_int), ("speculative_steps", c_int),
        ("speculative_fixed_steps", c_int), ("mem_fraction_static", c_double),
        ("graph_max_sequences", c_int), ("no_overlap", c_int),
    ]


class EngineInfo(Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("context_length", c_int64), ("cache_tokens", c_int64), ("cache_bytes", c_int64),
        ("max_running", c_int), ("max_queued", c_int), ("running", c_int64), ("queued", c_int64), ("weight_updates", c_int64),
    ]


class Request(Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("prompt", POINTER(c_int32)), ("prompt_count", c_size_t), ("n", c_int64),
        ("max_new_tokens", c_int64), ("min_new_tokens", c_int64), ("score_only", c_int), ("temperature", c_double),
        ("top_k", c_int64), ("top_p", c_double), ("min_p", c_double), ("repetition_penalty", c_double),
        ("frequency_penalty", c_double), ("presence_penalty", c_double), ("seed", c_uint64),
        ("bias_tokens", POINTER(c_int32)), ("bias_values", POINTER(c_float)), ("bias_count", c_size_t),
        ("stop", POINTER(c_char_p)), ("stop_count", c_size_t), ("stop_tokens", POINTER(c_int32)),
        ("stop_token_count", c_size_t), ("ignore_eos", c_int), ("include_stop", c_int), ("keep_special_tokens", c_int),
        ("logprobs", c_int), ("top_logprobs", c_int), ("logprob_tokens", POINTER(c_int32)),
        ("logprob_token_count", c_size_t), ("prompt_logprobs", c_int), ("prompt_logprobs_from", c_int64),
        ("grammar_kind", c_int32), ("grammar", c_char_p),
    ]


class Logprob(ctypes.Structure):
    _fields_ = [("token", c_int32), ("logprob", c_float)]


class TokenLogprobs(ctypes.Structure):
    _fields_ = [
        ("chosen", Logprob), ("top", POINTER(Logprob)), ("top_count", c_size_t), ("asked", POINTER(Logprob)),
        ("asked_count", c_size_t),
    ]


class Event(Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("request", c_size_t), ("choice", c_int), ("tokens", POINTER(c_int32)),
        ("token_count", c_size_t), ("text", c_void_p), ("text_bytes", c_size_t), ("logprobs", POINTER(TokenLogprobs)),
        ("logprob_count", c_size_t), ("prompt_logprobs", POINTER(TokenLogprobs)), ("prompt_logprob_count", c_size_t),
        ("finish", c_int32), ("stop_token", c_int32), ("stop_string", c_char_p), ("error", c_char_p),
        ("prompt_tokens", c_int64), ("cached_tokens", c_int64), ("completion_tokens", c_int64), ("drafted", c_int64),
        ("accepted", c_int64), ("verify_rounds", c_int64), ("preemptions", c_int64), ("queue_seconds", c_double),
        ("first_token_seconds", c_double), ("total_seconds", c_double), ("weight_updates", c_int64),
    ]


class Tensor(Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("name", c_char_p), ("dtype", c_char_p), ("shape", POINTER(c_int64)),
        ("rank", c_size_t), ("data", c_void_p),
    ]


_TEXT = (c_char_p, c_size_t, POINTER(c_size_t))  # buffer, size, needed
_IDS = (POINTER(c_int32), c_size_t, POINTER(c_size_t))  # ids, capacity, count
_OUT = POINTER(c_void_p)
_INT = POINTER(c_int64)

# Functions that return a status, and their arguments.
STATUS = {
    "sluice_context_create": (c_int, _OUT),
    "sluice_moe_create": (c_void_p, c_char_p, c_char_p, POINTER(MoeWeights), _OUT),
    "sluice_moe_prepared_bytes": (c_char_p, _INT),
    "sluice_moe_prepare_into": (c_void_p, c_char_p, POINTER(MoeWeights), c_void_p, c_int64, _OUT),
    "sluice_moe_refit": (c_void_p, POINTER(MoeWeights)),
    "sluice_moe_workspace_bytes": (c_void_p, c_int64, _INT),
    "sluice_moe_run": (c_void_p, POINTER(MoeArgs)),
    "sluice_moe_explain": (c_char_p, *_TEXT),
    "sluice_moe_read_spec": (c_char_p, POINTER(MoeSpecInfo)),
    "sluice_format_get_info": (c_char_p, POINTER(FormatInfo)),
    "sluice_moe_shard_create": (c_char_p, POINTER(MoeWeights), POINTER(Shard), _OUT),
    "sluice_moe_shard_spec": (c_void_p, *_TEXT),
    "sluice_moe_shard_weights": (c_void_p, POINTER(MoeWeights)),
    "sluice_route": (c_char_p, POINTER(RouteArgs)),
    "sluice_quantize_weights": (c_void_p, c_char_p, c_int64, c_int64, c_int64, c_void_p, c_int32, c_void_p, c_void_p,
                                c_void_p),
    "sluice_dequantize_weights": (c_void_p, c_char_p, c_int64, c_int64, c_int64, POINTER(Matrices), c_void_p),
    "sluice_quantize": (c_void_p, POINTER(QuantizeArgs)),
    "sluice_dequantize": (c_void_p, POINTER(DequantizeArgs)),
    "sluice_gemm_create": (c_void_p, POINTER(GemmOptions), _OUT),
    "sluice_gemm_prepared_bytes": (POINTER(GemmOptions), _INT),
    "sluice_gemm_prepare_into": (c_void_p, POINTER(GemmOptions), c_void_p, c_int64, _OUT),
    "sluice_gemm_refit": (c_void_p, POINTER(Matrices), c_float, c_void_p),
    "sluice_gemm_workspace_bytes": (c_void_p, c_int64, _INT),
    "sluice_gemm_run": (c_void_p, POINTER(GemmArgs)),
    "sluice_cuda_moe_create": (c_char_p, c_int, POINTER(MoeWeights), c_void_p, _OUT),
    "sluice_cuda_moe_prepared_bytes": (c_char_p, _INT),
    "sluice_cuda_moe_prepare_into": (c_char_p, c_int, POINTER(MoeWeights), c_void_p, c_int64, c_void_p, _OUT),
    "sluice_cuda_moe_refit": (c_void_p, POINTER(MoeWeights), c_void_p),
    "sluice_cuda_moe_workspace_bytes": (c_void_p, c_int64, _INT),
    "sluice_cuda_moe_run": (c_void_p, POINTER(MoeArgs), POINTER(CudaQueue)),
    "sluice_cuda_quantize": (POINTER(QuantizeArgs), POINTER(CudaQueue)),
    "sluice_cuda_gemm_create": (POINTER(GemmOptions), c_int, c_void_p, _OUT),
    "sluice_cuda_gemm_prepared_bytes": (POINTER(GemmOptions), _INT),
    "sluice_cuda_gemm_prepare_into": (POINTER(GemmOptions), c_int, c_void_p, c_int64, c_void_p, _OUT),
    "sluice_cuda_gemm_refit": (c_void_p, POINTER(Matrices), c_float, c_void_p, c_void_p),
    "sluice_cuda_gemm_workspace_bytes": (c_void_p, c_int64, _INT),
    "sluice_cuda_gemm_run": (c_void_p, POINTER(CudaGemmArgs), POINTER(CudaQueue)),
    "sluice_engine_create": (c_char_p, POINTER(EngineOptions), _OUT),
    "sluice_engine_get_info": (c_void_p, POINTER(EngineInfo)),
    "sluice_engine_get_model_info": (c_void_p, POINTER(ModelInfo)),
    "sluice_engine_encode": (c_void_p, c_char_p, c_size_t, *_IDS),
    "sluice_engine_decode": (c_void_p, POINTER(c_int32), c_size_t, c_int, *_TEXT),
    "sluice_engine_encode_chat": (c_void_p, c_char_p, c_char_p, c_int, *_IDS),
    "sluice_engine_submit": (c_void_p, POINTER(Request), c_size_t, c_int, _OUT),
    "sluice_stream_next": (c_void_p, c_int64, POINTER(Event), POINTER(c_int32)),
    "sluice_engine_flush_cache": (c_void_p,),
    "sluice_engine_pause": (c_void_p, c_int32),
    "sluice_engine_continue": (c_void_p,),
    "sluice_engine_update_weights": (c_void_p, c_char_p),
    "sluice_engine_update_tensors": (c_void_p, POINTER(Tensor), c_size_t, c_int),
    "sluice_engine_begin_update": (c_void_p,),
    "sluice_engine_end_update": (c_void_p, c_int),
    "sluice_engine_sent_tensors": (c_void_p, _INT, _INT, *_TEXT),
    "sluice_engine_release_memory": (c_void_p, c_int32),
    "sluice_engine_resume_memory": (c_void_p, c_int32),
    "sluice_engine_get_weights": (c_void_p, _OUT),
    "sluice_weights_count": (c_void_p, POINTER(c_size_t)),
    "sluice_weights_find": (c_void_p, c_char_p, POINTER(c_size_t)),
    "sluice_weights_get": (c_void_p, c_size_t, POINTER(Tensor)),
    "sluice_weights_checksum": (c_void_p, c_size_t, c_char_p, c_size_t),
    "sluice_weights_values": (c_void_p, c_size_t, c_int64, c_int64, POINTER(c_double)),
}
NOTHING = (
    "sluice_context_destroy", "sluice_moe_destroy", "sluice_moe_shard_destroy", "sluice_gemm_destroy",
    "sluice_cuda_moe_destroy", "sluice_cuda_gemm_destroy", "sluice_engine_destroy", "sluice_stream_destroy",
    "sluice_stream_cancel", "sluice_weights_destroy",
)
