# SPDX-License-Identifier: Apache-2.0
"""What the options of `sluice serve` promise, each seen from outside.

usage: options_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import concurrent.futures
import json
import pathlib
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from serve_driver import Server, TIMEOUT, copy_of_model, endless_model, raw_post  # noqa: E402

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
MODEL = SOURCE / "models" / "tiny-nemotron-h"
SANITIZED = any(library in PROGRAM.read_bytes() for library in (b"libasan", b"libtsan"))
PROMPT = "Henry meditated awhile all to himself early the next morning as"


class Options(unittest.TestCase):
    def start(self, *words, model=MODEL, **options):
        server = Server(PROGRAM, model, *words, **options)
        self.addCleanup(server.close)
        return server

    def folder(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-test-"))
        self.addCleanup(shutil.rmtree, folder)
        return folder

    def ok(self, server, path, body):
        status, answer = server.post(path, body)
        self.assertEqual(status, 200, answer)
        return answer

    def text(self, server, **body):
        return self.ok(server, "/v1/completions", {"prompt": PROMPT, "max_tokens": 12, **body})["choices"][0]["text"]

    def info(self, server):
        return json.loads(server.get("/get_model_info")[2])

    def refused(self, code, needle, *words, limits=()):
        result = subprocess.run([PROGRAM, "serve", "--model-path", MODEL, "--port", "0", *map(str, words)],
                                capture_output=True, text=True, timeout=60,
                                preexec_fn=lambda: [resource.setrlimit(w, (v, v)) for w, v in limits])
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertIn(needle, result.stderr)
        return result.stderr


class Determinism(Options):
    def test_one_alone_and_among_others(self):
        """Tokens and log probabilities of one request: alone, among 32, in chunks or whole, with the cache cold or warm."""
        body = {"text": PROMPT + " he went " * 60, "return_logprob": True,
                "sampling_params": {"max_new_tokens": 24, "temperature": 0.9, "sampling_seed": 11, "ignore_eos": True}}

        def answer(server):
            got = self.ok(server, "/generate", body)
            return got["output_ids"], got["meta_info"]["output_token_logprobs"], got["meta_info"]["cached_tokens"] > 0

        seen, warm = [], []
        for words in (("--chunked-prefill-size", 512), ("--chunked-prefill-size", 7), ("--disable-radix-cache",)):
            server = self.start("--enable-deterministic-inference", "--max-running-requests", 40, "--max-queued-requests",
                                64, *words)
            for _ in range(2):  # cold, then warm
                ids, logprobs, cached = answer(server)
                seen.append((ids, logprobs)), warm.append(cached)
            with concurrent.futures.ThreadPoolExecutor(33) as pool:
                others = [pool.submit(self.text, server, prompt=f"{i} word " * (3 * i + 1), max_tokens=40, seed=i,
                                      temperature=1) for i in range(32)]
                seen.append(answer(server)[:2])
                for other in others:
                    other.result()
        self.assertEqual(warm, [False, True, False, True, False, False])
        for other in seen[1:]:
            self.assertEqual(other, seen[0])

    def test_seeds_of_requests_without_one(self):
        fixed = self.start("--enable-deterministic-inference")
        again = self.start("--enable-deterministic-inference")
        texts = {self.text(s, temperature=1) for s in (fixed, fixed, again)}
        self.assertEqual(len(texts), 1)
        self.assertNotEqual(self.text(fixed, temperature=1, seed=1), texts.pop())
        runs = []
        for seed in (5, 5, 6):
            server = self.start("--random-seed", seed)
            runs.append([self.text(server, temperature=1) for _ in range(3)])
            self.assertGreater(len(set(runs[-1])), 1)
        self.assertEqual(runs[0], runs[1])
        self.assertNotEqual(runs[0], runs[2])


class Sizes(Options):
    def test_the_cache(self):
        server = self.start("--max-total-tokens", 256, "--page-size", 32)
        self.assertEqual(server.metric("max_total_num_tokens"), 256)
        self.assertEqual(self.info(server)["context_length"], 256)
        status, answer = server.post("/v1/completions", {"prompt": [7] * 257})
        self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"))
        whole = self.start("--mem-fraction-static", 0.5, "--max-running-requests", 4)
        self.assertEqual(whole.metric("max_total_num_tokens"), 4 * self.info(whole)["context_length"])  # more is no use
        self.assertIn(f"the cache of 256 tokens bounds the context: 256 tokens instead of {self.info(whole)['context_length']}",
                      server.log())
        self.assertNotIn("bounds the context", whole.log())
        self.refused(2, "mem_fraction_static is 0.0001; of ", "--mem-fraction-static", 0.0001)
        self.refused(2, "mem_fraction_static is 0; accepted: more than 0, at most 1", "--mem-fraction-static", 0)
        self.refused(2, "excludes", "--mem-fraction-static", 0.5, "--max-total-tokens", 4096)

    def test_limits_of_requests(self):
        server = self.start("--context-length", 64, "--max-running-requests", 3, "--chunked-prefill-size", 16)
        info = self.info(server)
        self.assertEqual([info[k] for k in ("context_length", "max_running_requests", "chunked_prefill_size")], [64, 3, 16])
        status, answer = server.post("/v1/completions", {"prompt": [7] * 60, "max_tokens": 5})
        self.assertEqual(status, 400)
        self.assertIn("64", answer["error"]["message"])
        server = self.start("--max-request-bytes", 1024)
        self.assertEqual(server.post("/v1/completions", {"prompt": "a" * 2000})[0], 413)

    def test_no_prefix_cache(self):
        server = self.start("--disable-radix-cache")
        body = {"prompt": "word " * 300, "max_tokens": 1}
        for _ in range(2):
            usage = self.ok(server, "/v1/completions", body)["usage"]
            self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], 0)

    @unittest.skipIf(SANITIZED, "a sanitizer reserves terabytes")
    def test_s20_no_memory_for_the_cache(self):
        # 1 TB; and 6 GB, which are more than this process may have, as the system alone knows.
        for tokens, needle in ((1 << 30, "the cache takes"), (6 << 20, "could not allocate")):
            error = self.refused(5, needle, "--max-total-tokens", tokens, limits=[(resource.RLIMIT_AS, 4 << 30)])
            self.assertEqual(len([line for line in error.splitlines() if line.startswith("sluice: ")]), 1, error)

    def test_s20_few_descriptors(self):
        server = self.start(limits=[(resource.RLIMIT_NOFILE, 112)])  # of which 80 are set aside
        idle = [server.connect() for _ in range(40)]
        time.sleep(0.2)
        self.assertEqual(idle[0].recv(1), b"")  # the oldest gave way
        self.text(server)
        for s in idle:
            s.close()


class Names(Options):
    def test_the_address(self):
        server = self.start()
        self.assertEqual(server.host, "127.0.0.1")
        with self.assertRaises(ConnectionRefusedError):  # another address of this machine
            socket.create_connection(("127.0.0.2", server.port), timeout=5)
        every = self.start("--host", "0.0.0.0")
        self.assertIn("without --api-key", every.log())
        self.assertNotIn("--api-key", self.start("--host", "0.0.0.0", "--api-key", "secret").log() + server.log())
        socket.create_connection(("127.0.0.2", every.port), timeout=5).close()

    def test_served_names(self):
        server = self.start("--served-model-name", "one", "--served-model-name", "two")
        self.assertEqual([m["id"] for m in json.loads(server.get("/v1/models")[2])["data"]], ["one", "two"])
        for name, status in (("one", 200), ("two", 200), ("three", 404)):
            self.assertEqual(server.post("/v1/completions", {"model": name, "prompt": "a", "max_tokens": 1})[0], status)

    def test_names_of_the_folder_and_any_name(self):
        ask = lambda server, name: server.post("/v1/completions", {"model": name, "prompt": "a", "max_tokens": 1})
        for path in (str(MODEL), str(MODEL) + "/"):
            server = self.start(model=path)
            self.assertEqual([m["id"] for m in json.loads(server.get("/v1/models")[2])["data"]], [path, MODEL.name])
            for name, status in ((path, 200), (MODEL.name, 200), ("other", 404)):
                self.assertEqual(ask(server, name)[0], status)
            self.assertEqual(ask(server, MODEL.name)[1]["model"], path)
        server = self.start("--served-model-name", "*")
        status, answer = ask(server, "whatever-1")
        self.assertEqual((status, answer["model"]), (200, str(MODEL)))
        self.assertEqual(server.get("/v1/models/whatever-1")[0], 200)
        self.assertNotIn("*", [m["id"] for m in json.loads(server.get("/v1/models")[2])["data"]])
        server = self.start("--served-model-name", "one", "--served-model-name", "*")
        self.assertEqual(ask(server, "two")[1]["model"], "one")

    def test_allowed_hosts(self):
        server = self.start("--allowed-hosts", "friend.example")
        for host, status in (("friend.example", 200), ("friend.example:80", 200), ("evil.example", 403)):
            self.assertEqual(server.request("GET", "/v1/models", headers={"Host": host})[0], status)


class Habits(Options):
    """Options of SGLang and vLLM."""

    def test_what_needs_nothing_done_is_accepted_with_a_line(self):
        server = self.start("--trust-remote-code", "--enable-metrics", "--dtype", "auto", "--disable-cuda-graph",
                            "--enforce-eager", "--skip-server-warmup", "--kv-cache-dtype", "fp8_e4m3", "--dp-size", 1,
                            "--attention-backend", "triton", "--chunked-prefill-size", -1, "--enable-cache-report",
                            "--enable-prompt-tokens-details", "--enable-request-id-headers", "--enable-server-load-tracking",
                            "--tokenizer-worker-num", 4, "--detokenizer-worker-num", 2, "--default-priority-value", 0,
                            "--grammar-backend", "xgrammar", "--runner", "generate", "--api-server-count", 1,
                            "--no-enable-log-requests", "--pp", 1, "--node-rank", 0, "--moe-a2a-backend", "none")
        self.text(server)
        for name in ("--trust-remote-code", "--enable-metrics", "--dp-size 1",
                     "--enable-cache-report", "--enable-prompt-tokens-details", "--enable-request-id-headers",
                     "--tokenizer-worker-num 4", "--default-priority-value 0", "--runner generate", "--pp 1"):
            self.assertIn(name + ": nothing to do, ", server.log())
        info = self.info(server)
        self.assertEqual((info["chunked_prefill_size"], info["dtype"]), (info["context_length"], "bfloat16"))
        self.assertEqual(info["kv_cache_dtype"], "float8_e4m3fn")
        self.refused(2, "--dp-size is 2; accepted: 1", "--dp-size", 2)
        self.refused(2, "--runner is pooling; accepted: generate, the models here make text", "--runner", "pooling")
        self.refused(2, '--kv-cache-dtype is "fp8_e5m2"; accepted: auto, bf16, bfloat16, fp8_e4m3, fp8', "--kv-cache-dtype", "fp8_e5m2")

    def test_the_others_name_their_counterpart(self):
        for words, needle in ((("--max-model-len", 512), "--max-model-len is called --context-length here"),
                              (("--gpu-memory-utilization", 0.9), "is called --mem-fraction-static here"),
                              (("--no-enable-prefix-caching",), "is called --disable-radix-cache here"),
                              (("--tensor-parallel-size", 2), "is called --tp-size here"), (("--seed", 1), "is called --random-seed here"),
                              (("--cuda-graph-bs", 8), "is called --cuda-graph-max-bs here"),
                              (("--revision", "main"), "nothing is downloaded"), (("--enable-torch-compile",), "no torch"),
                              (("--ssl-keyfile", "x"), "a proxy"), (("--enable-lora",), "not available"),
                              (("--root-path", "/x"), "the proxy"), (("--skip-tokenizer-init",), "input_ids"),
                              (("--incremental-streaming-output",), "/v1/completions"),
                              (("--enable-force-include-usage",), "is the field stream_options.include_usage of a request here")):
            self.refused(2, needle, *words)
        help_text = subprocess.run([PROGRAM, "serve", "--help"], capture_output=True, text=True).stdout
        self.assertNotIn("--max-model-len", help_text)


# What the peers' own Grafana dashboards ask for: vLLM 0.33.0, prometheus_grafana/grafana.json and
# dashboards/grafana/{performance,query}_statistics.json below examples/observability; SGLang (commit 0e6ed14),
# examples/monitoring/grafana.json and examples/monitoring/grafana/dashboards/json/sglang-dashboard.json.
DASHBOARDS = """
    vllm:e2e_request_latency_seconds_bucket vllm:e2e_request_latency_seconds_count vllm:e2e_request_latency_seconds_sum
    vllm:generation_tokens_total vllm:inter_token_latency_seconds_bucket vllm:inter_token_latency_seconds_count
    vllm:inter_token_latency_seconds_sum vllm:iteration_tokens_total_count vllm:kv_cache_usage_perc
    vllm:num_requests_running vllm:num_requests_waiting vllm:prompt_tokens_total vllm:request_decode_time_seconds_sum
    vllm:request_generation_tokens_bucket vllm:request_max_num_generation_tokens_sum
    vllm:request_prefill_time_seconds_sum vllm:request_prompt_tokens_bucket vllm:request_queue_time_seconds_sum
    vllm:request_success_total vllm:request_time_per_output_token_seconds_bucket
    vllm:request_time_per_output_token_seconds_count vllm:request_time_per_output_token_seconds_sum
    vllm:time_to_first_token_seconds_bucket vllm:time_to_first_token_seconds_count vllm:time_to_first_token_seconds_sum
    sglang:e2e_request_latency_seconds_bucket sglang:e2e_request_latency_seconds_count
    sglang:e2e_request_latency_seconds_sum sglang:time_to_first_token_seconds_bucket
    sglang:time_to_first_token_seconds_count sglang:time_to_first_token_seconds_sum sglang:num_running_reqs
    sglang:num_queue_reqs sglang:gen_throughput sglang:cache_hit_rate"""


class Observation(Options):
    def test_request_ids(self):
        server = self.start("--log-level", "info", "--api-key", "secret")
        body = {"prompt": "a", "max_tokens": 1}
        ask = lambda path, body, id, key="secret", **more: server.request(
            "POST", path, body, {"X-Request-Id": id, "X-API-Key": key, **more})
        for id, path, body, key, status in (
                ("fine-1", "/v1/completions", body, "secret", 200), ("stream/2", "/v1/completions", {**body, "stream": True}, "secret", 200),
                ("bad=3", "/v1/completions", {**body, "temperature": -1}, "secret", 400), ("key:4", "/v1/completions", body, "x", 401),
                ("path_5", "/nowhere", body, "secret", 404)):
            got, headers, _ = ask(path, body, id, key)
            self.assertEqual((got, headers["X-Request-Id"]), (status, id))
        raw = server.raw(b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: large-6\r\nContent-Length: 999999999\r\n\r\n")
        self.assertIn("413", raw.splitlines()[0])
        self.assertIn("X-Request-Id: large-6", raw)
        for strange in ("", "a b", "x" * 129, "\xe9"):
            own = ask("/v1/completions", body, strange.encode("latin-1"))[1]["X-Request-Id"]
            self.assertRegex(own, r"^req-[0-9a-f]{28}$")
        log = server.log()
        for id, what in (("fine-1", "new tokens"), ("stream/2", "new tokens"), ("bad=3", "POST /v1/completions 400"),
                         ("key:4", "POST /v1/completions 401"), ("path_5", "POST /nowhere 404"), ("large-6", "413")):
            lines = [line for line in log.splitlines() if line.startswith(id + ":")]
            self.assertEqual(len(lines), 1, log)
            self.assertIn(what, lines[0])

    def test_names_for_others_dashboards(self):
        server = self.start("--metrics-prefix", "sglang,vllm", "--page-size", 32, "--max-total-tokens", 4096)
        self.text(server)
        value = lambda name: [float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + "{")]
        text, begin = server.get("/metrics")[2], time.monotonic()
        while sum(value("vllm:request_success_total")) < 1:  # the answer may come before the numbers of its last step
            self.assertLess(time.monotonic() - begin, TIMEOUT)
            text = server.get("/metrics")[2]
        self.assertNotIn("sluice:", text)
        names = {line.split("{")[0] for line in text.splitlines() if "{" in line}
        for name in DASHBOARDS.split():
            self.assertIn(name, names)
        for name in ("sglang:token_usage", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"):  # routers'
            self.assertIn(name, names)
        self.assertEqual(value("vllm:request_prompt_tokens_sum"), value("vllm:prompt_tokens_total"))
        self.assertEqual(value("vllm:request_generation_tokens_sum"), value("vllm:generation_tokens_total"))
        for name in ("request_max_num_generation_tokens", "request_prefill_time_seconds", "request_decode_time_seconds",
                     "request_time_per_output_token_seconds"):
            self.assertEqual(value(f"vllm:{name}_count"), [1], name)
        for prefix in ("sglang", "vllm"):
            info = next(line for line in text.splitlines() if line.startswith(prefix + ":cache_config_info{"))
            for label in ('block_size="32"', 'num_gpu_blocks="128"', 'page_size="32"', 'num_pages="128"'):
                self.assertIn(label, info)
        self.refused(2, "--metrics-prefix", "--metrics-prefix", "other")


class Files(Options):
    def test_sampling_defaults(self):
        model = copy_of_model(MODEL, self.folder() / "model")
        config = model / "generation_config.json"
        values = {**json.loads((MODEL / "generation_config.json").read_text()), "temperature": 0.25, "top_k": 3, "top_p": 0.5}
        config.unlink()
        config.write_text(json.dumps(values))
        server = self.start("--log-level", "info", model=model)
        defaults = self.info(server)["default_sampling_params"]
        self.assertEqual([defaults[k] for k in ("temperature", "top_k", "top_p")], [0.25, 3, 0.5])
        self.assertIn("sampling defaults from", server.log())
        said = {"temperature": 0.25, "top_k": 3, "top_p": 0.5, "seed": 3}
        self.assertEqual(self.text(server, seed=3), self.text(server, **said))
        own = self.info(self.start("--sampling-defaults", "openai", model=model))["default_sampling_params"]
        self.assertEqual((own["temperature"], own["top_p"]), (1, 1))

    def test_reload_from_a_folder(self):
        folder = self.folder()
        same, other = copy_of_model(MODEL, folder / "same"), folder / "other"
        other.symlink_to(SOURCE / "tests" / "fixtures" / "qwen3-moe")
        shutil.copytree(SOURCE / "tests" / "fixtures" / "qwen3-moe", folder / "shapes")
        server = self.start("--weights-folder", folder)
        before = self.text(server, temperature=0)
        update = lambda path: server.post("/update_weights_from_disk", {"model_path": str(path)})
        self.assertEqual(update(same)[0], 200)
        self.assertEqual(self.info(server)["weight_version"], "1")
        status, answer = update(folder / "shapes")
        self.assertEqual((status, answer["success"]), (400, False))
        self.assertIn("other shapes", answer["message"])
        self.assertEqual(update(other)[0], 400)  # the link leads out of the folder
        self.assertEqual(update(folder / "nowhere")[0], 400)
        self.assertEqual(self.info(server)["weight_version"], "1")
        self.assertEqual(self.text(server, temperature=0), before)

    def test_the_log_says_how_much_and_never_what(self):
        server = self.start("--log-level", "info")
        secret = "quincunx zephyr"
        self.text(server, prompt=secret)
        server.post("/v1/completions", {"prompt": secret, "temperature": -1})
        server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": secret}], "max_tokens": 2})
        self.assertEqual(server.stop(), 0)
        log = server.log()
        self.assertEqual(log.count(" new tokens"), 2, log)  # a line for each answer
        for word in secret.split():
            self.assertNotIn(word, log)

    def test_s20_a_log_that_cannot_be_written(self):
        with open("/dev/full", "w") as full:
            process = subprocess.Popen([PROGRAM, "serve", "--model-path", str(MODEL), "--port", "0", "--log-level", "info"],
                                       stdout=subprocess.PIPE, stderr=full, text=True)
            try:
                lines = [process.stdout.readline(), process.stdout.readline()]
                self.assertTrue(lines[1].startswith("ready: "), lines)
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(30), 0)
            finally:
                process.kill()
                process.wait()
                process.stdout.close()


class Signals(Options):
    def test_s18_sigterm_while_loading(self):
        model = self.folder()
        config = json.loads((SOURCE / "tests" / "fixtures" / "qwen3-moe" / "config.json").read_text())
        config.update(hidden_size=512, moe_intermediate_size=512, num_experts=128, num_local_experts=128,
                      num_hidden_layers=12, vocab_size=4096)  # seconds
        (model / "config.json").write_text(json.dumps(config))
        (model / "tokenizer.json").symlink_to(MODEL / "tokenizer.json")
        for which in (signal.SIGTERM, signal.SIGINT):
            server = self.start("--load-format", "dummy", model=model, wait=False)
            self.assertEqual(server.get("/health")[0], 503)
            server.process.send_signal(which)
            self.assertEqual(server.process.wait(TIMEOUT), 130)

    def test_s18_sigint_in_a_long_prompt(self):
        # A prompt of minutes: it must not be over before a busy machine looks.
        server = self.start("--shutdown-timeout", 0, "--chunked-prefill-size", 1, model=endless_model(MODEL, self.folder() / "model"))
        with server.connect() as s:
            s.sendall(raw_post("/v1/completions", {"prompt": [7] * 200_000, "max_tokens": 40}))
            server.wait_for_metric("num_running_reqs", 1)
            begin = time.monotonic()
            server.process.send_signal(signal.SIGINT)
            self.assertEqual(server.process.wait(TIMEOUT), 0)
            self.assertLess(time.monotonic() - begin, 30)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
