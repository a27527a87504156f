# SPDX-License-Identifier: Apache-2.0
"""SGLang's model gateway (sglang-router) before two `sluice serve`, one of which is killed.

usage: router_test.py PROGRAM SOURCE_FOLDER [unittest arguments]   exit code 77: the package is not installed
"""
import http.client
import json
import pathlib
import socket
import subprocess
import sys
import threading
import time
import unittest

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
sys.path.insert(0, str(SOURCE / "tests" / "support"))
from client_packages import need  # noqa: E402

need("sglang_router")

from serve_case import CHAT, endless, PROMPT  # noqa: E402
from serve_driver import Server  # noqa: E402

TIMEOUT = 60


def free_ports():
    """Two; others may take them before they are used."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


class WithRouter(unittest.TestCase):
    words = ()  # of the servers
    policy = "cache_aware"

    def setUp(self):
        model = endless(self.__class__)
        self.servers = [Server(PROGRAM, model, "--served-model-name", "tiny", "--dtype", "float32", *self.words) for _ in range(2)]
        for server in self.servers:
            self.addCleanup(server.close)
        self.start_router()
        begin = time.monotonic()
        while True:
            if self.router.poll() is not None:
                self.start_router()
            try:
                status, answer = self.request("GET", "/workers")
                healthy = status == 200 and [w["is_healthy"] for w in answer["workers"]]
                if healthy == [True, True] and self.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200:
                    break
            except OSError:
                pass
            self.assertLess(time.monotonic() - begin, TIMEOUT, "the router is not ready")
            time.sleep(0.2)

    def start_router(self):
        self.port, prometheus = free_ports()
        words = [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(self.port),
                 "--policy", self.policy, "--prometheus-port", str(prometheus), "--health-check-interval-secs", "1",
                 "--worker-startup-check-interval", "1", "--worker-urls", *(f"http://127.0.0.1:{s.port}" for s in self.servers)]
        self.router = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(self.router.wait, TIMEOUT)
        self.addCleanup(self.router.kill)

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

    @staticmethod
    def load(server):
        return server.metric("num_running_reqs") + server.metric("num_queue_reqs")

    def until(self, holds, what):
        begin = time.monotonic()
        while not holds():
            self.assertLess(time.monotonic() - begin, TIMEOUT, what)
            time.sleep(0.02)


class TwoServers(WithRouter):
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


class OneIsKilled(WithRouter):
    words = ("--max-running-requests", 1)
    policy = "round_robin"  # so that both have work

    def test_one_is_killed(self):
        """The killed server runs a stream, and other streams and whole answers wait at it. The router asks the other server
        for all that waited: a stream's head comes with its first token. Of the stream that ran it has passed the head on: it
        cannot ask again, and the stream breaks off without its last line, so that the client knows."""
        whole, streams, threads, begun = {}, {}, [], set()

        def ask(name):
            body = {"prompt": name * 200, "max_tokens": 40, "ignore_eos": True}
            whole[name] = self.request("POST", "/v1/completions", body)[0]

        def stream(name, tokens):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
            status, got = None, b""
            try:
                connection.request("POST", "/v1/completions", json.dumps({
                    "model": "tiny", "prompt": name * 200, "max_tokens": tokens, "ignore_eos": True, "stream": True, "rid": name}),
                    {"Content-Type": "application/json"})
                answer = connection.getresponse()
                status = answer.status
                while piece := answer.read1(65536):
                    begun.add(name)
                    got += piece
            except (OSError, http.client.HTTPException):
                pass  # the connection broke off
            finally:
                connection.close()
                streams[name] = (status, got)

        def start(function, *words):
            """Starts it and waits until it is at a server."""
            threads.append(threading.Thread(target=function, args=words))
            threads[-1].start()
            self.until(lambda: sum(self.load(s) for s in self.servers) == len(threads), f"{words} is at no server")

        # No two prompts begin alike, so that the router spreads them.
        names = iter(chr(c) for c in (*range(ord("A"), ord("Z") + 1), *range(ord("a"), ord("z") + 1)))
        without_end = []  # ended by their names
        while not all(self.load(s) for s in self.servers):
            self.assertLess(len(without_end), 10, "all went to one server")
            without_end.append(next(names))
            start(stream, without_end[-1], 1_000_000)
        self.until(lambda: len(begun) == len(self.servers), "not every server runs a stream")
        first = time.monotonic()
        for _ in range(6):
            start(stream, next(names), 40)
        waiting = self.load(self.servers[0])
        self.assertGreater(waiting, self.servers[0].metric("num_running_reqs"), "no stream waits at the server that is killed")
        for _ in range(6):
            start(ask, next(names))
        self.assertGreater(self.load(self.servers[0]), waiting, "no whole answer waits at the server that is killed")
        self.servers[0].process.kill()
        # After 15 s a stream's head goes out without a token: on a machine as slow as that more than one stream has begun.
        cut = {1} if time.monotonic() - first < 10 else range(1, waiting + 1)

        def ended():
            for name in without_end:
                self.servers[1].post("/abort_request", {"rid": name})
            return not any(t.is_alive() for t in threads)
        self.until(ended, "some answers have no end")
        for name in (next(names) for _ in range(20)):  # the router may not know yet that one is gone
            ask(name)
        self.assertEqual(set(whole.values()), {200}, whole)
        self.assertEqual({status for status, _ in streams.values()}, {200}, streams)
        broken = [name for name, (_, got) in streams.items() if not got.endswith(b"data: [DONE]\n\n")]
        self.assertIn(len(broken), cut, broken)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
