#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long the GPU does nothing between two steps of the engine.

    bench/step_gaps.py FOLDER [--layers 8] [--batch-size 64] [--tokens 96]

A checkpoint of random weights in the shape of Qwen3-30B-A3B goes to FOLDER and is decoded by sluice_moe.Engine under
torch.profiler, which records when each kernel begins and ends. A step is what one launch of a CUDA graph began. Prints, in
microseconds, the median step, what lies between the last kernel of a step and the first of the next, and how much of that no
kernel and no copy fills; then what runs there, of the pair of steps with the median distance. Recording takes time of its own,
so the figures are bounds from above.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT.parent / "python"))


def activities(trace):
    """(begin, end, launch, name) of every kernel, copy and fill on the GPU, by their begin."""
    events = json.loads(trace.read_text())["traceEvents"]
    return sorted((e["ts"], e["ts"] + e["dur"], e["args"].get("correlation"), e["name"])
                  for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))


def steps_of(found, least):
    """(begin, end) of the launches that began at least `least` kernels, in order."""
    by_launch = {}
    for begin, end, launch, _ in found:
        by_launch.setdefault(launch, []).append((begin, end))
    return sorted((min(b for b, _ in k), max(e for _, e in k)) for k in by_launch.values() if len(k) >= least)


def idle(found, begin, end):
    """What nothing fills of the time from begin to end."""
    total, at = 0.0, begin
    for b, e, _, _ in found:
        if e <= at or b >= end:
            continue
        total += max(0.0, b - at)
        at = max(at, e)
    return total + max(0.0, end - at)


def main():
    o = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    o.add_argument("folder", type=pathlib.Path)
    o.add_argument("--layers", type=int, default=8)
    o.add_argument("--batch-size", type=int, default=64)
    o.add_argument("--tokens", type=int, default=96)
    o = o.parse_args()
    subprocess.run([sys.executable, ROOT / "random_checkpoint.py", o.folder, str(o.layers)], check=True)
    from model_serve import write_tokenizer
    write_tokenizer(o.folder)

    import torch
    import sluice_moe
    torch.zeros(1, device="cuda")
    prompts = [[(64 * i + t) * 7919 % 100000 for t in range(64)] for i in range(o.batch_size)]
    asked = {"temperature": 0, "max_new_tokens": o.tokens, "ignore_eos": True}
    with sluice_moe.Engine(o.folder, device="cuda", max_running_requests=o.batch_size, context_length=1024,
                           max_total_tokens=o.batch_size * 256) as engine:
        engine.generate(input_ids=prompts, sampling_params=asked)  # the graphs are recorded
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            engine.generate(input_ids=prompts, sampling_params=asked)
            torch.cuda.synchronize()
    trace = o.folder / "trace.json"
    profile.export_chrome_trace(str(trace))
    found = activities(trace)
    steps = steps_of(found, 4 * o.layers)[o.tokens // 4 :]
    pairs = list(zip(steps, steps[1:]))
    print(f"{len(found)} activities, {len(steps)} steps of {o.batch_size} sequences and {o.layers} layers")
    print(f"step {statistics.median(e - b for b, e in steps):.1f} us, from its end to the next "
          f"{statistics.median(b[0] - a[1] for a, b in pairs):.2f} us, of it idle {statistics.median(idle(found, a[1], b[0]) for a, b in pairs):.2f} us")
    a, b = sorted(pairs, key=lambda pair: pair[1][0] - pair[0][1])[len(pairs) // 2]
    for begin, end, _, name in found:
        if a[1] <= begin < b[0]:
            short = name.replace("(anonymous namespace)::", "").split("(")[0].replace("void ", "")
            print(f"  {begin - a[1]:6.2f} to {end - a[1]:6.2f} us: {short}")


if __name__ == "__main__":
    main()
