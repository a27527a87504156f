# SPDX-License-Identifier: Apache-2.0
"""Hours of random clients against `sluice serve`, and whether anything grows.

Rounds of load alternate with silence. In the silence a server must hold nothing for anybody: no answer runs or waits,
no block is in use (cached ones are free to be taken), descriptors and threads are as many as at the start, and the
greedy text of a known prompt is what it was. Resident memory may not grow, by this rule:

  the first fifth of the rounds is not looked at (buffers, caches and the allocator's arenas fill up);
  the median of the later half's samples <= the median of the earlier half's + SLACK MiB + 64 bytes per request of the later half

Medians, because single samples swing with the reloads between them. 64 bytes is less than the smallest thing that a
request owns (a string, a map's node), so one leaked object per request shows as soon as the requests outnumber the slack,
which is what the allocator's arenas move by themselves. The servers run with glibc's thresholds fixed (ALLOCATOR):
by themselves they rise to the size of the largest freed block, so that a reload leaves up to a small model's weights in a
fragmented heap (a step of 24 MiB was seen) and hides what the server holds.

A second server speculates, if there is a model with a multi-token-prediction layer (--mtp-model, or
tiny-deepseek-v3 in $SLUICE_TEST_MODELS).

Exit codes: 0 nothing grew and every answer was right; 1 something did, or was not (the last lines say what);
2 wrong usage; 3 a server could not be started or ended by itself.
"""
import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from checkpoint_bytes import read_checkpoint  # noqa: E402
from scripted_model import TOOL_TEMPLATE  # noqa: E402
from serve_driver import ALLOCATOR, Server  # noqa: E402
from soak_clients import Client  # noqa: E402

BYTES_PER_REQUEST = 64
GRAMMARS = 300  # more than a server keeps compiled
SETTLE_SECONDS = 20  # from the last client's end until the server must be idle; a step takes far less
PROMPT = "Henry meditated awhile all to himself early the next morning as"


def say(line):
    print(f"[{time.strftime('%H:%M:%S')}] {line}", flush=True)


