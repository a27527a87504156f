#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of bench/results/moe_h200.md and moe_h100.md, in Markdown, from what bench/moe_sm90 prints.

    bench/moe_sm90 --bf16-tflops B --fp8-tflops F | bench/moe_table.py cells [--peers moe_peers.csv] [--torch LOG]
    bench/moe_sm90 ...                            | bench/moe_table.py sums      FP8 with sums in float32
    bench/moe_sm90 --repack                       | bench/moe_table.py repack    preparation of weights
    bench/moe_sm90 --dense ...                    | bench/moe_table.py dense     dense products

B and F are what bench/ceilings_torch.py prints. --peers has the best other whole MoE of a cell, as its columns say; --torch is
what bench/peers_torch.py printed.
"""
import argparse
import csv
import re
import sys

TOKENS = (1, 8, 32, 128, 512, 2048, 8192)
# time / floor to reach, by format and number of tokens; set for an H200
FP8 = (1.90, 1.15, 1.08, 1.08, 1.20, 1.45, 1.60)
FOUR_BIT = (2.80, 1.50, 1.35, 1.35, 1.80, 1.30, 1.45)
GOALS = {
    "bf16": (1.45, 1.08, 1.03, 1.03, 1.10, 1.25, 1.40),
    "fp8pt": FP8,
    "fp8blk": FP8,
    "mxfp8": (2.00, 1.20, 1.12, 1.12, 1.50, 1.30, 1.45),
    "nvfp4": FOUR_BIT,
    "nvfp4tok": FOUR_BIT,
    "mxfp4": FOUR_BIT,
}
SHAPES = ("qwen3-30b-a3b", "deepseek-v3-tp8", "deepseek-v3-ep8", "nemotron-3-nano", "nemotron-3-super")
TORCH = {"bf16": "torch-bf16", "fp8pt": "torch-fp8row", "fp8blk": "torch-fp8row"}
CELL = re.compile(r"(\S.*?) +(\S+) +T=(\d+) +([\d.]+) us +floor +([\d.]+) (\w+) +x[\d.]+ +(\S.*?) s(\d)(?:,(\d))?$")
REPACK = re.compile(r"(\S+) +(\S+) +repack +([\d.]+) ms .* ([\d.]+) TB/s +(\d+) % of copy")
TORCH_CELL = re.compile(r"(\S+) (torch-\S+) T=(\d+) ([\d.]+) us")


def cells(lines):
    """{(shape, format, T): (us, floor us, what bounds the floor, tile)}"""
    found = {}
    for match in filter(None, (CELL.match(line.strip()) for line in lines)):
        shape, kind, tokens, us, floor, bound, tile, s1, s2 = match.groups()
        splits = "" if {s1, s2} <= {"1", None} else f" s{s1}" + (f",{s2}" if s2 else "")
        found[shape, kind, int(tokens)] = (float(us), float(floor), bound, tile + splits)
    if not found:
        sys.exit("moe_table.py: no cell of bench/moe_sm90 on the standard input")
    return found


def row(*columns):
    return "| " + " | ".join(str(c) for c in columns) + " |"


def head(*columns):
    return row(*columns) + "\n|" + "---|" * len(columns)


def peers_of(path):
    if path is None:
        return {}
    with open(path, newline="") as f:
        return {(r["shape"], r["format"], int(r["tokens"])): (float(r["microseconds"]), r["kernel"]) for r in csv.DictReader(f)}


def torch_of(path):
    if path is None:
        return {}
    with open(path) as f:
        return {(m[1], m[2], int(m[3])): float(m[4]) for m in map(TORCH_CELL.match, f) if m}


def print_cells(lines, o):
    goal_of = {(kind, t): goal for kind, goals in GOALS.items() for t, goal in zip(TOKENS, goals)}
    found = {k: v for k, v in cells(lines).items() if k[0] in SHAPES and k[1:] in goal_of}
    peers, torch = peers_of(o.peers), torch_of(o.torch)
    met = {key: us / floor <= goal_of[key[1:]] for key, (us, floor, _, _) in found.items()}
    ahead = {key: found[key][0] < peers[key][0] for key in found if key in peers}
    print(f"{sum(met.values())} of {len(met)} cells are met"
          + (f"; {sum(ahead.values())} of {len(ahead)} with a peer are ahead of it" if ahead else "") + ".\n\n## Cells met\n")
    print(head("format", *(f"T={t}" for t in TOKENS)))
    for kind in GOALS:
        columns = []
        for t in TOKENS:
            goals, others = ([of[s, kind, t] for s in SHAPES if (s, kind, t) in of] for of in (met, ahead))
            columns.append(f"{sum(goals)}/{len(goals)} goal" + (f", {sum(others)}/{len(others)} peer" if others else ""))
        print(row(kind, *columns))
    print("\n## All cells")
    for shape in SHAPES:
        print(f"\n### {shape}\n")
        print(head("format", "T", "us", "floor us", "ratio", "goal", "", *(["best peer us"] if peers else []),
                   *(["torch us"] if torch else []), "tile"))
        for (s, kind, t), (us, floor, bound, tile) in found.items():
            if s != shape:
                continue
            goal, extra = goal_of[kind, t], []
            if peers:
                other = peers.get((s, kind, t))
                extra.append("-" if other is None else f"{other[0]:g} {other[1]} "
                             + ("(ahead)" if ahead[s, kind, t] else f"(behind x{us / other[0]:.2f})"))
            if torch:
                extra.append(f"{torch[s, TORCH[kind], t]:.0f}" if (s, TORCH.get(kind), t) in torch else "-")
            verdict = "met" if met[s, kind, t] else f"x{us / floor / goal:.2f} of goal"
            print(row(kind, t, f"{us:.1f}", f"{floor:.1f} {bound}", f"{us / floor:.2f}", f"{goal:.2f}", verdict, *extra, tile))


def print_sums(lines, o):
    found = cells(lines)
    print(head("shape", "format", *(f"T={t}" for t in TOKENS)))
    for shape in SHAPES:
        for kind in ("fp8pt", "fp8blk"):
            pairs = [(found[shape, kind + "32", t][0], found[shape, kind, t][0]) for t in TOKENS]
            print(row(shape, kind, *(f"{us:.1f} ({us / other:.2f})" for us, other in pairs)))


def print_repack(lines, o):
    found = {(m[1], m[2]): (m[3], m[4], m[5]) for m in map(REPACK.match, lines) if m}
    print(head("format", "Qwen3 layer, ms", "TB/s", "of copy", "DeepSeek-V3 TP8, EP8", "Nemotron-3-Nano", "Nemotron-3-Super"))
    for kind in ("bf16", "fp8pt", "fp8blk", "mxfp8", "nvfp4", "mxfp4"):
        part = {shape: found[shape, kind][2] + " %" for shape in SHAPES}
        ms, rate, _ = found[SHAPES[0], kind]
        print(row(kind, ms, rate, part[SHAPES[0]], f"{part[SHAPES[1]]}, {part[SHAPES[2]]}", part[SHAPES[3]], part[SHAPES[4]]))


def print_dense(lines, o):
    print(head("matrix", "format", "T", "us", "floor us", "ratio", "kernel or tile"))
    for (name, kind, t), (us, floor, bound, tile) in cells(lines).items():
        if kind in GOALS and t in (1, 8, 32, 128, 512, 8192):
            print(row(name, kind, t, f"{us:.1f}", f"{floor:.1f} {bound}", f"{us / floor:.2f}", tile))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=list(TABLES))
    parser.add_argument("--peers", metavar="CSV", help="of `cells`")
    parser.add_argument("--torch", metavar="LOG", help="of `cells`")
    o = parser.parse_args()
    try:
        TABLES[o.table](sys.stdin, o)
    except KeyError as missing:
        sys.exit(f"moe_table.py: the standard input has no cell {missing}; run bench/moe_sm90 with all shapes, formats and tokens")


TABLES = {"cells": print_cells, "sums": print_sums, "repack": print_repack, "dense": print_dense}

if __name__ == "__main__":
    main()
