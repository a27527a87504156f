#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Serving on the CPU: throughput and latency by concurrency, the scheduler's share of a step, what streaming adds, HTTP.

    bench/serve_cpu.py measure PART --program build/ci/bin/sluice --models DIR --state FILE    # each part by itself, so
    bench/serve_cpu.py table --state FILE                                                      # that it fits a quiet minute

PART is a folder of --models, or real-shape[:CONCURRENCIES] (Qwen3-30B-A3B's widths, two layers, random weights),
overhead:MODEL, scheduler (bench/engine_scheduler beside the program), streaming:MODEL or http:MODEL (needs wrk); MODEL
is a folder of --models or real-shape. Results of parts measured before are kept in the state file, a real-shape's
concurrencies too. `table` prints them as Markdown.
"""
import argparse
import contextlib
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

from model_shapes import QWEN3_SMALL

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "server"))
from serve_driver import Server  # noqa: E402

CONCURRENCIES = (1, 2, 4, 8, 16, 32)
HTTP_BODY = 'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\nwrk.body = \'%s\'\n'


class Bench:
    def __init__(self, o, folder):
        self.program, self.models, self.folder = o.program.resolve(), o.models, pathlib.Path(folder)

    def json_of(self, *words):
        return json.loads(subprocess.run([self.program, *map(str, words)], capture_output=True, text=True, check=True).stdout)

    def model_words(self, name):
        if name != "real-shape":
            return ["--model-path", self.models / name]
        path = self.folder / name  # any tokenizer of its vocabulary's size serves
        if not path.is_dir():
            path.mkdir()
            (path / "config.json").write_text(json.dumps(QWEN3_SMALL))
            for file in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(self.models / "tiny-qwen3-moe" / file, path / file)
        return ["--model-path", path, "--load-format", "dummy"]

    @contextlib.contextmanager
    def server(self, name, running):
        words = self.model_words(name)
        with contextlib.closing(Server(self.program, words[1], *words[2:], "--served-model-name", "m", "--log-level", "warning",
                                       "--max-running-requests", running)) as server:
            yield server

    def load(self, server, concurrency, prompts, length, *words):
        r = self.json_of("bench", "serving", "--base-url", f"http://127.0.0.1:{server.port}", "--json", "--num-prompts", prompts,
                         "--max-concurrency", concurrency, "--random-input-len", length, "--random-output-len", length, *words)
        if r["failed"]:
            raise SystemExit(f"{r['failed']} requests failed")
        return r

    # ---- the parts; each gives what the state keeps

    def concurrency(self, name, counts, old):
        real = name == "real-shape"
        length = 32 if real else 64
        out = {"length": length, **old, "rows": dict(old.get("rows", {}))}
        with self.server(name, max(CONCURRENCIES)) as server:
            self.load(server, 4, 4, length)  # warm-up
            for c in counts:
                before = histograms(server)
                out["rows"][str(c)] = self.load(server, c, (2 if real else 4) * c if c > 2 else 4 if real else 16, length)
                if c == 1:  # one sequence's decode, by the engine's own clock
                    after, name = histograms(server), "inter_token_latency_seconds"
                    out["decode_tok_s"] = (after[name][1] - before[name][1]) / (after[name][0] - before[name][0])
        return out

    def overhead(self, name):
        real = name == "real-shape"
        with self.server(name, 64) as server:
            self.load(server, 4, 4, 16)
            before = histograms(server)
            self.load(server, 64, 64 if real else 256, 16 if real else 64)
            after = histograms(server)
        seconds = {k: after[k][0] - before[k][0] for k in after if k != "inter_token_latency_seconds"}
        steps = after["step_seconds"][1] - before["step_seconds"][1]
        return {"steps": steps, **{k: 1e6 * v / steps for k, v in seconds.items()}}  # microseconds per step

    def scheduler(self):
        lines = subprocess.run([self.program.parent / "engine_scheduler"], capture_output=True, text=True, check=True).stdout
        return [json.loads(line) for line in lines.splitlines()]

    def streaming(self, name):
        runs = {"stream": [], "whole": []}
        with self.server(name, 32) as server:
            self.load(server, 32, 64, 64)
            for i in range(10):  # in turn, so that a disturbance hits both
                how = "whole" if i % 2 else "stream"
                r = self.load(server, 32, 64, 64, *(["--disable-stream"] if i % 2 else []))
                runs[how].append((r["mean_e2e_latency_ms"], r["output_throughput"]))
        return {k: [statistics.median(x) for x in zip(*v)] for k, v in runs.items()}

    def http(self, name):
        out = {}
        with self.server(name, 32) as server:
            for what, path, body in (("/health", "/health", None), ("/v1/models", "/v1/models", None),
                                     ("one-token completion", "/v1/completions", {"prompt": "Once", "max_tokens": 1})):
                words = []
                if body:
                    script = self.folder / "post.lua"
                    script.write_text(HTTP_BODY % json.dumps(body))
                    words = ["-s", script]
                text = subprocess.run(["wrk", "-t1", "-c32", "-d6s", "--latency", *map(str, words),
                                       f"http://127.0.0.1:{server.port}{path}"], capture_output=True, text=True, check=True).stdout
                if "Non-2xx" in text:
                    raise SystemExit(text)
                out[what] = [float(re.search(r"Requests/sec:\s+(\S+)", text)[1]), *(re.search(rf"{p}%\s+(\S+)", text)[1]
                                                                                    for p in (50, 99))]
        return out


def histograms(server):
    """(sum, count) of the time between tokens and of what a step is made of."""
    text = server.get("/metrics")[2]
    value = lambda name: float(re.search(rf"^sluice:{name}\{{.*\}} (\S+)$", text, re.M)[1])
    return {k: (value(k + "_sum"), value(k + "_count")) for k in ("inter_token_latency_seconds", "step_seconds", "schedule_seconds",
                                                                          "overhead_seconds")}


def measure(o):
    state = json.loads(o.state.read_text()) if o.state.exists() else {}
    kind, _, rest = o.part.partition(":")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(o, folder)
        if kind in ("overhead", "streaming", "http"):
            state[o.part] = getattr(bench, kind)(rest)
        elif kind == "scheduler":
            state[kind] = bench.scheduler()
        else:
            counts = [int(c) for c in rest.split(",")] if rest else CONCURRENCIES
            state[kind] = bench.concurrency(kind, counts, state.get(kind, {}))
    o.state.write_text(json.dumps(state, indent=1))


def print_table(title, columns, rows):
    """Nothing when there are no rows. Rows are lists of texts."""
    if not rows:
        return
    if title:
        print(f"## {title}\n")
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def table(o):
    state = json.loads(o.state.read_text())
    parts = lambda kind: [(k.split(":")[1], v) for k, v in state.items() if k.startswith(kind + ":")]
    for name, part in state.items():
        if "rows" not in part:
            continue
        one = part["decode_tok_s"]
        print(f"## {name}\n\nPrompts and answers of {part['length']} tokens; one sequence alone decodes {one:.0f} tok/s.\n")
        print_table("", ["concurrency", "requests", "new tok/s", "of ideal", "TTFT ms mean", "p99", "TPOT ms mean", "p99",
                         "ITL ms median", "p99", "E2E ms mean"],
                    [[c, str(r["completed"]), f"{r['output_throughput']:.0f}", f"{r['output_throughput'] / one / int(c):.2f}",
                      f"{r['mean_ttft_ms']:.1f}", f"{r['p99_ttft_ms']:.1f}", f"{r['mean_tpot_ms']:.2f}", f"{r['p99_tpot_ms']:.2f}",
                      f"{r['median_itl_ms']:.2f}", f"{r['p99_itl_ms']:.2f}", f"{r['mean_e2e_latency_ms']:.0f}"]
                     for c, r in sorted(part["rows"].items(), key=lambda x: int(x[0]))])
    print_table("A step's overhead at 64 running requests",
                ["model", "steps", "us per step", "scheduler us", "all but model and sampling us", "share"],
                [[name, f"{r['steps']:.0f}", f"{r['step_seconds']:.0f}", f"{r['schedule_seconds']:.1f}", f"{r['overhead_seconds']:.1f}",
                  f"{r['overhead_seconds'] / r['step_seconds']:.2%}"] for name, r in parts("overhead")])
    print_table("", ["scheduler alone", "running", "drafts", "us median", "us p99"],
                [[r["bench"], str(r["running"]), str(r["drafts"]), f"{r['us_median']:.1f}", f"{r['us_p99']:.1f}"]
                 for r in state.get("scheduler", [])])
    print_table("What streaming adds at concurrency 32",
                ["model", "E2E ms streamed", "whole", "ms per token", "tok/s streamed", "whole"],
                [[name, f"{a:.1f}", f"{b:.1f}", f"{(a - b) / 64:.3f}", f"{rate_a:.0f}", f"{rate_b:.0f}"]
                 for name, r in parts("streaming") for (a, rate_a), (b, rate_b) in [(r["stream"], r["whole"])]])
    for name, part in parts("http"):
        print_table(f"HTTP: wrk, 32 connections, {name}", ["request", "a second", "median", "p99"],
                    [[what, f"{rate:.0f}", median, p99] for what, (rate, median, p99) in part.items()])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(dest="command", required=True)
    m = sub.add_parser("measure")
    m.add_argument("part")
    m.add_argument("--program", type=pathlib.Path, required=True)
    m.add_argument("--models", type=pathlib.Path, required=True)
    t = sub.add_parser("table")
    for s in (m, t):
        s.add_argument("--state", type=pathlib.Path, required=True)
    o = p.parse_args()
    measure(o) if o.command == "measure" else table(o)


if __name__ == "__main__":
    main()
