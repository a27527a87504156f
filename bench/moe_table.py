#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of bench/results/moe_h100.md from what bench/moe_sm90 prints.

    bench/moe_sm90 --replays 10 --bf16-tflops B --fp8-tflops F | bench/moe_table.py > tables.md
"""
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
CELL = re.compile(r"(\S+) +(\S+) +T=(\d+) +([\d.]+) us +floor +([\d.]+) (\w+) +x[\d.]+ +(\S+) s(\d),(\d)")


def cells(lines):
    """{(shape, format, T): (us, floor us, what bounds the floor, tile)} of the cells with a goal."""
    found = {}
    for match in filter(None, map(CELL.match, lines)):
        shape, kind, tokens, us, floor, bound, tile, s1, s2 = match.groups()
        if shape in SHAPES and kind in GOALS and int(tokens) in TOKENS:
            splits = "" if (s1, s2) == ("1", "1") else f" s{s1},{s2}"
            found[shape, kind, int(tokens)] = (float(us), float(floor), bound, tile + splits)
    return found


def main():
    found = cells(sys.stdin)
    if not found:
        sys.exit("moe_table.py: no cell of bench/moe_sm90 on the standard input")
    ratio = {key: us / floor for key, (us, floor, _, _) in found.items()}
    met = {key: r <= GOALS[key[1]][TOKENS.index(key[2])] for key, r in ratio.items()}
    print(f"{sum(met.values())} of {len(met)} cells are met.\n\n## Cells met\n")
    print("| format | " + " | ".join(f"T={t}" for t in TOKENS) + " |\n|" + "---|" * (len(TOKENS) + 1))
    for kind in GOALS:
        columns = [[met[s, kind, t] for s in SHAPES if (s, kind, t) in met] for t in TOKENS]
        print(f"| {kind} | " + " | ".join(f"{sum(c)}/{len(c)}" for c in columns) + " |")
    print("\n## All cells")
    for shape in SHAPES:
        print(f"\n### {shape}\n\n| format | T | us | floor us | ratio | goal | | tile |\n|" + "---|" * 8)
        for (s, kind, t), (us, floor, bound, tile) in found.items():
            if s != shape:
                continue
            goal = GOALS[kind][TOKENS.index(t)]
            verdict = "met" if met[s, kind, t] else f"x{ratio[s, kind, t] / goal:.2f} of goal"
            print(f"| {kind} | {t} | {us:.1f} | {floor:.1f} {bound} | {ratio[s, kind, t]:.2f} | {goal:.2f} | {verdict} | {tile} |")


if __name__ == "__main__":
    main()
