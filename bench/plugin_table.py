#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole models in vLLM, their experts by vLLM's own kernels beside Sluice's (docs/sglang-vllm.md): decoded tokens per second.

    bench/plugin_table.py measure --state S.json                         # needs vLLM, sluice-moe and a Hopper GPU
    bench/plugin_table.py measure --state S.json --formats nvfp4 --batches 1,64 --layers 12 --seconds 300
    bench/plugin_table.py table --state S.json --commit $(git rev-parse --short HEAD) > table.md

The model is Qwen3-30B-A3B with random weights. Experts are in a row's format, everything else is bfloat16, so that the two
columns differ in the experts alone. Every format runs twice, in processes of their own: with SLUICE_VLLM=0 and with 1. One
process imports vLLM while the one before it still measures; the GPU belongs to one at a time. vLLM captures decoding in CUDA
graphs. torch.compile is off unless --compile is given: it takes a minute per start, and fuses only what is no expert.
A step's time is that of prompts of 64 tokens with --steps + 1 new tokens less that of the same with 1, divided by --steps;
each the best of --repeat. Experts are chosen evenly by default (vLLM's own simulation), as random weights send every token to the same few.
The state is written after every number, and cells that it has are not measured again. A format that vLLM cannot run has
its reason in the table.
"""
import argparse
import collections
import fcntl
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import model_shapes
from arguments import list_of

PROMPT = 64
PUBLISHED_LAYERS = 48
SIDES = ("vllm", "sluice")
# On the line of its answer, what a process has to say; the rest of its output goes to its log.
MARK = "plugin_table: "

# What a checkpoint's config.json says of each format, and the key of the modules that it leaves in bfloat16.
MODELOPT = {"quant_method": "modelopt", "producer": {"name": "modelopt", "version": "0.39"}}
FORMATS = {
    "bf16": None,
    "fp8": ({**MODELOPT, "quant_algo": "FP8"}, "ignore"),
    "fp8_block": ({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}, "modules_to_not_convert"),
    "mxfp8": ({**MODELOPT, "quant_algo": "MXFP8"}, "ignore"),
    "nvfp4": ({**MODELOPT, "quant_algo": "NVFP4", "group_size": 16}, "ignore"),
    "mxfp4": ({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "quantization_status": "compressed",
               "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                   "num_bits": 4, "type": "float", "strategy": "group", "symmetric": True, "dynamic": False, "group_size": 32}}}},
              "ignore"),
}
TITLES = {"bf16": "BF16", "fp8": "FP8 per tensor", "fp8_block": "FP8 128x128", "mxfp8": "MXFP8", "nvfp4": "NVFP4", "mxfp4": "MXFP4"}


def config_of(form, layers):
    """The model's config.json."""
    config = {**model_shapes.QWEN3, "num_hidden_layers": layers}
    if FORMATS[form] is not None:
        quantization, key = FORMATS[form]
        kept = ["lm_head", "model.embed_tokens"]
        for i in range(layers):
            kept += [f"model.layers.{i}.mlp.gate", *(f"model.layers.{i}.self_attn.{p}_proj" for p in "qkvo")]
        config["quantization_config"] = {**quantization, key: kept}
    return config


# ---- one process: one format with or without the plug-in


def fill(name, tensor, generator):
    """Random weights that keep activations finite in every format; a scale is one number, so that codes make the values."""
    import torch
    if ".attn." in name:
        return  # scales of cached keys and values, which are bfloat16 here
    kind = str(tensor.dtype).removeprefix("torch.")
    scale = "scale" in name
    if kind in ("uint8", "int8", "float8_e8m0fnu"):
        raw = tensor.view(torch.uint8)
        raw.fill_(119) if scale else raw.random_(0, 256, generator=generator)  # 2^-8
    elif kind == "float8_e4m3fn":
        if scale:
            tensor.view(torch.uint8).fill_(0x38)  # 1
        else:  # of both signs, no NaN: exponents 0 to 7 of 15
            raw = tensor.view(torch.uint8)
            raw.random_(0, 128, generator=generator)
            raw.bitwise_and_(0x3F).bitwise_or_(torch.randint_like(raw, 0, 2).mul_(0x80))
    elif tensor.is_floating_point():
        if scale:
            encode = "global_scale" in name  # compressed-tensors' are reciprocals
            tensor.fill_(50.0 if encode else 0.02)
        elif tensor.dim() < 2:
            tensor.fill_(1.0 if "norm" in name else 0.0)
        else:
            tensor.normal_(0, 0.02, generator=generator)


def register_loader():
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    @register_model_loader("plugin_table")
    class Loader(DummyModelLoader):
        def load_weights(self, model, model_config):
            import torch
            generators = {}
            with torch.no_grad():
                for name, tensor in model.state_dict().items():
                    device = tensor.device
                    if device not in generators:
                        generators[device] = torch.Generator(device=device).manual_seed(1)
                    fill(name, tensor, generators[device])


def say(**what):
    print(MARK + json.dumps(what), flush=True)


def cell(o):
    """Runs in a process of its own; answers are lines of standard output."""
    begin = time.monotonic()
    import torch
    import vllm
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt
    imported = time.monotonic()
    with open(o.lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the process ends
        got = time.monotonic()
        free, total = torch.cuda.mem_get_info()  # the process before may still be giving its memory back
        while free < o.memory * total and time.monotonic() < got + 20:
            time.sleep(0.2)
            free, total = torch.cuda.mem_get_info()
        say(gpu=torch.cuda.get_device_name(), vllm=vllm.__version__, torch=torch.__version__, import_s=round(imported - begin, 1))
        register_loader()
        compilation = {"cudagraph_capture_sizes": o.batches, "max_cudagraph_capture_size": max(o.batches)}
        if not o.compile:
            compilation |= {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
        most = max(o.batches)
        llm = LLM(model=str(o.model), load_format="plugin_table", skip_tokenizer_init=True, dtype="bfloat16", seed=0,
                  max_model_len=1024, max_num_seqs=most, max_num_batched_tokens=8192, gpu_memory_utilization=o.memory,
                  enable_prefix_caching=False, disable_log_stats=True, compilation_config=compilation)
        # A plug-in that was loaded may still leave a layer to vLLM.
        layers = llm.apply_model(lambda model: sum(hasattr(m, "sluice_experts") for m in model.modules()))[0]
        say(load_s=round(time.monotonic() - got, 1), sluice_layers=layers)
        rng = random.Random(1)
        vocabulary = model_shapes.QWEN3["vocab_size"]

        def run(batch, answers):
            prompts = [TokensPrompt(prompt_token_ids=[rng.randrange(100, vocabulary - 100) for _ in range(PROMPT)]) for _ in range(batch)]
            params = SamplingParams(temperature=1.0, max_tokens=answers, ignore_eos=True, detokenize=False)
            torch.cuda.synchronize()
            start = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            torch.cuda.synchronize()
            return time.perf_counter() - start

        run(1, 4)
        for batch in o.batches:
            run(batch, 1)
            first = min(run(batch, 1) for _ in range(o.repeat))
            whole = min(run(batch, o.steps + 1) for _ in range(o.repeat))
            step = (whole - first) / o.steps
            say(batch=batch, ms=round(step * 1e3, 3), tok_s=round(batch / step, 1))
    os._exit(0)  # an engine's threads can keep a process for half a minute


# ---- all of them


class Table:
    def __init__(self, o, folder):
        self.o, self.folder = o, pathlib.Path(folder)
        self.state = json.loads(o.state.read_text()) if o.state.exists() else {"about": {}, "runs": {}}
        self.until = time.monotonic() + o.seconds

    def save(self):
        partial = self.o.state.with_name(self.o.state.name + ".partial")
        partial.write_text(json.dumps(self.state, indent=1))
        os.replace(partial, self.o.state)

    def start(self, form, side):
        o = self.o
        model = self.folder / form
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(config_of(form, o.layers), indent=1))
        words = [sys.executable, __file__, "cell", "--model", model, "--lock", self.folder / "lock", "--batches",
                 ",".join(map(str, o.batches)), "--repeat", o.repeat, "--steps", o.steps, "--memory", o.memory, *(["--compile"] if o.compile else [])]
        environment = {**os.environ, "SLUICE_VLLM": str(int(side == "sluice")), "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                       "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUNBUFFERED": "1",
                       "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}  # apply_model() takes a function
        environment.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
        if o.routing == "uniform":
            environment["VLLM_MOE_ROUTING_SIMULATION_STRATEGY"] = "uniform_random"
        log = o.logs / f"{form}-{side}.log"
        return subprocess.Popen([str(w) for w in words], stdout=log.open("w"), stderr=subprocess.STDOUT, env=environment,
                                start_new_session=True), log

    def measure(self):
        o = self.o
        o.logs.mkdir(parents=True, exist_ok=True)
        self.state["about"] |= {"layers": o.layers, "routing": o.routing, "compile": o.compile, "steps": o.steps}
        todo = [(form, side) for form in o.formats for side in SIDES
                if set(map(str, o.batches)) - set(self.state["runs"].get(f"{form} {side}", {}).get("tok_s", {}))]
        ahead = None
        for i, key in enumerate(todo):
            if time.monotonic() > self.until:
                break
            now, ahead = ahead or self.start(*key), None
            time.sleep(1)  # it asks for the GPU first
            self.follow(key, *now, lambda: None if i + 1 == len(todo) else self.start(*todo[i + 1]), i + 1, len(todo))
            ahead = self.next
        if ahead:
            stop(ahead[0])

    def follow(self, key, process, log, start_next, number, count):
        """Reads what a process says; when it has the GPU, the next one begins to import."""
        self.next, begin, seen = None, time.monotonic(), 0
        run = self.state["runs"].setdefault(" ".join(key), {"tok_s": {}, "ms": {}})
        run.pop("error", None)
        limit = min(begin + self.o.cell_seconds, self.until)
        while True:
            ended = process.poll() is not None
            said = [line[line.index(MARK) + len(MARK):] for line in log.read_text(errors="replace").splitlines() if MARK in line]
            for line in said[seen:]:
                what = json.loads(line)
                if "gpu" in what:
                    self.state["about"] |= {k: what[k] for k in ("gpu", "vllm", "torch")}
                    self.next = start_next()
                elif "batch" in what:
                    run["tok_s"][str(what["batch"])], run["ms"][str(what["batch"])] = what["tok_s"], what["ms"]
                else:
                    run |= what
                print(f"{number}/{count} {' '.join(key)}: {line} ({time.monotonic() - begin:.0f} s)", flush=True)
                self.save()
            seen = len(said)
            if ended or time.monotonic() > limit:
                break
            time.sleep(0.2)
        if not ended:
            stop(process)
        if not ended or process.returncode:
            run["error"] = "out of time" if not ended else last_error(log) or f"exit code {process.returncode}"
            print(f"{number}/{count} {' '.join(key)}: {run['error']}", flush=True)
            self.save()
        if self.next is None and time.monotonic() < self.until:
            self.next = start_next()


def stop(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def last_error(log):
    found = re.findall(r"^(?:\S+ )?(\w*(?:Error|Exception)\b.*)$", log.read_text(errors="replace"), re.M)
    return found[-1][:160] if found else ""


# ---- the table


def table(state, commit):
    about = state["about"]
    layers = about.get("layers", PUBLISHED_LAYERS)
    yield (f"{about.get('gpu', 'unknown GPU')}; vLLM {about.get('vllm', '?')}, torch {about.get('torch', '?')}"
           + (f"; Sluice at {commit}" if commit else "") + ".")
    yield (f"Qwen3-30B-A3B with {layers}{'' if layers == PUBLISHED_LAYERS else f' of its {PUBLISHED_LAYERS}'} layers, random weights, experts in "
           f"the row's format, the rest bfloat16; CUDA graphs on, torch.compile {'on' if about.get('compile') else 'off'}; "
           f"routing {about.get('routing')}. Decoded tokens/s, vLLM's own experts / the plug-in's (ratio).")
    runs = state["runs"]
    batches = sorted({int(b) for run in runs.values() for b in run["tok_s"]})
    yield ""
    yield "| experts | " + " | ".join(f"B = {b}" for b in batches) + " | notes |"
    yield "|" + "---|" * (len(batches) + 2)
    for form in FORMATS:
        pair = [runs.get(f"{form} {side}") for side in SIDES]
        if not any(pair):
            continue
        cells = []
        for b in batches:
            own, ours = ((run or {"tok_s": {}})["tok_s"].get(str(b)) for run in pair)
            ratio = f" ({ours / own:.2f})" if own and ours else ""
            cells.append(" / ".join("-" if v is None else f"{v:,.0f}" for v in (own, ours)) + ratio)
        notes = [f"{title}: {run['error']}".replace("|", "/") for title, run in zip(("vLLM", "plug-in"), pair) if run and run.get("error")]
        if pair[1] and pair[1].get("sluice_layers", layers) != layers:
            notes.append(f"the plug-in ran {pair[1]['sluice_layers']} of {layers} layers")
        if pair[0] and pair[0].get("sluice_layers"):
            notes.append("the plug-in ran in vLLM's own column")
        yield "| " + " | ".join([TITLES[form], *cells, "; ".join(notes)]) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="{measure,table}")
    m = commands.add_parser("measure", help="measure what the state does not have")
    c = commands.add_parser("cell")  # what `measure` starts
    t = commands.add_parser("table", help="print the Markdown table")
    for p in (m, t):
        p.add_argument("--state", type=pathlib.Path, required=True, help="JSON file of what was measured")
    for p in (m, c):
        p.add_argument("--batches", type=list_of(int), default=[1, 8, 32, 64, 256], metavar="N,...", help="default: 1,8,32,64,256")
        p.add_argument("--repeat", type=int, default=2, help="runs of which the best counts; default: 2")
        p.add_argument("--steps", type=int, default=128, help="that are measured; default: 128")
        p.add_argument("--memory", type=float, default=0.92, help="vLLM's gpu_memory_utilization; default: 0.92")
        p.add_argument("--compile", action="store_true", help="vLLM's own torch.compile and graphs")
    m.add_argument("--formats", type=list_of(str, FORMATS), default=list(FORMATS), metavar="NAME,...", help="of: " + ", ".join(FORMATS))
    m.add_argument("--layers", type=int, default=PUBLISHED_LAYERS, help=f"default: {PUBLISHED_LAYERS}, which need an 80 GB GPU in BF16")
    m.add_argument("--routing", choices=("uniform", "model"), default="uniform", help="who chooses the experts; default: uniform")
    m.add_argument("--seconds", type=float, default=3600, help="for all of it; what is not measured then is left out; default: 3600")
    m.add_argument("--cell-seconds", type=float, default=300, help="for one process; default: 300")
    m.add_argument("--logs", type=pathlib.Path, default=pathlib.Path("plugin_table_logs"), help="folder; default: plugin_table_logs")
    c.add_argument("--model", type=pathlib.Path, required=True)
    c.add_argument("--lock", type=pathlib.Path, required=True)
    t.add_argument("--commit", default="", help="of Sluice, for the line above the table")
    o = parser.parse_args()
    if o.command == "cell":
        return cell(o)
    if o.command == "table":
        return print("\n".join(table(json.loads(o.state.read_text()), o.commit)))
    with tempfile.TemporaryDirectory() as folder:
        Table(o, folder).measure()


if __name__ == "__main__":
    main()
