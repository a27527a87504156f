# SPDX-License-Identifier: Apache-2.0
"""Weights from a trainer, as slime and verl send them: tensors of numpy, buckets, memory given back, torch's groups."""
import hashlib
import importlib.util
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

import sluice_moe
from conftest import SOURCE
from reference import bf16

BUNDLED = SOURCE / "models" / "tiny-nemotron-h"
PROMPT = "Henry meditated awhile all to himself early the next morning as"
GREEDY = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
NORM, EXPERT = "backbone.layers.0.norm.weight", "backbone.layers.1.mixer.experts.3.up_proj.weight"
TYPES = {"BF16": np.uint16, "F32": np.float32, "F8_E4M3": np.uint8}


def read_checkpoint(folder):
    """{name: array}, BF16 as its bits."""
    tensors = {}
    for file in sorted(pathlib.Path(folder).glob("model*.safetensors")):
        data = file.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + length])
        header.pop("__metadata__", None)
        for name, t in header.items():
            begin, end = (8 + length + at for at in t["data_offsets"])
            tensors[name] = np.frombuffer(data[begin:end], TYPES[t["dtype"]]).reshape(t["shape"])
    return tensors


def write_checkpoint(folder, tensors, dtypes=None, **configs):
    """BUNDLED with other tensors in one file."""
    shutil.copytree(BUNDLED, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"))
    names = {np.dtype(np.uint16): "BF16", np.dtype(np.float32): "F32", np.dtype(np.uint8): "F8_E4M3"}
    header, at = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": names[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for t in tensors.values():
            f.write(t.tobytes())
    for name, content in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def halved(t):
    """Every value halved; BF16 by its exponent."""
    return np.where(t & 0x7F80 > 0x80, t - 0x80, t).astype(np.uint16) if t.dtype == np.uint16 else t / 2


def checksums(tensors):
    """By hashlib: of each tensor's bytes, and over names and checksums."""
    each = {name: hashlib.sha256(t.tobytes()).hexdigest() for name, t in sorted(tensors.items())}
    return each, hashlib.sha256("".join(n + c for n, c in each.items()).encode()).hexdigest()


def make_engine(path=BUNDLED, **options):
    return sluice_moe.Engine(path, **{"dtype": "float32", "threads": 2, "max_total_tokens": 4096, **options})


def answer(engine):
    return engine.generate(PROMPT, GREEDY)["output_ids"]


@pytest.fixture(scope="module")
def tensors():
    return read_checkpoint(BUNDLED)


@pytest.fixture(scope="module")
def shared():
    with make_engine() as engine:
        yield engine


@pytest.fixture
def engine(shared):
    shared.update_weights_from_disk(BUNDLED)
    return shared


def buckets(tensors, size):
    """As slime and verl cut a checkpoint: SGLang's flattened buckets of at most `size` bytes, unless one tensor is more."""
    parts, metadata, at = [], [], 0
    for name, t in tensors.items():
        raw = t.reshape(-1).view(np.uint8)
        if parts and at + raw.size > size:
            yield {"flattened_tensor": np.concatenate(parts), "metadata": metadata}
            parts, metadata, at = [], [], 0
        metadata.append({"name": name, "shape": t.shape, "dtype": "torch.bfloat16" if t.dtype == np.uint16 else "torch.float32",
                         "start_idx": at, "end_idx": at + raw.size, "numel": t.size})
        parts.append(raw)
        at += raw.size
    yield {"flattened_tensor": np.concatenate(parts), "metadata": metadata}


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
    stream = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 200}, stream=True)
    first = next(stream)
    assert first["meta_info"]["weight_version"] == "old"
    engine.pause_generation("in_place")
    engine.update_weights_from_tensor({n: halved(t) for n, t in tensors.items() if "in_proj" in n}, weight_version="new")
    engine.continue_generation()
    *_, last = stream
    assert len(last["output_ids"]) == 200
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
    def quantised(factor):
        out = {}
        for name, t in tensors.items():
            if "experts" not in name or "shared" in name:
                out[name] = t
                continue
            w = sluice_moe.quantize_weights((factor * bf16(t)).astype(np.float32)[None], "fp8_tensor")
            out[name] = w.codes[0]
            out[name.replace(".weight", ".weight_scale")] = w.scales.reshape(())
            out[name.replace(".weight", ".input_scale")] = np.array(0.01, np.float32)
        return out

    others = sorted({name.removesuffix(".weight") for name in tensors if "experts" not in name or "shared" in name})
    config = {"hf_quant_config": {"quantization": {"quant_algo": "FP8", "exclude_modules": others}}}
    old, new = quantised(1), quantised(0.37)
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


