#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A whole model of dummy weights in the server, on one GPU: the time until it is ready, and what is left of the offline
figures with 1 to 256 clients.

    bench/model_serve.py PROGRAM CONFIG_FOLDER [--device cuda] [--clients 1,8,64,256] [--rounds 2] [options of sluice serve]

The folder (bench/model_table.py configs) gets a tokenizer whose every token is a word. Offline is `sluice bench model` of as
many sequences: all prompts, then every step. The same tokens over the same time are asked of the server, whose clients send
their next request when they have the last token of the one before. Both let the routers choose.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import threading
import time

INPUT, OUTPUT = 64, 128


def write_tokenizer(folder):
    """Byte-level: one token for each byte, then words of their number."""
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in visible] + [chr(256 + i) for i in range(256 - len(visible))]
    words = [f"\u0120{i:x}" for i in range(size - len(letters))]
    vocab = {word: i for i, word in enumerate(letters + words)}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocab, "merges": []}}))


class Server:
    """`sluice serve`, and when it printed each line: [(seconds since its start, line)]."""

    def __init__(self, words):
        self.start, self.lines, self.ready = time.monotonic(), [], threading.Event()
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic() - self.start, line.rstrip()))
            if line.startswith("ready:"):
                self.ready.set()
        self.ready.set()

    def url(self):
        self.ready.wait(300)
        for _, line in self.lines:
            if match := re.match(r"ready: (\S+)", line):
                return match[1]
        self.close()
        sys.exit("model_serve.py: the server is not ready:\n" + "\n".join(line for _, line in self.lines))

    def seconds_of(self, prefix):
        return next((at for at, line in self.lines if line.startswith(prefix)), float("nan"))

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.reader.join(5)


def json_lines(words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"model_serve.py: {' '.join(words)}: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def metric(url, name):
    import urllib.request
    page = urllib.request.urlopen(f"{url}/metrics").read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if re.match(rf"\S*{name}(\{{|\s)", line))


def overhead_us(url, before):
    """The mean of everything in a step but the model and the sampling, since `before`."""
    now = [metric(url, "overhead_seconds_" + part) for part in ("sum", "count")]
    steps = now[1] - before[1]
    return now, 1e6 * (now[0] - before[0]) / steps if steps else 0.0


def main():
    o = argparse.ArgumentParser()
    o.add_argument("program")
    o.add_argument("model", type=pathlib.Path)
    o.add_argument("--device", default="cuda")
    o.add_argument("--clients", default="1,8,64,256")
    o.add_argument("--rounds", type=int, default=2, help="requests of each client")
    o, more = o.parse_known_args()
    clients = [int(n) for n in o.clients.split(",")]
    write_tokenizer(o.model)
    common = ["--model-path", str(o.model), "--load-format", "dummy", "--device", o.device]

    begin = time.monotonic()
    rows = json_lines([o.program, "bench", "model", *common, "--input-len", str(INPUT), "--new-tokens", str(OUTPUT),
                       "--repeat", "1", "--batch-size", ",".join(map(str, clients)), "--json", *more])
    offline = {r["batch_size"]: r["batch_size"] * OUTPUT / (r["prefill_ms"] + (OUTPUT - 1) * r["decode_ms"]) * 1e3 for r in rows}
    print(f"offline: {time.monotonic() - begin:.1f} s in all", flush=True)

    most = max(clients)
    server = Server([o.program, "serve", *common, "--port", "0", "--served-model-name", "m", "--log-level", "info",
                     "--context-length", "1024", "--max-running-requests", str(most), "--max-queued-requests", str(2 * most),
                     "--max-total-tokens", str(256 * most), "--chunked-prefill-size", "8192", *more])
    url = server.url()
    print(f"listening after {server.seconds_of('listening'):.2f} s, weights and cache after {server.seconds_of('weights'):.2f} s, "
          f"ready after {server.seconds_of('ready'):.2f} s", flush=True)
    print("\n| clients | tok/s | offline | of it | first token ms | between tokens ms | engine's own us of a step |\n|" + "---|" * 7)
    try:
        before = overhead_us(url, (0, 0))[0]
        for n in clients:
            [r] = json_lines([o.program, "bench", "serving", "--base-url", url, "--json", "--random-input-len", str(INPUT),
                              "--random-output-len", str(OUTPUT), "--num-prompts", str(n * o.rounds), "--max-concurrency", str(n),
                              "--warmup-requests", str(min(n, 2))])
            before, own = overhead_us(url, before)
            rate = r["output_throughput"]
            print(f"| {n} | {rate:.0f} | {offline[n]:.0f} | {rate / offline[n]:.3f} | {r['median_ttft_ms']:.1f} | "
                  f"{r['median_itl_ms']:.2f} | {own:.0f} |", flush=True)
    finally:
        server.close()


if __name__ == "__main__":
    main()
