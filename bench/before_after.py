#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two commits of Sluice on this CPU, in turn: whole models (`sluice bench model`) and fused layers (`sluice bench moe`).

    bench/before_after.py build --work DIR --before 91dcebb --after HEAD
    bench/before_after.py measure --work DIR --rounds 4          # some 5 minutes a round on two cores; nothing else may run
    bench/before_after.py measure --work DIR --rounds 2 --cells moe/qwen3-30b-a3b/bf16 model/qwen3-small/mxfp4
    bench/before_after.py table --work DIR > table.md            # exit 1 where a cell is below 0.98
    bench/before_after.py measure --work DIR --quick             # does everything run? the numbers mean nothing

A cell is run by one program and then by the other, and the order changes with every round, so that a drift of the machine
favours neither. The state DIR/times.json is written after every cell and later calls add to it. A ratio is of the quietest
round of each program: least milliseconds, most tokens per second; the table also has the ratio of the medians. 1.00 is equal,
more means that `after` is faster. Models have dummy weights, whose values may differ between the commits: a prompt's tokens
may be routed to other numbers of experts. A decoded token reads as many in both.
"""
import argparse
import json
import math
import pathlib
import shutil
import statistics
import subprocess
import sys

import model_shapes

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIDES = ("before", "after")
LIMIT = 0.98
MOE_SHAPES = ("qwen3-30b-a3b", "deepseek-v3-tp8", "nemotron-3-nano")
MOE_FORMATS = ("bf16", "fp8_block", "mxfp8", "nvfp4", "mxfp4")
MOE_TOKENS = (1, 8, 32, 128, 512)
MODELS = {"qwen3-small": model_shapes.QWEN3_SMALL, "nemotron": model_shapes.NEMOTRON}
MODEL_FORMATS = ("bf16", "mxfp8", "fp8_block", "nvfp4", "mxfp4")
CELLS = [*(f"model/{m}/{f}" for m in MODELS for f in MODEL_FORMATS), *(f"moe/{s}/{f}" for s in MOE_SHAPES for f in MOE_FORMATS)]


def build(options):
    """A tree of each commit below the working folder, and the program of the preset `demo`, which is the CPU's alone."""
    for side in SIDES:
        tree = options.work / side
        commit = subprocess.check_output(["git", "-C", ROOT, "rev-parse", f"{getattr(options, side)}^{{commit}}"], text=True).strip()
        if not tree.exists():
            subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", tree, commit], check=True)
        subprocess.run(["git", "-C", tree, "checkout", "--quiet", "--detach", commit], check=True)
        libraries = ROOT / "build" / "third-party"
        if libraries.exists() and not (tree / "build" / "third-party").exists():
            shutil.copytree(libraries, tree / "build" / "third-party", symlinks=True)
        for command in (["cmake", "--preset", "demo"], ["cmake", "--build", "--preset", "demo"]):
            subprocess.run(command, cwd=tree, check=True)
        (options.work / f"{side}.commit").write_text(commit + "\n")


def run(options, side, words):
    program = options.work / side / "build" / "demo" / "bin" / "sluice"
    lines = subprocess.check_output([program, *map(str, words), "--threads", str(options.threads), "--json"], text=True,
                                    stderr=subprocess.DEVNULL).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def measure_model(options, side, name, weights):
    folder = options.work / "models" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODELS[name], indent=1))
    new_tokens, repeat = (4, 1) if options.quick else (64, 3)
    words = ["bench", "model", "--model-path", folder, "--load-format", "dummy", "--prompt-tokens", 256, "--new-tokens", new_tokens,
             "--repeat", repeat]
    if weights != "bf16":
        words += ["--quantization", weights]
    result = run(options, side, words)[-1]
    return {"prefill": result["prefill_tok_s"], "decode": result["decode_tok_s"]}


def measure_moe(options, side, shape, weights):
    words = ["bench", "moe", "--shape", shape, "--format", weights, "--tokens", ",".join(map(str, MOE_TOKENS)), "--seconds",
             0.02 if options.quick else 0.5]
    return {f"T={r['tokens']}": 1 / r["ms_min"] for r in run(options, side, words)}


def measure(options):
    state_file = options.work / "times.json"
    state = json.loads(state_file.read_text()) if state_file.exists() else {}
    for number in range(1 if options.quick else options.rounds):
        for cell in options.cells:
            kind, name, weights = cell.split("/")
            for side in SIDES if number % 2 == 0 else reversed(SIDES):
                rates = (measure_model if kind == "model" else measure_moe)(options, side, name, weights)
                for key, rate in rates.items():
                    state.setdefault(cell, {}).setdefault(key, {s: [] for s in SIDES})[side].append(rate)
            if not options.quick:
                state_file.write_text(json.dumps(state))
            print(f"round {number + 1}: {cell} " + " ".join(f"{key} {ratio(sides, max):.2f}" for key, sides in state[cell].items()),
                  file=sys.stderr)


def ratio(sides, of):
    return of(sides["after"]) / of(sides["before"])


def table(options):
    state = json.loads((options.work / "times.json").read_text())
    commits = [(options.work / f"{side}.commit").read_text().strip()[:7] for side in SIDES]
    print(f"`{commits[0]}` against `{commits[1]}`, both programs in turn; quietest round of each (ratio of medians).\n")
    below, logs = [], []
    for kind, columns in (("model", ("prefill", "decode")), ("moe", tuple(f"T={t}" for t in MOE_TOKENS))):
        rows = [cell for cell in CELLS if cell in state and cell.startswith(kind + "/")]
        if not rows:
            continue
        print(f"| {kind} | format | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 2))
        for cell in rows:
            _, name, weights = cell.split("/")
            values = []
            for column in columns:
                best, middle = (ratio(state[cell][column], of) for of in (max, statistics.median))
                logs.append(math.log(best))
                values.append(f"{best:.2f} ({middle:.2f})")
                if max(best, middle) < LIMIT:
                    below.append(f"{cell} {column}: {best:.3f} ({middle:.3f})")
            print(f"| {name} | {weights} | " + " | ".join(values) + " |")
        print()
    rounds = [len(sides["after"]) for cell in state.values() for sides in cell.values()]
    print(f"Geometric mean of the {len(logs)} cells {math.exp(statistics.mean(logs)):.3f}, of {min(rounds)} to {max(rounds)} rounds.")
    if below:
        print(f"\nBelow {LIMIT} by both ratios: " + "; ".join(below))
    return 1 if below else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("build", "measure", "table"))
    parser.add_argument("--work", type=lambda path: pathlib.Path(path).resolve(), required=True, help="folder of trees and times")
    parser.add_argument("--before", default="91dcebb")
    parser.add_argument("--after", default="HEAD")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=CELLS, metavar="CELL")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    return {"build": build, "measure": measure, "table": table}[options.what](options)


if __name__ == "__main__":
    sys.exit(main())
