#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole models on the CPU, Sluice beside ik_llama.cpp and llama.cpp, measured in turn.

    bench/model_peer.py files --models DIR                 # GGUF files with random weights; needs gguf==0.19.0 from PyPI
    bench/model_peer.py measure --state S.json --sluice build/cpu/bin/sluice --models DIR \\
        --ik IK/bin/llama-bench --llama LLAMA/bin/llama-bench --rounds 4
    bench/model_peer.py measure --state S.json ... --cases qwen3-bf16 --contexts 4096 --rounds 2
    bench/model_peer.py measure --state S.json ... --contexts 512 --busy       # beside a process that spins
    bench/model_peer.py table --state S.json > table.md
    bench/model_peer.py measure --state /tmp/smoke.json ... --quick            # does everything run? the numbers mean nothing

A round of a case is the read probe of `sluice bench moe`, Sluice, ik_llama.cpp and llama.cpp, one after the other; the rounds
of a case follow each other, so that its file stays in the page cache. Sluice loads once a case and sleeps while it is not measured. Prefill is a prompt as long as the context, decode 64
tokens after it. The table has medians over the rounds; 1.00 is equal, more means that Sluice is faster. The state is written
after every run and later calls add to it: an interrupted call keeps what was measured. A peer without a path, and one that
does not have a model's architecture, is left out.

Two faults stop llama.cpp (of llama-cpp-python 0.3.36) on a CPU with AMX. Change two lines in ggml/src/ggml-cpu/amx, or build it
without that backend: cmake -DCMAKE_CXX_FLAGS=-mno-amx-int8.
  mmq.cpp: GCC before 12.4 and 13.3 does not store all of the tile configuration before `_tile_loadconfig(&tc);` (GCC bug 114098), and
    8-bit files end with an illegal instruction. Write `__asm__ volatile("ldtilecfg %0" : : "m"(tc));` or take another compiler.
  amx.cpp: DeepSeek's attn_k_b is repacked for AMX, where its product is not supported (GGML_ASSERT(*cur_backend_id != -1)). In
    supports_op() write `if (src0->ne[2] > 1 || !ggml_is_contiguous(src0)` for `if (!ggml_is_contiguous(src0)`.
"""
import argparse
import collections
import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import model_shapes
from arguments import list_of

ROOT = pathlib.Path(__file__).resolve().parent.parent
NEW_TOKENS = 64
PROGRAMS = ("sluice", "ik", "llama")
TITLES = {"sluice": "Sluice", "ik": "ik_llama.cpp", "llama": "llama.cpp"}
BITS = {"bf16": 16, "mxfp8": 8.25, "q8_0": 8.5, "mxfp4": 4.25, "nvfp4": 4.5, "q4_0": 4.5}  # with their scales

# ours and theirs: formats of the experts, and of the rest with the head.
Case = collections.namedtuple("Case", "shape ours theirs peers")
BOTH = ("ik", "llama")
CASES = {
    "qwen3-bf16": Case("qwen3", ("bf16", "bf16"), ("bf16", "bf16"), BOTH),
    "qwen3-8bit": Case("qwen3", ("mxfp8", "mxfp8"), ("q8_0", "q8_0"), BOTH),
    "qwen3-mxfp4-bf16": Case("qwen3", ("mxfp4", "bf16"), ("mxfp4", "bf16"), BOTH),
    "qwen3-mxfp4-8bit": Case("qwen3", ("mxfp4", "mxfp8"), ("mxfp4", "q8_0"), BOTH),
    "qwen3-nvfp4-8bit": Case("qwen3", ("nvfp4", "mxfp8"), ("q4_0", "q8_0"), BOTH),
    "deepseek-mxfp4-8bit": Case("deepseek", ("mxfp4", "mxfp8"), ("mxfp4", "q8_0"), BOTH),
    "nemotron-bf16": Case("nemotron", ("bf16", "bf16"), ("bf16", "bf16"), ("llama",)),
    "nemotron-mxfp4-8bit": Case("nemotron", ("mxfp4", "mxfp8"), ("mxfp4", "q8_0"), ("llama",)),
}


def describe(formats):
    experts, rest = (f.upper() for f in formats)
    return experts if experts == rest else f"{experts}, rest and head {rest}"


def step_bytes(case, program, context):
    experts, rest = map(BITS.get, case.ours if program == "sluice" else case.theirs)
    bits = {"experts": experts, "rest": rest, "head": rest}
    return model_shapes.step_bytes(model_shapes.SHAPES[case.shape], bits, context)


# ---- running the programs


# By default a build with CUDA gives the experts to a Hopper GPU where there is one.
ON_CPU = ["--device", "cpu", "--moe-runner-backend", "cpu"]


def sluice_words(case):
    experts, rest = case.ours
    if experts == "bf16":
        return []
    return ["--quantization", experts, "--quantization-rest", rest, "--quantization-head", rest]


def peer_words(program, contexts):
    """llama-bench's options, a list for each process; the two programs say differently what decoding at a context is."""
    prompts = ["-p", ",".join(map(str, contexts)), "-n", "0"]
    if program == "ik":
        return [[*prompts, *(w for c in contexts for w in ("-gp", f"{c},{NEW_TOKENS}")), "-rtr", "1"]]
    return [prompts, ["-p", "0", "-n", str(NEW_TOKENS), "-d", ",".join(map(str, contexts))]]


