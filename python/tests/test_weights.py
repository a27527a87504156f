# SPDX-License-Identifier: Apache-2.0
"""Weights from a trainer, as slime and verl send them: tensors of numpy, buckets, memory given back, quantised weights."""
import hashlib
import threading

import numpy as np
import pytest

import sluice_moe
from engine_case import BUNDLED, PROMPT
from reference import bf16
from weights_case import EXPERT, GREEDY, NORM, answer, buckets, checksums, fp8_experts, halved, make_engine, write_checkpoint
from weights_case import engine, shared, tensors  # noqa: F401 - fixtures


def test_as_slime_does(engine, tensors):
    """pause, flush, tensors in buckets, continue; every step."""
    fresh = answer(engine)
    for step in range(3):
        new = {name: halved(t) for name, t in tensors.items()} if step % 2 == 0 else tensors
        engine.pause_generation()
        engine.flush_cache()
        for bucket in buckets(new, 2**20):
            done, sentence = engine.update_weights_from_tensor(bucket, load_format="flattened_bucket", flush_cache=False,
                                                               weight_version=str(step))
            assert done is True, sentence
        engine.continue_generation()
        each, total = checksums(new)
        got = engine.weights_checker(action="checksum")
        assert got["ranks"][0] == {"per_gpu_checksum": total, "checksums": each}
        assert got["per_engine_checksum"] == hashlib.sha256(total.encode()).hexdigest()
        out = engine.generate(PROMPT, GREEDY)
        assert out["meta_info"]["weight_version"] == got["weight_version"] == str(step)
        assert (out["output_ids"] == fresh) == (step % 2 == 1)


def test_as_verl_does(engine, tensors):
    """Abort, release, (training), weights back, tensors, cache back; every step."""
    fresh = answer(engine)
    for _ in range(2):
        engine.pause_generation("abort")
        engine.release_memory_occupation(tags=["kv_cache", "weights"])
        with pytest.raises(sluice_moe.Busy, match="the memory of weights and kv_cache is released"):
            engine.generate(PROMPT, GREEDY)
        engine.resume_memory_occupation(tags=["weights"])
        items = list(tensors.items())
        for at in range(0, len(items), 40):
            engine.update_weights_from_tensor(items[at:at + 40], load_format=None, flush_cache=False)
        with pytest.raises(sluice_moe.Busy, match="kv_cache"):
            engine.generate(PROMPT, GREEDY)
        engine.resume_memory_occupation(tags=["kv_cache"])
        engine.flush_cache()
        engine.continue_generation()
        assert answer(engine) == fresh
    engine.release_memory_occupation()
    engine.resume_memory_occupation()
    with pytest.raises(sluice_moe.Busy, match="126 tensors that were updated"):
        engine.generate(PROMPT, GREEDY)
    engine.update_weights_from_disk(BUNDLED)
    assert answer(engine) == fresh


def test_all_forms_of_tensors(engine, tensors):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    name = "backbone.layers.0.mixer.in_proj.weight"
    fresh, new = answer(engine), halved(tensors[name])
    engine.update_weights_from_tensor([(name, new)])
    other = answer(engine)
    assert other != fresh
    strided = np.zeros((new.shape[0], 2 * new.shape[1]), np.uint16)
    strided[:, ::2] = new

    class DLPack:  # nothing but the protocol
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **more):
            return self.array.__dlpack__(**more)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    for given in ([(name, new.view(ml_dtypes.bfloat16))], {name: strided[:, ::2]}, [[name, DLPack(new.copy())]],
                  [(name, memoryview(new))]):
        engine.update_weights_from_tensor([(name, tensors[name])], load_format="direct")
        assert answer(engine) == fresh
        engine.update_weights_from_tensor(given)
        assert answer(engine) == other


def test_several_calls_are_one_update(engine, tensors):
    fresh, version = answer(engine), engine.get_server_info()["weight_version"]
    engine.begin_weight_update()
    assert "wait for" in engine.update_weights_from_tensor([(NORM, halved(tensors[NORM]))], weight_version="both")[1]
    engine.update_weights_from_tensor([(EXPERT, halved(tensors[EXPERT]))])
    assert answer(engine) == fresh and engine.get_server_info()["weight_version"] == version
    engine.end_weight_update()
    assert answer(engine) != fresh and engine.get_server_info()["weight_version"] == "both"
    assert engine.get_weights_by_name(NORM, 4) == (bf16(tensors[NORM][:4]) / 2).tolist()
    with pytest.raises(sluice_moe.InvalidArgument, match="no update has begun"):
        engine.end_weight_update()


