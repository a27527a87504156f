#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of published widths and few layers, random weights, on a GPU: Sluice's logits against transformers' in float32.

usage: gpu_widths.py PROGRAM FOLDER [NAME ...]

PROGRAM is a built `sluice`; FOLDER takes checkpoints of up to 12 GB, one at a time. Needs torch and transformers 5 and a GPU with
80 GB. Prints a table in Markdown; exit 1 if an error is above its bound.

The error is |logits - reference| / |reference|. BF16: the bound is twice what transformers' own BF16 run differs by. A
quantised model is held against transformers with the weights that Sluice dequantises, so what is left is the rounding of
inputs: with u the rms relative error of the input format and n products in a row that round, u sqrt(n) beside the BF16
bound. Experts that are chosen otherwise because of it are in both.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import time

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, NemotronHConfig, Qwen3MoeConfig
from transformers import DeepseekV3ForCausalLM, NemotronHForCausalLM, Qwen3MoeForCausalLM

ROOT = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(ROOT.parent / "bench")]
import make_fixtures  # noqa: E402
import model_table  # noqa: E402

# Relative error (rms) of rounding to e4m3 (3 mantissa bits) and e2m1 (1): 2^-(m+1) / sqrt(3), mean of 1/x over a binade.
E4M3, E2M1 = 2**-4 / 3**0.5 * 0.72, 2**-2 / 3**0.5 * 0.72
# Format: error of the inputs, products that round per layer.
FORMATS = {"fp8": (E4M3, 4), "fp8_block": (E4M3, 4), "mxfp8": (E4M3, 4), "nvfp4_online": (E2M1, 2), "mxfp4": (0, 0)}
# nvfp4_online has no checkpoints: its weights are those of nvfp4 without calibrated inputs.
STORED = {"nvfp4_online": ("nvfp4", "--weight-only")}


class Case:
    def __init__(self, config, config_class, model_class, layers, sequences, formats=(), **changes):
        known = dict(config, **changes)
        if config_class is DeepseekV3Config:  # keys that transformers does not know
            for key in ("topk_method", "scoring_func", "moe_layer_freq"):
                known.pop(key)
        known.pop("architectures"), known.pop("model_type"), known.pop("torch_dtype")
        self.config = config_class(**known)
        self.model_class, self.layers, self.sequences, self.formats = model_class, layers, sequences, formats


def qwen3(layers, sequences, formats=(), **changes):
    return Case(model_table.QWEN3, Qwen3MoeConfig, Qwen3MoeForCausalLM, layers, sequences, formats, num_hidden_layers=layers, **changes)


CASES = {
    "qwen3-30b-a3b, 3 layers": lambda: qwen3(3, (2, 300), tuple(FORMATS)),
    "nemotron-3-nano, MEM*E": lambda: Case(model_table.NANO, NemotronHConfig, NemotronHForCausalLM, 5, (2, 300), ("fp8", "nvfp4_online"),
                                           hybrid_override_pattern="MEM*E", num_hidden_layers=5),
    "deepseek-v3, 2 layers, 64 experts": lambda: Case(model_table.DEEPSEEK, DeepseekV3Config, DeepseekV3ForCausalLM, 2, (2, 300), (),
                                                      num_hidden_layers=2, first_k_dense_replace=1, n_routed_experts=64),
    "qwen3-30b-a3b, 2 layers, 32768 tokens": lambda: qwen3(2, (1, 32768), vocab_size=2048, bos_token_id=0, eos_token_id=1),
}


def attention_in_parts(module, query, key, value, attention_mask, scaling=None, **unused):
    """Causal attention by its definition, for 512 queries at once: torch's holds float32 scores of all of them, 137 GB."""
    del module, attention_mask, unused
    heads, groups = key.shape[1], query.shape[1] // key.shape[1]
    query = query.unflatten(1, (heads, groups))
    at = torch.arange(key.shape[2], device=key.device)
    out = torch.empty((*query.shape[:-1], value.shape[-1]), dtype=query.dtype, device=query.device)
    for rows in at.split(512):
        scores = torch.einsum("bhgqd,bhkd->bhgqk", query[:, :, :, rows], key) * scaling
        weights = scores.masked_fill(at[None] > rows[:, None], -torch.inf).softmax(-1, dtype=torch.float32).to(value.dtype)
        out[:, :, :, rows] = torch.einsum("bhgqk,bhkd->bhgqd", weights, value)
    return out.flatten(1, 2).transpose(1, 2), None


