#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Perplexity of trained checkpoints on the GPU against the CPU, in every format.

    tools/gpu_perplexity.py models build/gpu/bin/sluice models/*/
    tools/gpu_perplexity.py cpu build/gpu/bin/sluice models/*/ --state cpu.json    # its half of the CPU, wherever one is free
    tools/gpu_perplexity.py models build/gpu/bin/sluice models/*/ --state cpu.json # the rest

`experts`: the MoE layers on the GPU inside the CPU's model; `models`: all of it on the GPU. PROGRAM is a built `sluice`,
MODELS are BF16 checkpoints that hold valid.txt. Prints a table in Markdown; exit 1 unless
each pair agrees to 5e-4 of it, or to four standard errors of the difference where these are more. Sums in another order
flip roundings, and sometimes an expert, which moves a token's likelihood either way; the standard error is that of the
mean over the text's windows, each of which is run alone. valid.txt alone is too short for 5e-4: its 36 windows leave a standard
error of up to 8e-4. So the model continues 160 places of it, in float32 on the CPU (text that one side's bfloat16 had sampled
would be likelier to that side), and both are scored: 100,000 tokens. FP8 formats run once more with --fp8-sums tensor-core: 14 bits are not another order, and must
move a perplexity less than the format itself does from BF16's.
"""
import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading

FP8 = ("fp8", "fp8_channel", "fp8_block")
FORMATS = ["bf16", "fp8", "fp8_channel", "fp8_block", "mxfp8", "nvfp4", "nvfp4_online", "mxfp4"]
# Rows that are not quantised have no float32 path on the GPU. The other rows have float32 between the layers, without the
# noise of bfloat16 residuals: with that noise two CPUs already differ by 3e-4, because sums in another order change
# the choice of a few experts.
BF16_RUNS = ("bf16", "mxfp4")
ON_CPU = ("--device", "cpu", "--moe-runner-backend", "cpu")
ON_GPU = {"experts": ("--device", "cpu", "--moe-runner-backend", "sm90"), "models": ("--device", "cuda")}

# Of a text, tokens of each, and characters that each continues. With 40 of 1900 tokens Qwen3-MoE ended in noise (53 for 31).
CONTINUATIONS, NEW_TOKENS, PROMPT = 160, 480, 100


def run(*words):
    result = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {result.stderr.strip().splitlines()[-1]}")
    return result.stdout


class State:
    """Texts and perplexities of the CPU by the contents that they are of: what a file has is not made again. The program is not
    among the contents: begin another file after a change to it. Without a path nothing is kept."""

    def __init__(self, path):
        self.path = path
        self.results = json.loads(path.read_text()) if path and path.exists() else {}
        self.lock = threading.Lock()

    def get(self, key, make):
        if key not in self.results:
            made = make()
            with self.lock:
                self.results[key] = made
                if self.path:
                    beside = self.path.with_name(self.path.name + ".part")
                    beside.write_text(json.dumps(self.results))
                    os.replace(beside, self.path)
        return self.results[key]


def digest(folder, *more):
    """Of a checkpoint's weights and of texts: the calibrated scales of two processors could differ."""
    sums = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        sums.update(file.read_bytes())
    for text in more:
        sums.update(text.encode())
    return sums.hexdigest()


def longer_text(program, model, pool):
    """valid.txt and what the model makes of places in it; the same each time on one kind of processor."""
    text = (model / "valid.txt").read_text()

    def continued(i):
        at = i * len(text) // CONTINUATIONS
        words = [program, "generate", "--json", "--log-level", "warning", "--threads", 4, "--model-path", model, *ON_CPU, "--dtype", "float32"]
        words += ["--prompt", text[at:at + PROMPT], "--temperature", 1, "--seed", i, "--ignore-eos", "--max-new-tokens", NEW_TOKENS]
        return text[at:at + PROMPT] + json.loads(run(*words).strip().splitlines()[-1])["text"]

    return "\n".join([text, *pool.map(continued, range(CONTINUATIONS))])


def perplexity(program, model, text, form, where, sums="float32"):
    # A calibration does not run prediction layers, so the stored rows of theirs are not quantised.
    predicts = json.loads((model / "config.json").read_text()).get("num_nextn_predict_layers", 0) > 0
    bf16 = form in BF16_RUNS or (form == "nvfp4" and predicts)
    words = [program, "eval", "perplexity", "--json", "--threads", 4, "--model-path", model, "--text", text,
             *where, "--dtype", "bfloat16" if bf16 else "float32"]
    # nvfp4 is calibrated once and stored, so that both sides have the same scales.
    if form not in ("bf16", "nvfp4"):
        words += ["--quantization", form]
    if sums != "float32":
        words += ["--fp8-sums", sums]
    return json.loads(run(*words))


def difference(cpu, gpu):
    """Relative difference of the perplexities, and its standard error from the windows of both runs."""
    pairs = list(zip(cpu["window_nll"], gpu["window_nll"], strict=True))
    error = len(pairs) ** 0.5 * statistics.stdev(g - c for c, g in pairs) / cpu["scored_tokens"]
    return (gpu["ppl"] - cpu["ppl"]) / cpu["ppl"], error


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["cpu", *ON_GPU])
    parser.add_argument("program", help="a built `sluice`")
    parser.add_argument("models", nargs="+", type=pathlib.Path, help="BF16 checkpoints that hold valid.txt")
    parser.add_argument("--state", type=pathlib.Path, metavar="FILE", help="keeps the texts and the CPU's perplexities")
    args = parser.parse_args()
    if args.part == "cpu" and not args.state:
        parser.error("cpu needs --state, the file for its results")
    program, state = args.program, State(args.state)
    wrong = same = 0
    bf16 = {}  # of each model, on the CPU
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(6) as pool:
        jobs = []
        for model in args.models:
            stored, text = pathlib.Path(scratch) / model.name, pathlib.Path(scratch) / f"{model.name}.txt"
            text.write_text(state.get(f"text {digest(model)}", lambda: longer_text(program, model, pool)))
            run(program, "quantize", model, stored, "--format", "nvfp4", "--calibration", model / "valid.txt")
            contents = {folder: digest(folder, text.read_text()) for folder in (model, stored)}
            for form in FORMATS:
                folder = stored if form == "nvfp4" else model
                key = f"{form} {contents[folder]}"
                cpu = pool.submit(state.get, key, functools.partial(perplexity, program, folder, text, form, ON_CPU))
                if args.part == "cpu":
                    jobs.append(cpu)
                    continue
                for sums in ("float32", "tensor-core") if form in FP8 else ("float32",):
                    gpu = pool.submit(perplexity, program, folder, text, form, ON_GPU[args.part], sums)
                    jobs.append((model.name, form, sums == "float32", (cpu, gpu)))
        if args.part == "cpu":
            for job in concurrent.futures.as_completed(jobs):
                print(f"{job.result()['ppl']:.5f}", flush=True)
            return 0
        print("| model | weights | CPU | GPU | difference | standard error |\n|---|---|---|---|---|---|")
        for name, form, judged, results in jobs:
            try:
                cpu, gpu = (r.result() for r in results)
            except RuntimeError as error:
                print(f"| {name} | {form} | {error} |")
                wrong += 1
                continue
            if form == "bf16":
                bf16[name] = cpu
            apart, error = difference(cpu, gpu)
            if judged:
                wrong += not abs(apart) <= max(5e-4, 4 * error)
                same += f"{cpu['ppl']:.4g}" == f"{gpu['ppl']:.4g}"
            else:
                wrong += name not in bf16 or abs(gpu["ppl"] - cpu["ppl"]) >= abs(cpu["ppl"] - bf16[name]["ppl"])
            print(f"| {name} | {form}{'' if judged else ', 14-bit sums'} | {cpu['ppl']:.5f} | {gpu['ppl']:.5f} | {apart:+.1e} | {error:.1e} |")
    pairs = sum(judged for _, _, judged, _ in jobs)
    print(f"{pairs} pairs and {len(jobs) - pairs} with 14-bit sums, {wrong} wrong; {same} pairs print the same four digits")
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