def make_dummy(folder, configs=BUNDLED, **options):
    """An engine of the configurations alone."""
    folder.mkdir()
    for file in configs.iterdir():
        if "safetensors" not in file.name:
            (folder / file.name).symlink_to(file)
    return make_engine(folder, load_format="dummy", **options)


def shuffled(tensors, rng):
    names = sorted(tensors)
    rng.shuffle(names)
    return {name: tensors[name] for name in names}


def logprobs_of(engine):
    return engine.generate(PROMPT, GREEDY, return_logprob=True, logprob_start_len=0)["meta_info"]["output_token_logprobs"]


@pytest.mark.parametrize("quantization", [None, "mxfp8"])
def test_an_engine_of_dummies_takes_a_trainers_tensors(engine, tensors, tmp_path, rng, quantization):
    if quantization is None:
        expected = logprobs_of(engine)
    else:
        with make_engine(quantization=quantization) as loaded:
            expected = logprobs_of(loaded)
    with make_dummy(tmp_path / "dummy", quantization=quantization) as dummy:
        assert logprobs_of(dummy) != expected
        *all_but_last, last = buckets(shuffled(tensors, rng), 2**21)
        come = 0
        for bucket in all_but_last:
            _, sentence = dummy.update_weights_from_tensor(bucket, load_format="flattened_bucket", weight_version="sent")
            come += len(bucket["metadata"])
            assert f"{come} of the model's {len(tensors)} have come" in sentence and "is missing" in sentence
            assert dummy.get_server_info()["weight_version"] == "0"
        _, sentence = dummy.update_weights_from_tensor(last, load_format="flattened_bucket", weight_version="sent")
        assert "in use, as version sent" in sentence
        assert logprobs_of(dummy) == expected
        assert dummy.weights_checker()["ranks"][0]["checksums"] == checksums(tensors)[0]
        assert dummy.get_weights_by_name(NORM, 3) == bf16(tensors[NORM][:3]).tolist()
        # As verl: released, and sent anew.
        dummy.release_memory_occupation()
        dummy.resume_memory_occupation()
        with pytest.raises(sluice_moe.Busy, match="have not come again"):
            answer(dummy)
        dummy.update_weights_from_tensor(tensors)
        assert logprobs_of(dummy) == expected


def test_dummies_until_the_end(engine, tensors, tmp_path):
    expected = logprobs_of(engine)
    with make_dummy(tmp_path / "dummy") as dummy:
        first = logprobs_of(dummy)
        with pytest.raises(sluice_moe.InvalidArgument, match=r"norm.weight. has the shape \[255\]; accepted: \[256\]"):
            dummy.update_weights_from_tensor([(NORM, tensors[NORM][:-1])])
        dummy.begin_weight_update()
        _, sentence = dummy.update_weights_from_tensor({n: t for n, t in tensors.items() if n != NORM})
        assert NORM in sentence
        with pytest.raises(sluice_moe.InvalidArgument, match=f"tensors have come; .{NORM}. is missing"):
            dummy.end_weight_update()
        dummy.begin_weight_update()
        assert "end_weight_update" in dummy.update_weights_from_tensor([(NORM, tensors[NORM])])[1]
        assert logprobs_of(dummy) == first
        dummy.end_weight_update()
        assert logprobs_of(dummy) == expected
    with make_dummy(tmp_path / "again") as dummy:
        dummy.release_memory_occupation()
        dummy.resume_memory_occupation()
        assert logprobs_of(dummy) == first
        dummy.update_weights_from_disk(BUNDLED)
        assert logprobs_of(dummy) == expected