transformers.AttentionInterface.register("in_parts", attention_in_parts)


def random_model(case):
    case.config._attn_implementation = "in_parts" if case.sequences[1] > 8192 else "sdpa"
    generator = torch.Generator("cuda").manual_seed(1)
    with torch.device("cuda"):
        model = case.model_class(case.config).float().eval()
    make_fixtures.randomize(model, generator)
    ids = torch.randint(0, case.config.vocab_size, case.sequences, generator=generator, device="cuda")
    return model, ids


def save(model, config, folder):
    """As the fixtures are stored: transformers 5's names, or the published ones of DeepSeek-V3's experts."""
    tensors = {k: (v if "correction" in k else v.bfloat16()).contiguous().cpu() for k, v in model.state_dict().items()}
    if isinstance(config, DeepseekV3Config):
        tensors = make_fixtures.split_experts(tensors)
    folder.mkdir(parents=True)
    d = {k: v for k, v in {**config.to_dict(), "architectures": [type(model).__name__], "dtype": "bfloat16"}.items() if k[0] != "_"}
    if "time_step_limit" in d:
        d["time_step_limit"] = [0.0, {"__float__": "Infinity"}]
    if isinstance(config, DeepseekV3Config):
        d.update(topk_method="noaux_tc", scoring_func="sigmoid", moe_layer_freq=1)
    (folder / "config.json").write_text(json.dumps(d, default=str))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@torch.no_grad()
def logits_of(model, ids):
    return torch.cat([model(row[None], use_cache=False).logits.float().cpu() for row in ids])


def distance(actual, expected):
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def run(*words):
    result = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {(result.stderr.strip() or result.stdout.strip()).splitlines()[-1]}")


def ours(program, checkpoint, ids_file, folder, *options):
    run(program, "eval", "logits", "--device", "cuda", "--model-path", checkpoint, "--input-ids", ids_file, "-o", folder / "out.safetensors",
        *options)
    return load_file(folder / "out.safetensors")["logits"]


def rows_of(name, program, folder):
    """(format, error, bound, note) of one model."""
    case = CASES[name]()
    model, ids = random_model(case)
    checkpoint, ids_file = folder / "checkpoint", folder / "ids.safetensors"
    save(model, case.config, checkpoint)
    save_file({"input_ids": ids.int().cpu()}, ids_file)
    expected = logits_of(model, ids)
    model.bfloat16()
    unit = distance(logits_of(model, ids), expected)
    del model
    torch.cuda.empty_cache()
    yield "bf16", distance(ours(program, checkpoint, ids_file, folder), expected), 2 * unit, f"transformers in BF16 {unit:.4f}"
    for form in case.formats:
        quantised, back = folder / "quantised", folder / "back"
        run(program, "quantize", checkpoint, quantised, "--format", *STORED.get(form, (form,)))
        run(program, "quantize", quantised, back, "--format", "bf16")
        model = case.model_class.from_pretrained(back, dtype=torch.float32, attn_implementation="sdpa").cuda().eval()
        reference = logits_of(model, ids)
        del model
        torch.cuda.empty_cache()
        u, products = FORMATS[form]
        run_of = (checkpoint, ids_file, folder, "--quantization", form) if form in STORED else (quantised, ids_file, folder)
        yield (form, distance(ours(program, *run_of), reference), 2 * unit + u * (products * case.layers) ** 0.5,
               f"format itself {distance(reference, expected):.4f}")
        shutil.rmtree(quantised), shutil.rmtree(back)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__.split("\n\n")[1])
    program, folder, names = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:] or list(CASES)
    torch.backends.cuda.matmul.allow_tf32 = False
    transformers.logging.disable_progress_bar()
    worse = 0
    print("| model | weights | error | bound | |\n|---|---|---|---|---|")
    for name in names:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        begin = time.monotonic()
        for form, error, bound, note in rows_of(name, program, folder):
            worse += not error <= bound
            print(f"| {name} | {form} | {error:.4f} | {bound:.4f} | {note} |", flush=True)
        print(f"{name}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
    shutil.rmtree(folder)
    print(f"{worse} above their bounds")
    return worse > 0


if __name__ == "__main__":
    sys.exit(main())
