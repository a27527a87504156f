# SPDX-License-Identifier: Apache-2.0
"""What the tests of weights from a trainer share: the bundled checkpoint's tensors, checkpoints and buckets made of others, and
engines. A module takes the fixtures `tensors`, `shared` and `engine` by importing them."""
import hashlib
import json
import pathlib
import shutil

import numpy as np
import pytest

import sluice_moe
from engine_case import BUNDLED, PROMPT
from reference import bf16

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


def write_checkpoint(folder, tensors, **configs):
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


def fp8_experts(tensors, factor=1):
    """As ModelOpt has them in FP8, with the routed experts times `factor`: all tensors but the scales, the scales, and the
    configurations that say so."""
    codes, scales, others = {}, {}, set()
    for name, t in tensors.items():
        if "experts" not in name or "shared" in name:
            codes[name] = t
            others.add(name.removesuffix(".weight"))
            continue
        w = sluice_moe.quantize_weights((factor * bf16(t)).astype(np.float32)[None], "fp8_tensor")
        codes[name] = w.codes[0]
        scales[name.replace(".weight", ".weight_scale")] = w.scales.reshape(())
        scales[name.replace(".weight", ".input_scale")] = np.array(0.01, np.float32)
    return codes, scales, {"hf_quant_config": {"quantization": {"quant_algo": "FP8", "exclude_modules": sorted(others)}}}


def halved(t):
    """Every value halved; BF16 by its exponent."""
    return np.where(t & 0x7F80 > 0x80, t - 0x80, t).astype(np.uint16) if t.dtype == np.uint16 else t / 2


def checksums(tensors):
    """By hashlib: of each tensor's bytes, and over names and checksums."""
    each = {name: hashlib.sha256(t.tobytes()).hexdigest() for name, t in sorted(tensors.items())}
    return each, hashlib.sha256("".join(n + c for n, c in each.items()).encode()).hexdigest()


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


def shuffled(tensors, rng):
    names = sorted(tensors)
    rng.shuffle(names)
    return {name: tensors[name] for name in names}


def make_engine(path=BUNDLED, **options):
    return sluice_moe.Engine(path, **{"dtype": "float32", "threads": 2, "max_total_tokens": 4096, **options})


def make_dummy(folder, configs=BUNDLED, **options):
    """An engine of the configurations alone."""
    folder.mkdir()
    for file in configs.iterdir():
        if "safetensors" not in file.name:
            (folder / file.name).symlink_to(file)
    return make_engine(folder, load_format="dummy", **options)


def answer(engine):
    return engine.generate(PROMPT, GREEDY)["output_ids"]


def logprobs_of(engine):
    return engine.generate(PROMPT, GREEDY, return_logprob=True, logprob_start_len=0)["meta_info"]["output_token_logprobs"]


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
