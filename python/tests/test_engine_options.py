# SPDX-License-Identifier: Apache-2.0
"""What an engine is made of and with: folders, formats, memory, dummy weights, callbacks, and what is refused."""
import json

import pytest

import sluice_moe
from engine_case import BUNDLED, CONTINUATION, GREEDY, PROMPT


def test_what_no_engine_is_made_of(tmp_path):
    with pytest.raises(sluice_moe.NotFound, match="/nope does not exist; a model is a folder with config.json and safetensors"):
        sluice_moe.Engine("/nope")
    with pytest.raises(sluice_moe.NotFound, match="config.json"):
        sluice_moe.Engine(tmp_path)
    for dtype in ("fp16", "float16", "float8_e4m3fn"):
        with pytest.raises(ValueError, match=f'dtype is "{dtype}"; accepted: bfloat16, float32$'):
            sluice_moe.Engine(BUNDLED, dtype=dtype)


def test_engines_are_checked(tmp_path):
    for options, kind, sentence in [
        ({"model_path": tmp_path / "nowhere"}, sluice_moe.NotFound, "nowhere"),
        ({"model_path": 7}, TypeError, "int"),
        ({"device": "abacus"}, ValueError, "abacus"),
        ({"dtype": "float16"}, ValueError, "float16"),
        ({"load_format": "safetensors"}, ValueError, 'load_format is "safetensors"; accepted: auto, dummy'),
        ({"quantization": "fp3"}, ValueError, "fp3"),
        ({"quantization": "mxfp4", "quantization_head": "q8_0"}, ValueError, 'quantization_head is "q8_0"; accepted: bf16'),
        ({"quantization_head": "mxfp8"}, ValueError, "quantization is not given"),
        ({"kv_cache_dtype": "int8"}, ValueError, 'kv_cache_dtype is "int8"; accepted: auto, fp8_e4m3'),
        ({"kv_cache_dtype": "bfloat16", "dtype": "float32"}, ValueError, "bfloat16 with dtype bfloat16"),
        ({"speculative_algorithm": "EAGLE"}, ValueError, "accepted: None, 'NEXTN'"),
        ({"speculative_algorithm": "NEXTN"}, sluice_moe.Unsupported, "draft"),
        ({"threads": 5000}, ValueError, "threads is 5000"),
        ({"context_length": 10**9}, ValueError, "context_length"),
        ({"max_running_requests": 5000}, ValueError, "max_running_requests is 5000; accepted: 1 to 4096"),
        ({"chunked_prefill_size": -2}, ValueError, "chunked_prefill_size is -2"),
        ({"mem_fraction_static": 1e-6}, ValueError,
         "mem_fraction_static is 1e-06; of .* GB of cpu that leaves no room for keys and values beside 0.02 GB of weights and 0.01 GB of states"),
        ({"mem_fraction_static": 0}, ValueError, "mem_fraction_static is 0; accepted: more than 0, at most 1"),
        ({"mem_fraction_static": 1.5}, ValueError, "mem_fraction_static is 1.5; accepted: more than 0, at most 1"),
        ({"mem_fraction_static": "half"}, TypeError, "mem_fraction_static is str; accepted: a number"),
        ({"mem_fraction_static": 0.5, "max_total_tokens": 4096}, ValueError,
         "mem_fraction_static is 0.5 beside 4096 tokens of keys and values; accepted: one of them"),
        ({"max_total_tokens": 2**30}, sluice_moe.OutOfMemory, "the cache takes"),
        ({"progress": 3}, TypeError, "progress is int"),
        ({"fp8_sums": "bfloat16"}, ValueError, "fp8_sums is 'bfloat16'; accepted: 'float32', 'tensor-core'"),
        ({"fp8_block_numerics": 1}, ValueError, "fp8_block_numerics is 1; accepted: 'exact', 'trtllm'"),
        ({"page_size": 0}, ValueError, "page_size is 0; accepted: 1 to 4096"),
        ({"cuda_graph_max_bs": 5000}, ValueError, "cuda_graph_max_bs is 5000; accepted: 1 to 4096"),
    ]:
        with pytest.raises(kind, match=sentence):
            sluice_moe.Engine(**{"model_path": BUNDLED, "threads": 1, **options})
    engine = sluice_moe.Engine(BUNDLED, threads=1)
    engine.shutdown()
    engine.shutdown()
    with pytest.raises(ValueError, match="this engine was closed"):
        engine.generate("a")


def test_the_cache_is_a_share_of_the_memory():
    with sluice_moe.Engine(BUNDLED, threads=1, mem_fraction_static=0.5, max_running_requests=4, context_length=512,
                           chunked_prefill_size=-1) as engine:
        assert engine.get_server_info()["max_total_num_tokens"] == 4 * 512  # more is no use
        assert engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 3})["text"] == " he went down"