class Watched:
    """A server, its clients, and what it held in each silence."""

    def __init__(self, name, program, model, words, clients, seed, grammars):
        self.name = name
        template = tempfile.NamedTemporaryFile("w", suffix=".jinja")  # the models' own know no tools
        template.write(TOOL_TEMPLATE)
        template.flush()
        # A small cache and a short queue: blocks are taken from others, answers pre-empted, requests refused.
        self.server = Server(program, model, "--served-model-name", name, "--max-running-requests", 8,
                             "--max-queued-requests", 24, "--max-total-tokens", 8192, "--context-length", 1024,
                             "--max-connections", 256, "--log-level", "warning", "--chat-template", template.name,
                             "--enable-priority-scheduling", "--allow-weight-update", *words, environment=ALLOCATOR)
        template.close()
        self.process = pathlib.Path(f"/proc/{self.server.process.pid}")
        self.seeds = iter(range(seed * 1_000_000, (seed + 1) * 1_000_000))
        self.clients, self.samples, self.failures, self.counts = clients, [], [], {}
        self.refused = self.requests = 0
        self.greedy = self.answer()
        for _ in range(2):  # the first reload holds two models and leaves room for the next
            status, answer = self.server.post("/update_weights_from_disk", {"model_path": str(model)})
            if status != 200:
                raise RuntimeError(f"{name}: {status} for a reload: {answer}")
        # At least one: it begins the masks' thread.
        self.tensors = read_checkpoint(pathlib.Path(model))
        first = Client(self.server, 1024, next(self.seeds), self.tensors)
        first.fill_grammar_cache(grammars)
        for _ in range(2):  # tensors that came by themselves are kept beside the model
            first.update_tensors(everything=True)
            first.give_memory_back()
        first.close()
        self.settle(None)
        self.descriptors, self.threads = self.held()

    def answer(self):
        body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        status, answer = self.server.post("/v1/completions", body)
        if status != 200:
            raise RuntimeError(f"{self.name}: {status} for the known prompt: {answer}")
        return answer["choices"][0]["text"]

    def held(self):
        return tuple(len(list((self.process / part).iterdir())) for part in ("fd", "task"))

    def memory(self):
        status = (self.process / "status").read_text()
        return tuple(int(re.search(rf"{field}:\s+(\d+)", status)[1]) / 1024 for field in ("VmRSS", "RssAnon"))

    def gauges(self):
        text = self.server.get("/metrics")[2]
        value = lambda name: int(float(re.search(rf"^sluice:{name}\{{.*\}} (\S+)$", text, re.M)[1]))
        return tuple(map(value, ("num_running_reqs", "num_queue_reqs", "num_used_tokens")))

    def settle(self, wanted):
        """Waits until the server is idle, and holds (descriptors, threads) as wanted; what is left over if it never does."""
        end = time.monotonic() + SETTLE_SECONDS
        while True:
            gauges = self.gauges()
            time.sleep(0.05)  # the server closes that connection
            held = self.held()
            if gauges == (0, 0, 0) and wanted in (None, held):
                return gauges, held
            if time.monotonic() > end:
                return gauges, held

    def load(self, until):
        """The clients of one round, as threads."""
        def run(client):
            try:
                client.act()  # at least once: a round may be over before it begins on a busy machine
                while time.monotonic() < until:
                    client.act()
            except Exception as error:  # whatever it is, the client did not get what it should
                self.failures.append(f"{client.doing}: {type(error).__name__}: {error}")
            client.close()
        clients = [Client(self.server, 1024, next(self.seeds), None if i else self.tensors) for i in range(self.clients)]
        threads = [threading.Thread(target=run, args=(c,)) for c in clients]
        return clients, threads

    def count(self, clients):
        for c in clients:
            self.refused += c.refused
            self.requests += sum(c.counts.values())
            for name, n in c.counts.items():
                self.counts[name] = self.counts.get(name, 0) + n

    def sample(self, minutes):
        wanted = (self.descriptors, self.threads)
        gauges, held = self.settle(wanted)
        where = f"after {minutes:.1f} min"
        for what, is_, must in (("running answers", gauges[0], 0), ("waiting answers", gauges[1], 0),
                                ("tokens in used blocks", gauges[2], 0), ("descriptors", held[0], wanted[0]),
                                ("threads", held[1], wanted[1])):
            if is_ != must:
                self.failures.append(f"{where} {is_} {what}, not {must}, after {SETTLE_SECONDS} s of silence")
        if (text := self.answer()) != self.greedy:
            self.failures.append(f"{where} the greedy text is {text!r}, not {self.greedy!r}")
        resident, anonymous = self.memory()
        self.samples.append({"minutes": minutes, "requests": self.requests, "refused": self.refused, "rss": resident,
                             "anonymous": anonymous, "fds": held[0], "threads": held[1], "used": gauges[2],
                             "running": gauges[0]})
        say(f"{self.name}: {minutes:.1f} min, {self.requests} requests ({self.refused} refused), RSS {resident:.1f} MiB, "
            f"{held[0]} descriptors, {held[1]} threads, {gauges[0]} running, {gauges[2]} tokens in used blocks, "
            f"{len(self.failures)} failures")

    def judge_memory(self, slack):
        """One sentence; a failure is noted."""
        kept = self.samples[len(self.samples) // 5:]
        half = len(kept) // 2
        if half == 0:
            return "too few rounds to judge memory"
        early, late = (statistics.median(s["rss"] for s in part) for part in (kept[:half], kept[half:]))
        lowest = [min(s["rss"] for s in part) for part in (kept[:half], kept[half:])]
        requests = kept[-1]["requests"] - kept[half - 1]["requests"]
        bound = slack + BYTES_PER_REQUEST * requests / 2**20
        sentence = (f"RSS: median {early:.1f} MiB in the earlier half and {late:.1f} in the later, {late - early:+.1f} over "
                    f"{requests} requests, allowed {bound:+.1f}; the lowest samples {lowest[0]:.1f} and {lowest[1]:.1f}")
        if late - early > bound and not self.server.sanitized():
            self.failures.append("memory grows: " + sentence)
        return sentence

    def table(self, rows=10):
        """Markdown: some samples over the whole time."""
        lines = ["| min | requests | refused | RSS MiB | of it anonymous | descriptors | threads | running | tokens in used blocks |",
                 "|---|---|---|---|---|---|---|---|---|"]
        n = len(self.samples)
        for i in sorted({round(k * (n - 1) / max(rows - 1, 1)) for k in range(rows)}):
            s = self.samples[i]
            lines.append(f"| {s['minutes']:.1f} | {s['requests']} | {s['refused']} | {s['rss']:.1f} | {s['anonymous']:.1f} | "
                         f"{s['fds']} | {s['threads']} | {s['running']} | {s['used']} |")
        return "\n".join(lines)


def machine(source):
    commit = subprocess.run(["git", "-C", source, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return f"Commit {commit.strip() or 'unknown'}, {os.cpu_count()} cores of {cpu[1] if cpu else 'unknown'}."


def report(o, where, watched, minutes, verdicts):
    words = [f"# A soak of `sluice serve`\n\n    python3 tests/server/soak.py PROGRAM . --minutes {o.minutes:g} --seed {o.seed}\n",
             where,
             f"{minutes:.1f} minutes of load in {len(watched[0].samples)} rounds of {o.round_seconds:g} s, each followed by a "
             f"sample in silence;\nwhat the clients do: tests/server/soak_clients.py, what may not grow: the head of soak.py."]
    for w, verdict in zip(watched, verdicts):
        kinds = ", ".join(f"{n} {k.replace('_', ' ')}" for k, n in sorted(w.counts.items(), key=lambda x: -x[1]))
        words += [f"\n## {w.name}\n", w.table(), f"\n{verdict}. Failures: {len(w.failures)}.\n", f"Requests by kind: {kinds}."]
    return "\n".join(words) + "\n"


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program", type=pathlib.Path)
    p.add_argument("source", type=pathlib.Path, help="the source folder, for the bundled model")
    p.add_argument("--minutes", type=float, default=30, help="of load")
    p.add_argument("--round-seconds", type=float, default=20)
    p.add_argument("--clients", type=int, default=16, help="at once, of each server")
    p.add_argument("--slack-mib", type=float, default=2, help="the allocator's own movement")
    p.add_argument("--mtp-model", type=pathlib.Path)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--report", type=pathlib.Path, help="write the closing tables to this Markdown file")
    p.add_argument("--before-round", help="a shell command before each round, to wait for a free machine")
    o = p.parse_args()
    models = os.environ.get("SLUICE_TEST_MODELS")
    if o.mtp_model is None and models and (pathlib.Path(models) / "tiny-deepseek-v3").is_dir():
        o.mtp_model = pathlib.Path(models) / "tiny-deepseek-v3"
    return o


def main():
    o = arguments()
    watched, where = [], machine(o.source)
    grammars = GRAMMARS if o.minutes >= 5 else 1
    try:
        watched.append(Watched("tiny-nemotron-h", o.program.resolve(), o.source / "models" / "tiny-nemotron-h",
                               ("--dtype", "float32"), o.clients, o.seed, grammars))
        if o.mtp_model:
            watched.append(Watched(o.mtp_model.name + " with NEXTN", o.program.resolve(), o.mtp_model,
                                   ("--dtype", "float32", "--speculative-algorithm", "NEXTN", "--speculative-num-steps", 2),
                                   o.clients, o.seed + 1, grammars))
        loaded = 0.0
        while loaded < 60 * o.minutes and not any(w.failures for w in watched):
            if o.before_round:
                subprocess.run(o.before_round, shell=True, check=True)
            begin = time.monotonic()
            rounds = [(w, *w.load(begin + min(o.round_seconds, 60 * o.minutes - loaded))) for w in watched]
            threads = [t for _, _, some in rounds for t in some]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            loaded += time.monotonic() - begin
            for w, clients, _ in rounds:
                w.count(clients)
                w.sample(loaded / 60)
        verdicts = [w.judge_memory(o.slack_mib) for w in watched]
        for w in watched:
            if (code := w.server.stop()) != 0:
                w.failures.append(f"exit code {code} after SIGTERM")
    except (AssertionError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        say(f"a server failed: {type(error).__name__}: {error}")
        for w in watched:
            say(f"{w.name}: {w.failures[:3]}; its log ends with: {w.server.log()[-2000:]}")
        return 3
    finally:
        for w in watched:
            w.server.close()
    text = report(o, where, watched, loaded / 60, verdicts)
    print(text)
    if o.report:
        o.report.write_text(text)
    failures = [f"{w.name}: {f}" for w in watched for f in w.failures]
    for f in failures[:20]:
        say("FAILED " + f)
    say("failed" if failures else "passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
