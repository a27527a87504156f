#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Perplexity of trained checkpoints on the GPU against the CPU, in every format.

usage: gpu_perplexity.py experts|models PROGRAM MODELS...

`experts`: the MoE layers on the GPU inside the CPU's model; `models`: all of it on the GPU. PROGRAM is a built `sluice`,
MODELS are BF16 checkpoints that hold valid.txt. Prints a table in Markdown; exit 1 unless
each pair agrees to 5e-4 of it, or to four standard errors of the difference where these are more. Sums in another order
flip roundings, and sometimes an expert, which moves a token's likelihood either way; the standard error is that of the
mean over the text's windows, each of which is run alone. valid.txt alone is too short for 5e-4: its 36 windows leave a standard
error of up to 8e-4. So the model continues 160 places of it, in float32 on the CPU (text that one side's bfloat16 had sampled
would be likelier to that side), and both are scored: 100,000 tokens. FP8 formats run once more with --fp8-sums tensor-core: 14 bits are not another order, and must
move a perplexity less than the format itself does from BF16's.
"""
import concurrent.futures
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

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


def longer_text(program, model, folder, pool):
    """valid.txt and what the model makes of places in it; the same each time on one kind of processor."""
    text = (model / "valid.txt").read_text()

    def continued(i):
        at = i * len(text) // CONTINUATIONS
        words = [program, "generate", "--json", "--log-level", "warning", "--threads", 4, "--model-path", model, *ON_CPU, "--dtype", "float32"]
        words += ["--prompt", text[at:at + PROMPT], "--temperature", 1, "--seed", i, "--ignore-eos", "--max-new-tokens", NEW_TOKENS]
        return text[at:at + PROMPT] + json.loads(run(*words).strip().splitlines()[-1])["text"]

    longer = pathlib.Path(folder) / f"{model.name}.txt"
    longer.write_text("\n".join([text, *pool.map(continued, range(CONTINUATIONS))]))
    return longer


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
    if len(sys.argv) < 4 or sys.argv[1] not in ON_GPU:
        sys.exit(__doc__.split("\n\n")[1])
    on_gpu, program, models = ON_GPU[sys.argv[1]], sys.argv[2], [pathlib.Path(m) for m in sys.argv[3:]]
    wrong = same = 0
    bf16 = {}  # of each model, on the CPU
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(6) as pool:
        jobs = []
        for model in models:
            text, stored = longer_text(program, model, scratch, pool), pathlib.Path(scratch) / model.name
            run(program, "quantize", model, stored, "--format", "nvfp4", "--calibration", model / "valid.txt")
            for form in FORMATS:
                folder = stored if form == "nvfp4" else model
                cpu = pool.submit(perplexity, program, folder, text, form, ON_CPU)
                for sums in ("float32", "tensor-core") if form in FP8 else ("float32",):
                    gpu = pool.submit(perplexity, program, folder, text, form, on_gpu, sums)
                    jobs.append((model.name, form, sums == "float32", (cpu, gpu)))
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
