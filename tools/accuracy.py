#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each number format costs: perplexity of trained checkpoints, the table of docs/numerics.md.

usage: accuracy.py PROGRAM MODELS [--write]

PROGRAM is a built `sluice`, MODELS a folder of BF16 checkpoints that hold valid.txt and expected.json. Prints the table;
--write also puts it into docs/numerics.md. Fails unless a checkpoint that `sluice quantize` wrote gives exactly the
sum of log-likelihoods that the same format gives when it is made while loading.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

DOCUMENT = pathlib.Path(__file__).resolve().parent.parent / "docs" / "numerics.md"
BEGIN, END = "<!-- accuracy: from tools/accuracy.py -->\n", "<!-- accuracy: end -->\n"
ONLINE, REST, HEAD, CALIBRATED = "--quantization", "--quantization-rest", "--quantization-head", "--calibration"
PER_TOKEN, TRTLLM = "--nvfp4-per-token-activation", ("--fp8-block-numerics", "trtllm")

# Row of the table, options that quantise while loading (None: there is no such option), options of `sluice quantize`
# (None: BF16 is not rewritten), options of the reloaded run. CALIBRATED is replaced by the file of the calibration text.
ROWS = [
    ("`bf16`", (), None, ()),
    ("`fp8`, inputs per token", (ONLINE, "fp8"), ("--format", "fp8"), ()),
    ("`fp8`, calibrated inputs", None, ("--format", "fp8", CALIBRATED), ()),
    ("`fp8_channel`", (ONLINE, "fp8_channel"), ("--format", "fp8_channel"), ()),
    ("`fp8_block`", (ONLINE, "fp8_block"), ("--format", "fp8_block"), ()),
    ("`fp8_block`, `--fp8-block-numerics trtllm`", (ONLINE, "fp8_block", *TRTLLM), ("--format", "fp8_block"), TRTLLM),
    ("`mxfp8`", (ONLINE, "mxfp8"), ("--format", "mxfp8"), ()),
    ("`nvfp4`, calibrated inputs", (ONLINE, "nvfp4", CALIBRATED), ("--format", "nvfp4", CALIBRATED), ()),
    ("`nvfp4`, inputs per token", (ONLINE, "nvfp4", PER_TOKEN), ("--format", "nvfp4", CALIBRATED), (PER_TOKEN,)),
    ("`nvfp4`, BF16 inputs", None, ("--format", "nvfp4", "--weight-only"), ()),
    ("`mxfp4`, BF16 inputs", (ONLINE, "mxfp4"), ("--format", "mxfp4"), ()),
    ("`mxfp4` with `mxfp8` for the rest", (ONLINE, "mxfp4", REST, "mxfp8"), ("--format", "mxfp4", "--format-rest", "mxfp8"), ()),
    ("`mxfp4` with `mxfp8` for the rest and the head", (ONLINE, "mxfp4", REST, "mxfp8", HEAD, "mxfp8"),
     ("--format", "mxfp4", "--format-rest", "mxfp8", "--format-head", "mxfp8"), ()),
    ("`mxfp8`, also for the head", (ONLINE, "mxfp8", HEAD, "mxfp8"), ("--format", "mxfp8", "--format-head", "mxfp8"), ()),
    ("`nvfp4`, inputs per token, with `mxfp8` for the rest", (ONLINE, "nvfp4", REST, "mxfp8", PER_TOKEN),
     ("--format", "nvfp4", "--format-rest", "mxfp8", CALIBRATED), (PER_TOKEN,)),
]


def run(*words):
    result = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{result.stderr}")
    return result.stdout


def written_text(program, model, path):
    """A text to calibrate on that is not the scored one: 4096 tokens that the BF16 model writes itself."""
    with open(path, "w") as text:
        for seed in range(8):
            text.write(run(program, "generate", "--model-path", model, "--prompt", "Once upon a time", "--temperature", 1,
                           "--seed", seed, "--ignore-eos", "--max-new-tokens", 512) + "\n\n")


def measure(program, model, scratch):
    """{row: perplexity} of one checkpoint."""
    text, folder = scratch / "calibration.txt", scratch / "quantised"
    written_text(program, model, text)

    def evaluate(path, options):
        online = ["--calibration-text" if o == CALIBRATED else o for o in options]
        if CALIBRATED in options:
            online.insert(online.index("--calibration-text") + 1, text)
        return json.loads(run(program, "eval", "perplexity", "--model-path", path, "--text", model / "valid.txt", "--json",
                              *online))

    results = {}
    for name, online, quantize, reload in ROWS:
        runs = [evaluate(model, online)] if online is not None else []
        if quantize is not None:
            shutil.rmtree(folder, ignore_errors=True)
            run(program, "quantize", model, folder, *quantize, *([text] if CALIBRATED in quantize else []))
            runs.append(evaluate(folder, reload))
        if len({r["nll_sum"] for r in runs}) != 1:
            sys.exit(f"{model.name}, {name}: while loading {runs[0]}, reloaded {runs[1]}")
        results[name] = runs[0]["ppl"]
        print(f"{model.name}: {name} {results[name]:.6f}", file=sys.stderr)
    return results


def table(program, models):
    columns = {}
    for model in models:
        with tempfile.TemporaryDirectory() as scratch:
            columns[model] = measure(program, model, pathlib.Path(scratch))
    lines = ["| format | " + " | ".join(m.name for m in models) + " |", "|---" * (len(models) + 1) + "|"]
    cards = [json.loads((m / "expected.json").read_text())["valid"]["ppl"] for m in models]
    lines.append("| float32 run of transformers | " + " | ".join(f"{c:.4f}" for c in cards) + " |")
    for name, *_ in ROWS:
        cells = [f"{columns[m][name]:.4f}" + ("" if name == ROWS[0][0] else
                 f" ({100 * (columns[m][name] / columns[m][ROWS[0][0]] - 1):+.2f} %)") for m in models]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) not in (3, 4) or sys.argv[3:] not in ([], ["--write"]):
        sys.exit(__doc__)
    program = pathlib.Path(sys.argv[1]).resolve()
    models = sorted(p.parent for p in pathlib.Path(sys.argv[2]).resolve().glob("*/valid.txt"))
    text = table(program, models)
    print(text, end="")
    if sys.argv[3:]:
        before, _, rest = DOCUMENT.read_text().partition(BEGIN)
        DOCUMENT.write_text(before + BEGIN + "\n" + text + "\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