def test_prefixes_are_shared_by_pages():
    ids = list(range(20, 120))
    for page, shared in ((None, 64), (16, 96), (128, 0)):
        with sluice_moe.Engine(BUNDLED, threads=1, page_size=page, max_total_tokens=2048, max_running_requests=2) as engine:
            first, second = (engine.generate(input_ids=ids, sampling_params={"max_new_tokens": 1, "temperature": 0})
                             for _ in range(2))
            assert (first["meta_info"]["cached_tokens"], second["meta_info"]["cached_tokens"]) == (0, shared)


def test_numerics_of_fp8_blocks():
    seen = {}
    for numerics in ("exact", "trtllm"):
        with sluice_moe.Engine(BUNDLED, threads=2, quantization="fp8_block", fp8_block_numerics=numerics) as engine:
            answer = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 1}, return_logprob=True)
            seen[numerics] = answer["meta_info"]["output_token_logprobs"][0][0]
    # Another rounding moves the result, as little as a rounding does.
    assert 0 < abs(seen["exact"] - seen["trtllm"]) < 0.1


def test_options_of_a_gpu_change_nothing_on_the_cpu():
    with sluice_moe.Engine(BUNDLED, threads=2, quantization="fp8", fp8_sums="tensor-core", disable_cuda_graph=True,
                           disable_overlap_schedule=True) as one, \
         sluice_moe.Engine(BUNDLED, threads=2, quantization="fp8", cuda_graph_max_bs=8) as other:
        texts = [engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 16})["text"] for engine in (one, other)]
        assert texts[0] == texts[1]


def test_keys_and_values_in_fp8():
    config = json.loads((BUNDLED / "config.json").read_text())
    layers = config["hybrid_override_pattern"].count("*")
    values = 2 * layers * config["num_key_value_heads"] * config["head_dim"]  # of a token
    seen = {}
    for name in ("auto", "bfloat16", "fp8_e4m3"):
        with sluice_moe.Engine(BUNDLED, kv_cache_dtype=name, threads=2, max_total_tokens=1024) as engine:
            answer = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 8})
            assert answer["meta_info"]["completion_tokens"] == 8
            seen[name] = engine.get_server_info()
    assert seen["auto"]["cache_bytes"] == seen["bfloat16"]["cache_bytes"]
    assert seen["auto"]["cache_bytes"] - seen["fp8_e4m3"]["cache_bytes"] == values * seen["auto"]["max_total_num_tokens"]


def test_the_head_in_8_bits():
    config = json.loads((BUNDLED / "config.json").read_text())
    values = config["vocab_size"] * config["hidden_size"]
    seen = {}
    for head in (None, "bf16", "mxfp8"):
        with sluice_moe.Engine(BUNDLED, quantization="mxfp4", quantization_rest="mxfp8", quantization_head=head,
                               threads=2) as engine:
            answer = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 8})
            assert answer["meta_info"]["completion_tokens"] == 8
            seen[head] = engine.model_info["weight_bytes"]
    assert seen[None] == seen["bf16"]
    assert seen[None] - seen["mxfp8"] == values * 2 - values * 33 / 32  # a scale for each 32 values


def test_dummy_weights_need_the_configuration_alone(tmp_path):
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).symlink_to(BUNDLED / name)
    params = {**GREEDY, "max_new_tokens": 24, "ignore_eos": True}
    with pytest.raises(sluice_moe.NotFound, match="model.safetensors"):
        sluice_moe.Engine(tmp_path, threads=2)
    for options in ({}, {"quantization": "mxfp8"}):
        answers = []
        for _ in range(2):
            with sluice_moe.Engine(tmp_path, load_format="dummy", threads=2, **options) as engine:
                answers.append(engine.generate(PROMPT, params)["output_ids"])
        assert answers[0] == answers[1] and len(answers[0]) == 24
    with sluice_moe.Engine(tmp_path, load_format="dummy", dtype="float32", threads=2) as engine:
        assert engine.generate(PROMPT, params)["text"] != CONTINUATION[:len(CONTINUATION) // 2]
        for call in (engine.weights_checker, lambda: engine.get_weights_by_name("lm_head.weight")):
            with pytest.raises(sluice_moe.Unsupported, match='the weights are dummies \\(load_format "dummy"\\)'):
                call()
        # A checkpoint takes their place, and its tensors are read.
        assert engine.update_weights_from_disk(BUNDLED)[0]
        assert CONTINUATION.startswith(engine.generate(PROMPT, params)["text"])
        assert engine.weights_checker()["ranks"][0]["checksums"]


def test_progress_and_log():
    seen, lines = [], []
    with sluice_moe.Engine(BUNDLED, threads=1, progress=lambda *what: seen.append(what),
                           log=lambda level, line: lines.append((level, line))) as engine:
        assert seen and seen[-1][1] == seen[-1][2]
        seen.clear()
        engine.generate(["a", "b"], {"max_new_tokens": 1})
    assert seen == [("generating", 1, 2, "answers"), ("generating", 2, 2, "answers")]