def parse_peer(text):
    """{context: {"prefill": tokens/s, "decode": tokens/s}} and what built it, of the JSON that llama-bench prints."""
    cells, build = {}, ""
    for test in json.loads(text):
        build = f"{test['build_commit']} ({test['build_number']})"
        what = "decode" if test["n_gen"] else "prefill"
        context = test["n_prompt"] or test.get("n_depth", 0)
        cells.setdefault(str(context), {})[what] = statistics.median(test["samples_ts"])
    return cells, build


def output_of(words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


class Model:
    """Sluice with a loaded model, asleep while the peers are measured."""

    def __init__(self, words):
        self.process = subprocess.Popen([str(w) for w in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measure(self, context):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{context}\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"sluice bench model ended with {self.process.wait()}")
        r = json.loads(line)
        return {"prefill": r["prefill_tok_s"], "decode": r["decode_tok_s"]}

    def close(self):
        self.process.kill()
        self.process.wait()


class Bench:
    def __init__(self, o, folder):
        self.o, self.folder = o, pathlib.Path(folder)
        self.paths = {"sluice": o.sluice, "ik": o.ik, "llama": o.llama}
        self.state = json.loads(o.state.read_text()) if o.state.exists() else {"about": {}, "runs": []}

    def save(self):
        partial = self.o.state.with_name(self.o.state.name + ".partial")
        partial.write_text(json.dumps(self.state, indent=1))
        os.replace(partial, self.o.state)

    def about(self):
        o, about = self.o, self.state["about"]
        about["sluice"] = git_commit() + ", " + output_of([o.sluice, "--version"]).splitlines()[0]
        for program in BOTH:
            if self.paths[program]:
                about[program + " built"] = o.built or configuration(self.paths[program])
        about["threads"] = o.threads

    def probe(self, seconds):
        line = json.loads(output_of([self.o.sluice, "bench", "moe", "--shape", "qwen3-30b-a3b", "--format", "mxfp4", "--tokens", "1",
                                     "--seconds", seconds, "--threads", self.o.threads, "--json"]).splitlines()[-1])
        self.state["about"]["cpu"] = f"{line['cpu']}, {line['isa']}"
        return line["probe_read_gb_per_s"]

    def load(self, case):
        folder = self.folder / case.shape
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(model_shapes.SHAPES[case.shape]))
        return Model([self.o.sluice, "bench", "model", "--model-path", folder, "--load-format", "dummy", *ON_CPU, *sluice_words(case),
                      "--threads", self.o.threads, "--new-tokens", NEW_TOKENS + 1, "--repeat", self.o.repeat, "--from-stdin"])

    def peer(self, program, name, contexts):
        cells = {}
        for words in peer_words(program, contexts):
            found, build = parse_peer(output_of([self.paths[program], "-m", self.o.models / (name + ".gguf"), "-t", self.o.threads,
                                                 "-r", self.o.repeat, "-o", "json", *words]))
            self.state["about"][program] = build
            for context, cell in found.items():
                cells.setdefault(context, {}).update(cell)
        return cells

    def measure(self):
        self.about()
        self.started, self.rounds_done = time.monotonic(), 0
        with spinning() if self.o.busy else contextlib.nullcontext():
            for name in self.o.cases:
                with contextlib.closing(self.load(CASES[name])) as model:
                    for _ in range(self.o.rounds):
                        self.round(name, model)

    def round(self, name, model):
        o, case = self.o, CASES[name]
        run = {"case": name, "busy": o.busy, "probe": self.probe("0.05" if o.quick else "0.3"), "cells": {}}
        self.state["runs"].append(run)
        self.rounds_done += 1
        for program in PROGRAMS:
            if not self.paths[program] or program not in ("sluice", *case.peers):
                continue
            begin = time.monotonic()
            try:
                cells = ({str(c): model.measure(c) for c in o.contexts} if program == "sluice"
                         else self.peer(program, name, o.contexts))
            except RuntimeError as e:  # the other programs and cases go on
                print(f"model_peer.py: {name}, {TITLES[program]}: {e}", file=sys.stderr)
                continue
            run["cells"][program] = cells
            self.save()
            rates = "; ".join(f"{c}: {cell['prefill']:.0f} / {cell['decode']:.1f} tok/s" for c, cell in cells.items())
            now = time.monotonic()
            print(f"{self.rounds_done}/{o.rounds * len(o.cases)} {name} {TITLES[program]}: {rates} ({now - begin:.0f} s; "
                  f"probe {run['probe']:.1f} GB/s; {now - self.started:.0f} s in all)", flush=True)


@contextlib.contextmanager
def spinning():
    """One other busy process, on no core in particular."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def git_commit():
    done = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"


def configuration(program):
    """How a peer was built, as CMake noted it above the program; --built says it where there is no such note."""
    for folder in program.resolve().parents:
        cache = folder / "CMakeCache.txt"
        if cache.is_file():
            found = dict(re.findall(r"^(\w+):\w+=(.*)$", cache.read_text(), re.M))
            wanted = ("CMAKE_BUILD_TYPE", "GGML_NATIVE", "GGML_OPENMP", "GGML_LLAMAFILE", "CMAKE_CXX_FLAGS")
            compiler = output_of([found["CMAKE_CXX_COMPILER"], "--version"]).splitlines()[0]
            return ", ".join([compiler, *(f"{k}={found[k]}" for k in wanted if found.get(k))])
    return "not known"


# ---- the table


def medians(runs):
    """{(case, busy, context): {program: (prefill, decode), "probe": GB/s, "rounds": n}}"""
    values = collections.defaultdict(lambda: collections.defaultdict(list))
    for run in runs:
        for program, cells in run["cells"].items():
            for context, cell in cells.items():
                found = values[run["case"], run["busy"], int(context)]
                found[program].append((cell["prefill"], cell["decode"]))
                if program == "sluice":
                    found["probe"].append(run["probe"])
    out = {}
    for key, found in values.items():
        out[key] = {p: tuple(map(statistics.median, zip(*found[p]))) for p in PROGRAMS if p in found}
        out[key]["probe"], out[key]["rounds"] = statistics.median(found["probe"] or [0]), len(found["probe"])
    return out


def table(state):
    about = state["about"]
    yield f"{about.get('cpu', 'unknown CPU')}, {about['threads']} threads; Sluice {about['sluice']}."
    for program in BOTH:
        if program in about:
            yield f"{TITLES[program]} {about[program]}; {about[program + ' built']}" + (
                "; run-time repack." if program == "ik" else ".")
    cells = medians(state["runs"])
    names = list(CASES)
    order = sorted(cells, key=lambda k: (k[1], k[2], names.index(k[0])))
    for program in BOTH:
        rows = [k for k in order if program in cells[k] and "sluice" in cells[k]]
        if not rows:
            continue
        yield from ("", f"### Beside {TITLES[program]}", "",
                    f"| model | Sluice | {TITLES[program]} | context | rounds | prefill tok/s | ratio | decode tok/s | ratio | MB per step "
                    "| GB/s | ratio at equal bytes | probe GB/s |", "|" + "---|" * 13)
        for key in rows:
            name, busy, context = key
            case, cell = CASES[name], cells[key]
            (p0, d0), (p1, d1) = cell["sluice"], cell[program]
            m0, m1 = (step_bytes(case, p, context) / 1e6 for p in ("sluice", program))
            words = (case.shape, describe(case.ours), describe(case.theirs),
                     f"{context}{' busy' if busy else ''}", cell["rounds"], f"{p0:.0f} / {p1:.0f}", f"{p0 / p1:.2f}",
                     f"{d0:.1f} / {d1:.1f}", f"{d0 / d1:.2f}", f"{m0:.0f} / {m1:.0f}",
                     f"{d0 * m0 / 1e3:.1f} / {d1 * m1 / 1e3:.1f}", f"{d0 * m0 / (d1 * m1):.2f}", f"{cell['probe']:.1f}")
            yield "| " + " | ".join(map(str, words)) + " |"


def files(o):
    import random_gguf  # needs gguf and numpy, the measuring does not
    o.models.mkdir(parents=True, exist_ok=True)
    for name in o.cases:
        path = o.models / (name + ".gguf")
        if path.exists():
            print(f"{path}: there")
            continue
        random_gguf.write(model_shapes.SHAPES[CASES[name].shape], path, *CASES[name].theirs)
        print(f"{path}: {path.stat().st_size / 1e9:.2f} GB", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    cases = {"type": list_of(str, CASES), "default": list(CASES), "metavar": "NAME,...", "help": "of: " + ", ".join(CASES)}
    f = commands.add_parser("files", help="write the GGUF files of the cases that are not there yet (26 GB for all)")
    f.add_argument("--models", type=pathlib.Path, required=True, help="folder for them")
    f.add_argument("--cases", **cases)
    m = commands.add_parser("measure", help="measure rounds and add them to the state")
    m.add_argument("--state", type=pathlib.Path, required=True, help="JSON file of what was measured")
    m.add_argument("--sluice", type=pathlib.Path, required=True, help="the program")
    m.add_argument("--models", type=pathlib.Path, required=True, help="folder of the GGUF files")
    m.add_argument("--ik", type=pathlib.Path, help="llama-bench of ik_llama.cpp")
    m.add_argument("--llama", type=pathlib.Path, help="llama-bench of llama.cpp")
    m.add_argument("--built", help="how the peers were built; default: from CMakeCache.txt above them")
    m.add_argument("--cases", **cases)
    m.add_argument("--contexts", type=list_of(int), default=[512], metavar="N,...", help="default: 512")
    m.add_argument("--rounds", type=int, default=4, help="default: 4")
    m.add_argument("--repeat", type=int, default=3, help="runs in a process, of which the median counts; default: 3")
    m.add_argument("--threads", type=int, default=2, help="default: 2")
    m.add_argument("--busy", action="store_true", help="beside one process that spins")
    m.add_argument("--quick", action="store_true", help="one round, one run, contexts of 64: a smoke test")
    t = commands.add_parser("table", help="print the Markdown table")
    t.add_argument("--state", type=pathlib.Path, required=True, help="JSON file of what was measured")
    o = parser.parse_args()
    if o.command == "files":
        return files(o)
    if o.command == "table":
        return print("\n".join(table(json.loads(o.state.read_text()))))
    if o.quick:
        o.rounds, o.repeat, o.contexts = 1, 1, [64]
    with tempfile.TemporaryDirectory() as folder:
        try:
            Bench(o, folder).measure()
        except KeyboardInterrupt:
            sys.exit(f"model_peer.py: interrupted; {o.state} has what was measured")


if __name__ == "__main__":
    main()
