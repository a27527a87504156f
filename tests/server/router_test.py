# SPDX-License-Identifier: Apache-2.0
"""SGLang's model gateway (sglang-router) before two `sluice serve`, one of which is killed.

usage: router_test.py PROGRAM SOURCE_FOLDER [unittest arguments]   exit code 77: the package is not installed
"""
import http.client
import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
import unittest

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
if importlib.util.find_spec("sglang_router") is None:
    python = SOURCE / "build" / "clients" / "bin" / "python"  # scripts/setup.sh test
    if not python.exists() or "SLUICE_CLIENTS" in os.environ:
        print("skipped: the sglang-router package is not installed; scripts/setup.sh test installs it where PyPI can be reached")
        sys.exit(77)
    os.execve(python, [str(python), *sys.argv], {**os.environ, "SLUICE_CLIENTS": "1"})

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from serve_case import CHAT, endless, PROMPT  # noqa: E402
from serve_driver import Server  # noqa: E402

TIMEOUT = 60


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


class Router(unittest.TestCase):
    def setUp(self):
        model = endless(self.__class__)
        self.servers = [Server(PROGRAM, model, "--served-model-name", "tiny", "--dtype", "float32") for _ in range(2)]
        for server in self.servers:
            self.addCleanup(server.close)
        self.port = free_port()
        words = [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(self.port),
                 "--policy", "cache_aware", "--prometheus-port", str(free_port()), "--health-check-interval-secs", "1",
                 "--worker-startup-check-interval", "1", "--worker-urls", *(f"http://127.0.0.1:{s.port}" for s in self.servers)]
        self.router = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(self.router.wait, TIMEOUT)
        self.addCleanup(self.router.kill)
        begin = time.monotonic()
        while True:
            try:
                status, models = self.request("GET", "/v1/models")
                if status == 200 and self.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200:
                    break
            except OSError:
                pass
            self.assertLess(time.monotonic() - begin, TIMEOUT, "the router is not ready")
            time.sleep(0.2)

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        try:
            # The router asks for the name of the model.
            data = None if body is None else json.dumps({"model": "tiny", **body})
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
            try:
                return answer.status, json.loads(text)
            except ValueError:
                return answer.status, text
        finally:
            connection.close()

    def test_two_servers_as_one(self):
        for path, body in (("/v1/completions", {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}),
                           ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 8, "temperature": 0}),
                           ("/generate", {"text": PROMPT, "sampling_params": {"max_new_tokens": 8, "temperature": 0}})):
            status, answer = self.request("POST", path, body)
            self.assertEqual(status, 200, answer)
            direct = self.servers[0].post(path, body)[1]
            words = lambda a: a["text"] if "text" in a else a["choices"][0].get("text") or a["choices"][0]["message"]["content"]
            self.assertEqual(words(answer), words(direct))
        status, answer = self.request("POST", "/v1/completions", {"prompt": "a", "temperature": -1})
        self.assertEqual(status, 400, answer)
        self.assertIn("temperature", json.dumps(answer))
        # A prompt goes where its beginning is cached.
        shared = "word " * 300
        cached = []
        for i in range(6):
            answer = self.request("POST", "/v1/completions", {"prompt": shared + str(i), "max_tokens": 1})[1]
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        self.assertTrue(all(n > 0 for n in cached[1:]), cached)

    def test_one_is_killed(self):
        outcomes, streams = [], []

        def ask(i):
            outcomes.append(self.request("POST", "/v1/completions", {"prompt": f"{i} time", "max_tokens": 40, "ignore_eos": True})[0])

        def stream(i):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
            got = b""
            try:
                connection.request("POST", "/v1/completions", json.dumps({
                    "model": "tiny", "prompt": chr(65 + i) * 200, "max_tokens": 50_000, "ignore_eos": True, "stream": True}),
                    {"Content-Type": "application/json"})
                answer = connection.getresponse()
                while piece := answer.read1(65536):
                    got += piece
                streams.append((got, None))
            except (OSError, http.client.HTTPException) as error:
                streams.append((got, error))
            finally:
                connection.close()
        threads = [threading.Thread(target=stream, args=(i,)) for i in range(6)]
        for t in threads:
            t.start()
        begin = time.monotonic()
        while not all(s.metric("num_running_reqs") > 0 for s in self.servers):
            self.assertLess(time.monotonic() - begin, TIMEOUT, "all went to one server")
            time.sleep(0.02)
        self.servers[0].process.kill()
        asking = [threading.Thread(target=ask, args=(i,)) for i in range(20)]
        for t in asking:
            t.start()
        for t in asking:
            t.join(TIMEOUT)
        self.servers[1].post("/abort_request", {"abort_all": True})  # that they would end by themselves is far away
        for t in threads:
            t.join(TIMEOUT)
        self.assertEqual(outcomes, [200] * 20)  # what had not begun is tried again elsewhere
        whole = [got for got, error in streams if got.endswith(b"data: [DONE]\n\n")]
        self.assertEqual(len(streams), 6)
        self.assertGreaterEqual(len(whole), 1)  # of the other server
        self.assertLess(len(whole), 6)  # the killed one's: without an end, so that it shows


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