def test_an_update_ends_where_its_tensors_are_dropped(engine, tensors):
    fresh, before = answer(engine), engine.weights_checker()
    for drop, sentence in ((lambda: (engine.release_memory_occupation(), engine.resume_memory_occupation()), "released"),
                           (lambda: engine.update_weights_from_disk(BUNDLED), "a folder's weights")):
        engine.begin_weight_update()
        engine.update_weights_from_tensor([(NORM, halved(tensors[NORM]))], weight_version="dropped")
        drop()
        version = engine.get_server_info()["weight_version"]
        with pytest.raises(sluice_moe.InvalidArgument, match=f"no update has begun: .* dropped when .*{sentence}"):
            engine.end_weight_update()
        assert engine.get_server_info()["weight_version"] == version != "dropped"
        assert answer(engine) == fresh and engine.weights_checker()["ranks"] == before["ranks"]
    engine.begin_weight_update()
    with pytest.raises(sluice_moe.InvalidArgument, match="no tensor that the model uses has come since"):
        engine.end_weight_update()


def test_a_second_begin_is_refused(engine, tensors):
    engine.begin_weight_update()
    engine.update_weights_from_tensor([(NORM, halved(tensors[NORM]))], weight_version="first")
    with pytest.raises(sluice_moe.InvalidArgument, match="an update has begun already; end it first"):
        engine.begin_weight_update()
    engine.end_weight_update()
    assert engine.get_server_info()["weight_version"] == "first"
    assert engine.get_weights_by_name(NORM, 4) == (bf16(tensors[NORM][:4]) / 2).tolist()


def test_values_by_name(engine, tensors):
    assert engine.get_weights_by_name(EXPERT, 3) == bf16(tensors[EXPERT][:3]).tolist()
    bias = "backbone.layers.1.mixer.gate.e_score_correction_bias"
    assert engine.get_weights_by_name(bias) == tensors[bias].tolist()
    conv = "backbone.layers.0.mixer.conv1d.weight"
    assert engine.get_weights_by_name(conv, 2) == bf16(tensors[conv][:2]).tolist()
    with pytest.raises(sluice_moe.NotFound, match="model.nothing"):
        engine.get_weights_by_name("model.nothing")
    with pytest.raises(ValueError, match="truncate_size is 0"):
        engine.get_weights_by_name(NORM, 0)
    skipped = engine.weights_checker(skip_tensor_list=[NORM])
    assert NORM not in skipped["ranks"][0]["checksums"] and len(skipped["ranks"][0]["checksums"]) == len(tensors) - 1
    with pytest.raises(ValueError, match="action is 'snapshot'; accepted: 'checksum'"):
        engine.weights_checker("snapshot")


def test_old_weights_stay(engine, tensors):
    fresh, before, good = answer(engine), engine.weights_checker(), (EXPERT, halved(tensors[EXPERT]))
    bucket = next(buckets({NORM: tensors[NORM], EXPERT: tensors[EXPERT]}, 2**20))

    def in_bucket(**more):
        return {**bucket, "metadata": [bucket["metadata"][0], {**bucket["metadata"][1], **more}]}

    norm = tensors[NORM]
    for bad, problem, sentence in (
            (("model.nothing", norm), sluice_moe.InvalidArgument, 'has no tensor "model.nothing"'),
            ((NORM, norm.astype(np.float32)), TypeError, "is float32; accepted: bfloat16, uint16, as the checkpoint has it"),
            ((NORM, norm[:-1]), ValueError, r"has shape \[255\]; accepted: \[256\]"),
            ((NORM, norm.reshape(2, 128)), ValueError, r"has shape \[2, 128\]"),
            (good, sluice_moe.InvalidArgument, "is given twice"), ((NORM, None), TypeError, "accepted: a tensor"),
            ((7, norm), TypeError, "a name of type int"), ((NORM,), TypeError, "accepted: pairs"),
            ("gASV", TypeError, "pickles, which can run any code"), (b"gASV", TypeError, "pickles")):
        with pytest.raises(problem, match=sentence):
            engine.update_weights_from_tensor([good, bad])
    for given, problem, sentence in (
            ([], ValueError, "empty"), ("gASV", TypeError, "named_tensors is str"), (None, TypeError, "NoneType")):
        with pytest.raises(problem, match=sentence):
            engine.update_weights_from_tensor(given)
    for given, problem, sentence in (
            (in_bucket(end_idx=10**9), ValueError, "within the bucket"), (in_bucket(start_idx=-2), ValueError, "within"),
            (in_bucket(dtype="pickle"), ValueError, "as pickle"), (in_bucket(shape=(3,)), ValueError, "as many bytes"),
            (in_bucket(shape=None), TypeError, "the bucket's metadata holds"), ([], ValueError, "empty"),
            ({**bucket, "metadata": [{"name": NORM}]}, TypeError, "accepted: name, shape, dtype, start_idx, end_idx"),
            (["gASV"], TypeError, "never read here"), ({"flattened_tensor": norm}, TypeError, "a FlattenedTensorBucket")):
        with pytest.raises(problem, match=sentence):
            engine.update_weights_from_tensor(given, load_format="flattened_bucket")
    for more, problem in (({"load_format": "my.loader"}, ValueError), ({"weight_version": 7}, TypeError)):
        with pytest.raises(problem, match=next(iter(more))):
            engine.update_weights_from_tensor([good], **more)
    with pytest.raises(ValueError, match="tags has 'everything'; accepted: weights, kv_cache, cuda_graph"):
        engine.release_memory_occupation(["everything"])
    engine.release_memory_occupation(["cuda_graph"])  # there are none on the cpu
    assert answer(engine) == fresh and engine.weights_checker() == before


