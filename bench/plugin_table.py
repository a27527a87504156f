#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole models in vLLM or SGLang, their experts by the engine's own kernels beside Sluice's (docs/sglang-vllm.md): decoded
tokens per second.

    bench/plugin_table.py measure --state S.json                         # needs vLLM, sluice-moe and a Hopper GPU
    bench/plugin_table.py measure --state S.json --engine sglang --formats bf16,fp8
    bench/plugin_table.py measure --state S.json --formats nvfp4 --batches 1,64 --layers 12 --seconds 300
    bench/plugin_table.py measure --state S.json --formats bf16 --batches 1 --rounds 5 --alone   # four more processes of either side
    bench/plugin_table.py table --state S.json --commit $(git rev-parse --short HEAD) > table.md

The model is Qwen3-30B-A3B with random weights. Experts are in a row's format, everything else is bfloat16, so that the two
columns differ in the experts alone. Every format runs twice, in processes of their own: without the plug-in and with it.
Processes of the same code differ by more than runs in one of them, so --rounds has several of either side, in turn; a figure is
then their median, and all are listed below the table. One process imports the engine while the one before it still measures,
unless --alone is given; the GPU belongs to one at a time. Decoding is captured in CUDA graphs. torch.compile is off unless
--compile is given: it takes a minute per start, and fuses only what is no expert.
A step's time is that of prompts of 64 tokens with --steps + 1 new tokens less that of the same with 1, divided by --steps; each
the median of --repeat runs, of at most 3 for more than 8 sequences. Experts are chosen evenly by default (the engine's own
simulation, in SGLang with the same draws on both sides), as random weights send every token to the same few. The state is written
after every number, and processes that it has are not measured again. A format that the engine cannot run has its reason in the
table.
"""
import argparse
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import model_shapes
from arguments import list_of
from plugin_engines import ENGINES, MARK, say

PROMPT = 64
# Steps of few sequences differ from run to run: in one process of vLLM five took 3.82 to 4.14 ms with one sequence, 6.73 to
# 7.02 with 8, 11.38 and 11.56 with 64 (FP8, H200). Medians of two processes agree to 0.06 ms, the best of two runs were up to
# 0.13 apart.
FEW_SEQUENCES = 8
MOST_RUNS_OF_MORE = 3
PUBLISHED_LAYERS = 48

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


def sides(engine):
    return engine, "sluice"


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


def cell(o):
    """Runs in a process of its own; answers are lines of standard output."""
    engine = ENGINES[o.engine](o)
    rng = random.Random(1)
    vocabulary = model_shapes.QWEN3["vocab_size"]

    def run(batch, answers):
        prompts = [[rng.randrange(100, vocabulary - 100) for _ in range(PROMPT)] for _ in range(batch)]
        start = time.perf_counter()
        engine.generate(prompts, answers)
        return time.perf_counter() - start

    run(1, 4)
    for batch in o.batches:
        run(batch, 1)
        runs = o.repeat if batch <= FEW_SEQUENCES else min(o.repeat, MOST_RUNS_OF_MORE)
        first, whole = (statistics.median(run(batch, answers) for _ in range(runs)) for answers in (1, o.steps + 1))
        step = (whole - first) / o.steps
        say(batch=batch, ms=round(step * 1e3, 3), tok_s=round(batch / step, 1))
    engine.close()
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

    def start(self, form, side, number):
        o = self.o
        model = self.folder / form
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(config_of(form, o.layers), indent=1))
        words = [sys.executable, __file__, "cell", "--engine", o.engine, "--model", model, "--lock", self.folder / "lock", "--batches",
                 ",".join(map(str, o.batches)), "--repeat", o.repeat, "--steps", o.steps, "--memory", o.memory, *(["--compile"] if o.compile else [])]
        engine = ENGINES[o.engine]
        environment = {**engine.defaults, **os.environ, **engine.environment(side == "sluice", o.routing == "uniform"),
                       "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        log = o.logs / f"{form}-{side}-{number + 1}.log"
        return subprocess.Popen([str(w) for w in words], stdout=log.open("w"), stderr=subprocess.STDOUT, env=environment,
                                start_new_session=True), log

    def measure(self):
        o = self.o
        o.logs.mkdir(parents=True, exist_ok=True)
        self.state["about"] |= {"engine": o.engine, "layers": o.layers, "routing": o.routing, "compile": o.compile, "steps": o.steps}
        left = [(form, side, number) for number in range(o.rounds) for form in o.formats for side in sides(o.engine)
                if self.processes(form, side) <= number]
        ahead = None
        for i, process in enumerate(left):
            if time.monotonic() > self.until:
                break
            now, ahead = ahead or self.start(*process), None
            time.sleep(1)  # it asks for the GPU first
            last = o.alone or i + 1 == len(left)
            self.follow(" ".join(process[:2]), *now, lambda: None if last else self.start(*left[i + 1]), i + 1, len(left))
            ahead = self.next
        if ahead:
            stop(ahead[0])

    def processes(self, form, side):
        """How many have measured each of the batch sizes."""
        rates = self.state["runs"].get(f"{form} {side}", {}).get("tok_s", {})
        return min(len(rates.get(str(b), [])) for b in self.o.batches)

    def follow(self, key, process, log, start_next, number, count):
        """Reads what a process says; when it has the GPU, the next one begins to import."""
        self.next, begin, seen = None, time.monotonic(), 0
        run = self.state["runs"].setdefault(key, {"tok_s": {}, "ms": {}})
        run.pop("error", None)
        limit = min(begin + self.o.cell_seconds, self.until)
        while True:
            ended = process.poll() is not None
            said = [line[line.index(MARK) + len(MARK):] for line in log.read_text(errors="replace").splitlines() if MARK in line]
            for line in said[seen:]:
                what = json.loads(line)
                if "gpu" in what:
                    self.state["about"] |= {k: what[k] for k in ("gpu", "version", "torch")}
                    self.next = start_next()
                elif "batch" in what:
                    for name in ("tok_s", "ms"):
                        run[name].setdefault(str(what["batch"]), []).append(what[name])
                else:
                    run |= what
                print(f"{number}/{count} {key}: {line} ({time.monotonic() - begin:.0f} s)", flush=True)
                self.save()
            seen = len(said)
            if ended or time.monotonic() > limit:
                break
            time.sleep(0.2)
        stop(process)  # and what it started
        if not ended or process.returncode:
            run["error"] = "out of time" if not ended else last_error(log) or f"exit code {process.returncode}"
            print(f"{number}/{count} {key}: {run['error']}", flush=True)
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
    layers, engine = about.get("layers", PUBLISHED_LAYERS), about.get("engine", "vllm")
    title = ENGINES[engine].title
    yield (f"{about.get('gpu', 'unknown GPU')}; {title} {about.get('version', '?')}, torch {about.get('torch', '?')}"
           + (f"; Sluice at {commit}" if commit else "") + ".")
    yield (f"Qwen3-30B-A3B with {layers}{'' if layers == PUBLISHED_LAYERS else f' of its {PUBLISHED_LAYERS}'} layers, random weights, experts in "
           f"the row's format, the rest bfloat16; CUDA graphs on, torch.compile {'on' if about.get('compile') else 'off'}; "
           f"routing {about.get('routing')}. Decoded tokens/s, {title}'s own experts / the plug-in's (ratio).")
    runs = state["runs"]
    batches = sorted({int(b) for run in runs.values() for b in run["tok_s"]})
    yield ""
    several = []
    yield "| experts | " + " | ".join(f"B = {b}" for b in batches) + " | notes |"
    yield "|" + "---|" * (len(batches) + 2)
    for form in FORMATS:
        pair = [runs.get(f"{form} {side}") for side in sides(engine)]
        if not any(pair):
            continue
        cells = []
        for b in batches:
            both = [(run or {"tok_s": {}})["tok_s"].get(str(b), []) for run in pair]
            own, ours = (statistics.median(rates) if rates else None for rates in both)
            if max(map(len, both)) > 1:
                several.append([TITLES[form], str(b), *(", ".join(f"{v:,.0f}" for v in rates) for rates in both)])
            ratio = f" ({ours / own:.2f})" if own and ours else ""
            cells.append(" / ".join("-" if v is None else f"{v:,.0f}" for v in (own, ours)) + ratio)
        notes = [f"{name}: {run['error']}".replace("|", "/") for name, run in zip((title, "plug-in"), pair) if run and run.get("error")]
        if pair[1] and pair[1].get("sluice_layers", layers) != layers:
            notes.append(f"the plug-in ran {pair[1]['sluice_layers']} of {layers} layers")
        if pair[0] and pair[0].get("sluice_layers"):
            notes.append(f"the plug-in ran in {title}'s own column")
        yield "| " + " | ".join([TITLES[form], *cells, "; ".join(notes)]) + " |"
    if several:
        yield ""
        yield f"Medians of several processes, which are: {title}'s own experts, the plug-in's."
        yield ""
        yield f"| experts | B | {title} | plug-in |"
        yield "|---|---|---|---|"
        for words in several:
            yield "| " + " | ".join(words) + " |"


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
        p.add_argument("--repeat", type=int, default=5,
                       help=f"runs of which the median counts; default: 5, of more than {FEW_SEQUENCES} sequences {MOST_RUNS_OF_MORE}")
        p.add_argument("--steps", type=int, default=128, help="that are measured; default: 128")
        p.add_argument("--engine", choices=list(ENGINES), default="vllm", help="default: vllm")
        p.add_argument("--memory", type=float, default=0.92, help="part of the GPU's that the engine takes; default: 0.92")
        p.add_argument("--compile", action="store_true", help="the engine's own torch.compile")
    m.add_argument("--formats", type=list_of(str, FORMATS), default=list(FORMATS), metavar="NAME,...", help="of: " + ", ".join(FORMATS))
    m.add_argument("--rounds", type=int, default=1, help="processes of either side of a format; default: 1")
    m.add_argument("--alone", action="store_true", help="a process begins to import when the one before it has ended: nothing runs beside "
                   "what is measured; each takes 15 s more in vLLM and about 40 in SGLang")
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
