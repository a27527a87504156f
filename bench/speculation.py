#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What drafts gain on a trained model: the server continues the same texts with and without them.

    bench/speculation.py PROGRAM CHECKPOINT [--device cuda] [--clients 1,4] [--tokens 256] [--requests 8]

CHECKPOINT holds valid.txt, whose pieces are the prompts, and has a prediction layer. Each client sends its next request
when it has the last token of the one before; temperature 0. Drafts ask for deterministic runs, so those are the baseline;
the first row is the same without. Prints a table in Markdown: tokens per second, and how many tokens a step gives per sequence.
"""
import argparse
import concurrent.futures
import json
import pathlib
import time
import urllib.request

from model_serve import Server, metric

RUNS = {
    "none, not deterministic": [],
    "none": ["--enable-deterministic-inference"],
    "1": ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", "1", "--speculative-fixed-steps"],
    "2": ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", "2", "--speculative-fixed-steps"],
    "up to 3": ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3"],
}
PROMPT_CHARACTERS = 400


def tokens_of(url, prompt, tokens):
    body = {"text": prompt, "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}}
    request = urllib.request.Request(url + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)["meta_info"]["completion_tokens"]


def measure(url, text, clients, o):
    """Tokens per second of all clients together, and tokens of a verification since the server's start."""
    count = clients * o.requests
    step = max(1, (len(text) - PROMPT_CHARACTERS) // count)
    prompts = [text[i * step : i * step + PROMPT_CHARACTERS] for i in range(count)]
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        list(pool.map(lambda p: tokens_of(url, p, o.tokens), prompts[:clients]))  # graphs, and the number of drafts
        begin = time.monotonic()
        total = sum(pool.map(lambda p: tokens_of(url, p, o.tokens), prompts))
        seconds = time.monotonic() - begin
    return total / seconds, metric(url, "spec_accept_length")


def main():
    o = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    o.add_argument("program")
    o.add_argument("checkpoint", type=pathlib.Path)
    o.add_argument("--device", default="cuda")
    o.add_argument("--clients", default="1,4")
    o.add_argument("--tokens", type=int, default=256)
    o.add_argument("--requests", type=int, default=8, help="of each client")
    o, more = o.parse_known_args()
    clients, text = [int(n) for n in o.clients.split(",")], (o.checkpoint / "valid.txt").read_text()
    print("| clients | drafts | tok/s | x without | tokens of a verification |\n|---|---|---|---|---|")
    base = {}
    for name, words in RUNS.items():
        server = Server([o.program, "serve", "--model-path", str(o.checkpoint), "--device", o.device, "--port", "0",
                         "--max-running-requests", str(max(clients)), *words, *more])
        try:
            url = server.url()
            for n in clients:
                rate, length = measure(url, text, n, o)
                if name == "none":
                    base[n] = rate
                ratio = f"{rate / base[n]:.2f}" if n in base else ""
                print(f"| {n} | {name} | {rate:.0f} | {ratio} | {f'{length:.2f}' if length else ''} |", flush=True)
        finally:
            server.close()


if __name__ == "__main__":
    main()
