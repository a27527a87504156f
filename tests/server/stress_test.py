# SPDX-License-Identifier: Apache-2.0
"""`sluice serve` under stress, its start and its end: S8 to S10, S18 and S20 of docs/robustness.md.

usage: stress_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import concurrent.futures
import itertools
import json
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from serve_case import CHAT, endless, main, MODEL, NEVER_ENDS, PROGRAM, PROMPT, WithServer  # noqa: E402
from serve_driver import ALLOCATOR, Server, TIMEOUT, raw_post  # noqa: E402


class Stress(WithServer):
    words = ("--max-running-requests", 2, "--max-queued-requests", 3, "--max-connections", 100)
    endless = True

    def begin(self, reading=False):
        """A stream whose first event has come; the socket. One that nobody goes on reading is cut off after a while."""
        s = self.server.connect()
        s.sendall(raw_post("/v1/completions", NEVER_ENDS))
        received = b""
        while b"data: " not in received:
            received += s.recv(65536)
        if reading:
            def read():
                while s.recv(65536):
                    pass
            threading.Thread(target=read, daemon=True).start()
        return s

    def test_abort(self):
        self.refused("/abort_request", {}, "rid")
        self.refused("/abort_request", {"rid": "nobody"}, "rid", status=404)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for name, how in (("rid", {"rid": "long"}), ("request_id", {"rid": "long"}), ("rid", {"abort_all": True})):
                self.server.wait_until_idle()  # the last round's end has been counted
                body = {**NEVER_ENDS, "stream": False, name: "long"}
                running = pool.submit(self.ok, "/v1/completions", body)
                self.server.wait_for_metric("num_running_reqs", 1)
                self.refused("/v1/completions", body, "rid")
                self.assertTrue(self.ok("/abort_request", how)["success"])
                self.assertEqual(running.result()["choices"][0]["finish_reason"], "abort")
        self.server.wait_until_idle()

    def test_s8_a_client_that_leaves_frees_its_slot(self):
        for end in ("close", "reset"):
            s = self.begin()
            self.server.wait_for_metric("num_running_reqs", 1)
            if end == "reset":
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            s.close()
            self.server.wait_until_idle()  # they never end by themselves
        s = self.server.connect()  # a whole answer: nothing is ever written before the end
        s.sendall(raw_post("/v1/completions", {**NEVER_ENDS, "stream": False}))
        self.server.wait_for_metric("num_running_reqs", 1)
        s.close()
        self.server.wait_until_idle()
        taken, begin = self.server.metric("num_requests_total"), time.monotonic()
        s = self.server.connect()  # in the prompt
        s.sendall(raw_post("/v1/completions", {"prompt": "word " * 1900, "max_tokens": 1}))
        s.close()
        while self.server.metric("num_requests_total") == taken and time.monotonic() - begin < 5:
            time.sleep(0.01)  # it need not be taken, but if it is, then before this test ends
        for gauge in ("num_running_reqs", "num_queue_reqs", "num_used_tokens"):
            self.server.wait_for_metric(gauge, 0)

    def test_s9_full_queue(self):
        streams = [self.begin(reading=True) for _ in range(2)]
        with concurrent.futures.ThreadPoolExecutor(10) as pool:
            waiting = [pool.submit(self.server.request, "POST", "/v1/completions",
                                   {"prompt": "a", "max_tokens": 1, "rid": f"r{i}"}) for i in range(10)]
            self.server.wait_for_metric("num_queue_reqs", 3)
            self.assertEqual(self.server.get("/health")[0], 200)
            refused = itertools.islice(concurrent.futures.as_completed(waiting, timeout=60), 7)
            for status, headers, text in (w.result() for w in refused):
                self.assertEqual((status, headers["Retry-After"]), (503, "1"))
                self.assertEqual(json.loads(text)["error"]["type"], "overloaded_error")
            for s in streams:
                s.shutdown(socket.SHUT_RDWR)
            self.assertEqual(sorted(w.result()[0] for w in waiting), [200] * 3 + [503] * 7)
        self.assertGreaterEqual(self.server.metric("num_refused_requests_total"), 7)

    def test_s10_half_open_requests_keep_nobody_waiting(self):
        sockets = [self.server.connect() for _ in range(90)]
        for s in sockets:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: local")
        begin = time.monotonic()
        for _ in range(20):
            self.assertEqual(self.server.get("/health")[0], 200)
        self.assertLess(time.monotonic() - begin, 10)  # the time that a head may take
        self.ok("/v1/completions", {"prompt": "a", "max_tokens": 1})
        for s in sockets:
            s.close()

    def test_s11_long_bodies_do_not_delay_short_ones(self):
        for long in (b'{"prompt": "' + b"word " * 2_000_000 + b'"}', b'{"prompt": [' + b"1234," * 2_000_000 + b"1]}"):
            sent = threading.Semaphore(0)

            def ask(body=long, sent=sent):
                s = self.server.connect()
                s.settimeout(4 * TIMEOUT)  # one is read after another
                s.sendall(raw_post("/v1/completions", body))
                sent.release()
                return b"".join(iter(lambda: s.recv(65536), b""))
            ahead = 0
            for _ in range(5):  # a busy machine may let the short ones rest
                with concurrent.futures.ThreadPoolExecutor(4) as pool:
                    running = [pool.submit(ask) for _ in range(4)]
                    for _ in running:
                        self.assertTrue(sent.acquire(timeout=TIMEOUT))
                    # After the long ones it would be none: each of them takes as long as a hundred short ones or more.
                    for ahead in range(11):
                        if ahead == 10 or all(r.done() for r in running):
                            break
                        self.ok("/v1/completions", {"prompt": "a", "max_tokens": 1})
                    for r in running:
                        self.assertIn(b'"code":"context_length_exceeded"', r.result())
                if ahead == 10:
                    break
            self.assertEqual(ahead, 10, "so many short ones were answered before four long ones")

    def test_s11_one_long_body_is_parsed_at_a_time(self):
        """What six bodies of 30 MB at once take is what one takes, and the five others as they came: what is made of a body
        (twice its size of a text, eleven times of ids) is there once. The bound has one body more, for what is answered but
        not yet freed; two parsed at a time would be beyond it."""
        sanitized = self.server.sanitized()  # it keeps freed memory and takes its time: answers alone count
        count = 6_000_000 // (10 if sanitized else 1)
        for body in (b'{"prompt": "' + b"word " * count + b'"}', b'{"prompt": [' + b"1234," * count + b"1]}"):
            server = Server(PROGRAM, MODEL, "--dtype", "float32", environment=ALLOCATOR)
            self.addCleanup(server.close)

            def ask(_, server=server, body=body):
                with server.connect() as s:
                    s.settimeout(6 * TIMEOUT)
                    s.sendall(raw_post("/v1/completions", body))
                    return b"".join(iter(lambda: s.recv(65536), b""))

            def peak(server=server):
                status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
                return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])
            before = peak()
            answers = [ask(0)]
            one = peak() - before
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                answers += pool.map(ask, range(6))
            six = peak() - before
            for answer in answers:
                self.assertIn(b'"code":"context_length_exceeded"', answer)
            if not sanitized:
                self.assertGreater(one, len(body))
                self.assertLess(six, one + 6 * len(body), (one, len(body)))

    def test_s20_silent_connections_lock_nobody_out(self):
        silent = []
        for i in range(500):  # of 100 that there is room for
            silent.append(self.server.connect())
            if i % 3 == 1:
                silent[-1].sendall(b"GET /health HTTP/1.1\r\nHost: local")
            if i % 50 == 49:
                self.ok("/v1/completions", {"prompt": "a", "max_tokens": 1})
                self.assertEqual(self.server.get("/health")[0], 200)
        for s in silent:
            s.close()
        self.assertEqual(self.server.get("/health")[0], 200)

    def test_s20_health_and_metrics_have_places_of_their_own(self):
        server = Server(PROGRAM, endless(self), "--max-connections", 2)
        self.addCleanup(server.close)
        streams = []
        for _ in range(2):
            streams.append(server.connect())
            streams[-1].sendall(raw_post("/v1/completions", NEVER_ENDS))
            self.assertIn(b" 200 ", streams[-1].recv(65536))
            threading.Thread(target=lambda s=streams[-1]: all(iter(lambda: s.recv(65536), b"")), daemon=True).start()
        for path, status in (("/health", 200), ("/metrics", 200), ("/ping", 200), ("/v1/models", 503)):
            self.assertEqual(server.get(path)[0], status, path)
        for s in streams:
            s.shutdown(socket.SHUT_RDWR)
            s.close()

    def test_many_at_once_get_what_one_alone_gets(self):
        server = self.server
        body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
        alone = self.ok("/v1/completions", body)["choices"][0]["text"]

        def ask(_):
            while True:
                status, answer = server.post("/v1/completions", body)
                if status == 200:
                    return answer["choices"][0]["text"]
                self.assertEqual(status, 503)
                time.sleep(0.02)
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            self.assertEqual(set(pool.map(ask, range(32))), {alone})


class Life(unittest.TestCase):
    def start(self, *words, model=MODEL, **options):
        server = Server(PROGRAM, model, *words, **options)
        self.addCleanup(server.close)
        return server

    @staticmethod
    def wait_until_it_drains(server):
        begin = time.monotonic()
        while server.get("/health")[0] == 200:
            assert time.monotonic() - begin < TIMEOUT, "it does not drain"
            time.sleep(0.01)

    def long_stream(self, server, tokens):
        s = server.connect()
        s.sendall(raw_post("/v1/completions", {"prompt": "Once", "max_tokens": tokens, "ignore_eos": True, "stream": True}))
        while b"data: " not in s.recv(65536):
            pass
        return s

    @staticmethod
    def rest(s):
        received = b""
        while piece := s.recv(65536):
            received += piece
        return received.decode()

    def test_s18_sigterm_finishes_what_runs(self):
        server = self.start("--shutdown-timeout", 300, model=endless(self))
        # Five seconds of tokens: what follows must come before their end.
        begin = time.monotonic()
        server.post("/v1/completions", {"prompt": "Once", "max_tokens": 200, "ignore_eos": True})
        s = self.long_stream(server, max(600, round(5 * 200 / (time.monotonic() - begin))))
        server.process.send_signal(signal.SIGTERM)
        self.wait_until_it_drains(server)
        status, answer = server.post("/v1/completions", {"prompt": "a"})
        self.assertEqual((status, answer["error"]["code"]), (503, "draining"))
        text = self.rest(s)
        self.assertIn('"finish_reason":"length"', text)
        self.assertIn("data: [DONE]", text)
        self.assertEqual(server.process.wait(TIMEOUT), 0)

    def test_s18_sigterm_has_an_end(self):
        server = self.start("--shutdown-timeout", 1, model=endless(self))
        s = self.long_stream(server, 1_000_000)
        begin = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        text = self.rest(s)
        self.assertIn("data: [DONE]", text)
        self.assertEqual(server.process.wait(TIMEOUT), 0)
        self.assertLess(time.monotonic() - begin, 30)  # half of what it is without the option

    def test_s18_second_signal_ends_at_once(self):
        server = self.start(model=endless(self))
        s = self.long_stream(server, 1_000_000)
        server.process.send_signal(signal.SIGINT)
        self.wait_until_it_drains(server)  # two signals at once may be one
        begin = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        self.assertEqual(server.process.wait(TIMEOUT), 0)
        self.assertLess(time.monotonic() - begin, 30)  # half of what it is after one
        s.close()

    def test_health_while_loading(self):
        server = self.start(wait=False)
        seen = set()
        deadline = time.monotonic() + TIMEOUT
        while 200 not in seen and time.monotonic() < deadline:
            status, _, text = server.get("/health")
            if status == 503:
                self.assertEqual(json.loads(text)["error"]["code"], "loading")
            seen.add(status)
        self.assertEqual(seen - {503}, {200})
        self.assertEqual(server.stop(), 0)

    def refused(self, code, needle, *words):
        result = subprocess.run([PROGRAM, "serve", *map(str, words)], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, code, result.stderr)
        lines = [line for line in result.stderr.splitlines() if line.startswith("sluice: ")]
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertIn(needle, lines[0])

    def test_s20_what_cannot_start_says_why(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.refused(3, f"127.0.0.1 port {port}", "--model-path", MODEL, "--port", port)
        self.refused(2, "host is", "--model-path", MODEL, "--host", "not-an-address")
        self.refused(3, "nowhere", "--model-path", "/nowhere", "--port", 0)
        self.refused(2, "context_length", "--model-path", MODEL, "--port", 0, "--context-length", 10**6)

    def test_an_unsupported_template_is_refused_with_its_line(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-serve-"))
        self.addCleanup(shutil.rmtree, folder)
        template = folder / "chat.jinja"
        template.write_text("{{ messages }}\n{% include 'x' %}\n")
        server = self.start("--chat-template", template)
        status, answer = server.post("/v1/chat/completions", {"messages": CHAT})
        self.assertEqual(status, 400)
        self.assertRegex(answer["error"]["message"], r"chat\.jinja.*line 2")
        self.assertEqual(server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})[0], 200)

    def test_no_growth(self):
        """A short soak: after a warm-up, neither descriptors nor blocks nor (much) memory grow."""
        server = self.start("--max-running-requests", 4, "--max-total-tokens", 8192, environment=ALLOCATOR)
        status = pathlib.Path(f"/proc/{server.process.pid}/status")
        resident = lambda: int(re.search(r"RssAnon:\s+(\d+)", status.read_text())[1])
        descriptors = lambda: len(list(pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir()))

        def load(i):
            if i % 5 == 0:
                s = self.long_stream(server, 500)
                s.close()
            elif i % 5 == 1:
                server.raw(b"nonsense\r\n\r\n")
            else:
                server.stream("/v1/completions", {"prompt": f"{i} word " * 20, "max_tokens": 8, "n": 2})

        def grown(requests):
            """KiB"""
            before = resident()
            list(pool.map(load, requests))
            server.wait_until_idle()
            return resident() - before
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            grown(range(100))
            open_before = descriptors()
            # What each request leaves behind (10 KiB of it show) comes in every round; caches and the allocator's arenas
            # are full after a few rounds, the more the more cores there are.
            growth = []
            for begin in range(100, 1100, 100):
                growth.append(grown(range(begin, begin + 100)))
                if growth[-1] < 1_000 or server.sanitized():
                    break
            else:
                self.fail(f"resident memory grew in every round of 100 requests, by {growth} KiB")
        server.wait_for_metric("num_used_tokens", 0)
        begin = time.monotonic()  # connections end a little later than their requests
        while descriptors() > open_before + 4:
            self.assertLess(time.monotonic() - begin, TIMEOUT, f"{descriptors()} descriptors, {open_before} before")
            time.sleep(0.05)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    main()