def test_dummies_of_a_quantised_configuration_wait_for_the_scales(tensors, tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    codes, scales = {}, {}
    for name, t in tensors.items():
        if "experts" not in name or "shared" in name:
            codes[name] = t
            continue
        w = sluice_moe.quantize_weights(bf16(t).astype(np.float32)[None], "fp8_tensor")
        codes[name] = w.codes[0]
        scales[name.replace(".weight", ".weight_scale")] = w.scales.reshape(())
        scales[name.replace(".weight", ".input_scale")] = np.array(0.01, np.float32)
    others = sorted({name.removesuffix(".weight") for name in tensors if "experts" not in name or "shared" in name})
    folder = write_checkpoint(tmp_path / "folder", {**codes, **scales},
                              hf_quant_config={"quantization": {"quant_algo": "FP8", "exclude_modules": others}})
    with make_engine(folder) as loaded:
        expected = logprobs_of(loaded)
    with make_dummy(tmp_path / "dummy", folder) as dummy:
        _, sentence = dummy.update_weights_from_tensor(
            {n: t.view(ml_dtypes.float8_e4m3fn) if t.dtype == np.uint8 else t for n, t in codes.items()})
        assert f"{len(codes)} of the model's {len(codes) + len(scales)} have come" in sentence
        assert "scale' is missing" in sentence
        _, sentence = dummy.update_weights_from_tensor(scales)
        assert "in use" in sentence
        assert logprobs_of(dummy) == expected


def test_groups_without_torch(engine):
    if importlib.util.find_spec("torch") is None:
        with pytest.raises(sluice_moe.Unsupported, match="need torch"):
            engine.init_weights_update_group("127.0.0.1", 1234, 1, 2, "group", "gloo")
    for arguments, problem in ((("127.0.0.1", 1234, 0, 2, "g", "gloo"), "rank_offset is 0"),
                               (("127.0.0.1", 0, 1, 2, "g", "gloo"), "master_port is 0"),
                               (("127.0.0.1", 1234, 1, 1, "g", "gloo"), "world_size is 1"),
                               (("127.0.0.1", 1234, 1, 2, "g", "mpi"), "backend is 'mpi'")):
        with pytest.raises(ValueError, match=problem):
            engine.init_weights_update_group(*arguments)
    with pytest.raises(sluice_moe.InvalidArgument, match="join it with init_weights_update_group"):
        engine.update_weights_from_distributed([NORM], ["bfloat16"], [[256]], "nowhere")
    with pytest.raises(ValueError, match="names, dtypes and shapes have 1, 0 and 1 entries"):
        engine.update_weights_from_distributed([NORM], [], [[256]], "nowhere")
    with pytest.raises(sluice_moe.InvalidArgument, match="accepted: a group that was joined"):
        engine.destroy_weights_update_group("nowhere")


# A trainer in its own process: rank 0 of a gloo group, made as RL frameworks make it, beside a default group of its own.
TRAINER = """
import sys, torch, torch.distributed as dist
from datetime import timedelta
port, bucket = int(sys.argv[1]), sys.argv[2] == "bucket"
c10d = dist.distributed_c10d
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
store, rank, size = next(c10d.rendezvous(f"tcp://127.0.0.1:{port}", 0, 2, timeout=timedelta(seconds=60)))
group, _ = c10d._new_process_group_helper(size, rank, [], c10d.Backend("gloo"), c10d.PrefixStore("update", store),
                                          group_name="update", timeout=timedelta(seconds=60))
c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
tensors = [torch.full((256,), 0.5, dtype=torch.bfloat16), torch.full((248, 256), 0.01, dtype=torch.bfloat16)]
if bucket:
    tensors = [torch.cat([t.reshape(-1).view(torch.uint8) for t in tensors])]
for t in tensors:
    dist.broadcast(t, src=0, group=group)
print("sent", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed: no process group to join")
@pytest.mark.parametrize("form", ["tensors", "bucket"])
def test_a_broadcast_of_a_torch_group(engine, form):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, str(port), form], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    try:
        fresh = answer(engine)
        assert engine.init_weights_update_group("127.0.0.1", port, 1, 2, "update", backend="gloo")[0] is True
        engine.update_weights_from_distributed([NORM, EXPERT], ["bfloat16", "torch.bfloat16"], [[256], (248, 256)], "update",
                                               load_format="flattened_bucket" if form == "bucket" else None,
                                               weight_version="sent")
        assert trainer.stdout.readline() == "sent\n"
        assert engine.get_weights_by_name(NORM, 3) == [0.5] * 3
        assert engine.get_weights_by_name(EXPERT, 1)[0][:2] == [0.010009765625] * 2
        assert answer(engine) != fresh and engine.get_server_info()["weight_version"] == "sent"
        engine.destroy_weights_update_group("update")
    finally:
        trainer.stdin.close()
        trainer.wait(60)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed: none of its tensors")
def test_torch_tensors(engine, tensors):
    import torch
    new = halved(tensors[EXPERT])
    t = torch.from_numpy(new.view(np.int16)).view(torch.bfloat16)
    engine.update_weights_from_tensor([(EXPERT, torch.nn.Parameter(t.T.contiguous()).T)])  # neither contiguous nor detached
    assert engine.get_weights_by_name(EXPERT, 2) == bf16(new[:2]).tolist()


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