def test_what_runs_goes_on_with_the_new_weights(engine, tensors):
    engine.update_weight_version("old")
    stream = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 1500, "ignore_eos": True}, stream=True)
    first = next(stream)
    assert first["meta_info"]["weight_version"] == "old"
    engine.pause_generation("in_place")
    engine.update_weights_from_tensor({n: halved(t) for n, t in tensors.items() if "in_proj" in n}, weight_version="new")
    engine.continue_generation()
    *_, last = stream
    assert len(last["output_ids"]) == 1500
    assert last["meta_info"]["weight_version"] == "new"  # that of the last token
    # Without a pause, or with abort_all_requests, what runs is aborted.
    for more in ({}, {"abort_all_requests": True}):
        stream = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 1500}, stream=True)
        next(stream)
        if more:
            engine.pause_generation("in_place")
        engine.update_weights_from_tensor([(NORM, tensors[NORM])], **more)
        *_, last = stream
        assert last["meta_info"]["finish_reason"]["type"] == "abort"
        engine.continue_generation()


def test_bf16_is_quantised_to_the_loaders_bits(tensors, tmp_path):
    """An engine that quantises while loading gives after an update what one gives that loaded the new checkpoint."""
    new = {name: halved(t) if "experts" in name else t for name, t in tensors.items()}
    folder = write_checkpoint(tmp_path / "new", new)
    for quantization in ("fp8", "nvfp4_online"):
        with make_engine(folder, quantization=quantization) as loaded:
            logprobs = loaded.generate(PROMPT, GREEDY, return_logprob=True)["meta_info"]["output_token_logprobs"]
        with make_engine(quantization=quantization) as updated:
            updated.update_weights_from_tensor({n: t for n, t in new.items() if "experts" in n})
            got = updated.generate(PROMPT, GREEDY, return_logprob=True)["meta_info"]["output_token_logprobs"]
        assert got == logprobs, quantization


def test_quantised_tensors_come_by_their_names(tensors, tmp_path):
    """A ModelOpt FP8 checkpoint takes codes and scales."""
    codes, scales, config = fp8_experts(tensors)
    new_codes, new_scales, _ = fp8_experts(tensors, 0.37)
    old, new = codes | scales, new_codes | new_scales
    with make_engine(write_checkpoint(tmp_path / "new", new, **config)) as loaded:
        expected = loaded.generate(PROMPT, GREEDY, return_logprob=True)["meta_info"]["output_token_logprobs"]
    with make_engine(write_checkpoint(tmp_path / "old", old, **config)) as engine:
        first = engine.generate(PROMPT, GREEDY, return_logprob=True)["meta_info"]["output_token_logprobs"]
        ml_dtypes = pytest.importorskip("ml_dtypes")
        engine.update_weights_from_tensor({n: t.view(ml_dtypes.float8_e4m3fn) if t.dtype == np.uint8 else t
                                           for n, t in new.items() if "experts" in n})
        got = engine.generate(PROMPT, GREEDY, return_logprob=True)["meta_info"]["output_token_logprobs"]
        assert got == expected != first
        with pytest.raises(TypeError, match="load the BF16 checkpoint with quantization="):
            engine.update_weights_from_tensor([(EXPERT, tensors[EXPERT].view(ml_dtypes.bfloat16))])


def test_updates_of_several_threads(engine, tensors):
    """Each call is whole: the weights at the end are one call's, in every tensor."""
    threads = [threading.Thread(target=lambda f=f: engine.update_weights_from_tensor(
        {NORM: np.full(256, f, np.uint16), "backbone.norm_f.weight": np.full(256, f, np.uint16)}, weight_version=str(f)))
        for f in range(0x3F00, 0x3F08)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    values = engine.get_weights_by_name(NORM, 1) + engine.get_weights_by_name("backbone.norm_f.weight", 1)
    assert values[0] == values[1] == bf16(int(engine.get_server_info()["weight_version"]))
