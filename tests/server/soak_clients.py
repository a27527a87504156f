# SPDX-License-Identifier: Apache-2.0
"""What clients do to a server, well and badly behaved, each a method that draws its details at random and raises
Unexpected when the answer is not one that the API promises."""
import contextlib
import http.client
import json
import random
import socket
import struct
import time

from serve_driver import raw_post

TIMEOUT = 120
WORDS = ("river lamp Henry house winter seven gold quiet morning boat paper window garden stone letter bread "
         "Gr\u00fc\u00dfe \u4e16\u754c \U0001f600 naive, 42 3.14 -- \"so\" {x} \n").split(" ")
BROKEN = (
    b"", b"{", b"[]", b"null", b'{"prompt": "a",}', b"\xff\xfe", b'{"prompt": "a", "max_tokens": "many"}', b"[" * 5000,
    b'{"prompt": 7.5}', b'{"prompt": "a", "temperature": -1}', b'{"prompt": "a", "n": 0}', b'{"prompt": [[]]}',
    b'{"prompt": "a", "what_is_this": 1}', b'{"prompt": [999999999]}', b'{"prompt": "a", "stop": [1, {}]}',
    b'{"messages": "hello"}', b'{"messages": [{"role": "user"}]}', b'{"prompt": "a", "logit_bias": {"x": 1}}',
)
NO_HTTP = (b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n",
           b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40000 + b"\r\n\r\n")


class Unexpected(Exception):
    pass


class Client:
    """One thread's clients of a server. `counts` (name to number) is its own."""

    def __init__(self, server, context, seed, privileged):
        self.server, self.context, self.random = server, context, random.Random(seed)
        self.counts, self.refused, self.name = {}, 0, f"c{seed}-"
        self.kept = None  # a connection that is used again
        self.actions = [
            (10, self.whole), (14, self.stream), (3, self.scored), (3, self.several_prompts), (4, self.leave_in_stream),
            (4, self.leave_at_once), (3, self.abort_by_name), (5, self.malformed), (2, self.no_http), (2, self.over_long),
            (1, self.half_open), (2, self.slow_reader), (1, self.slow_sender), (6, self.tokenize), (4, self.look)]
        if privileged:  # one client of a server, or nothing would ever be cached or finished
            self.actions += [(8, self.full_queue), (6, self.flush), (3, self.abort_all), (3, self.reload)]

    def act(self):
        action = self.random.choices([a for _, a in self.actions], [w for w, _ in self.actions])[0]
        action()
        name = action.__name__
        self.counts[name] = self.counts.get(name, 0) + 1

    def close(self):
        if self.kept:
            self.kept.close()
        self.kept = None

    # ---- means

    def require(self, truth, what):
        if not truth:
            raise Unexpected(what)

    def request(self, method, path, body=None, headers=None):
        """(status, headers, text), over a fresh connection or the kept one."""
        kept = self.random.random() < 0.5
        if kept and self.kept is None:
            self.kept = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=TIMEOUT)
        connection = self.kept if kept else http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=TIMEOUT)
        data = json.dumps(body) if body is not None and not isinstance(body, bytes) else body
        head = {"Content-Type": "application/json"} if body is not None else {}
        try:
            connection.request(method, path, data, {**head, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        except BaseException:
            self.close()
            raise
        finally:
            if not kept:
                connection.close()

    def expect(self, wanted, method, path, body=None):
        """The parsed body of an answer with a wanted status; None for a full queue, which is always a right answer."""
        status, headers, text = self.request(method, path, body)
        if status == 503 and 503 not in wanted:
            self.require(headers["Retry-After"], f"503 without Retry-After for {path}: {text[:200]}")
            self.refused += 1
            return None
        self.require(status in wanted, f"{status} for {path} {str(body)[:300]}: {text[:300]}")
        return json.loads(text)

    def text(self, least=1, most=40):
        r = self.random
        shared = f"Story {r.randrange(4)}. " * 40 if r.random() < 0.4 else ""  # longer than a block: found again
        return shared + " ".join(r.choices(WORDS, k=r.randint(least, most)))

    def sampling(self, tokens):
        r = self.random
        p = {tokens: r.choice((1, 2, 8, 16, 32, 48))}
        for name, draw in (("temperature", lambda: r.choice((0, 0.7, 1.3))), ("top_p", lambda: r.uniform(0.1, 1)),
                           ("top_k", lambda: r.randint(1, 50)), ("min_p", lambda: r.uniform(0, 0.3)),
                           ("presence_penalty", lambda: r.uniform(-1, 1)), ("repetition_penalty", lambda: r.uniform(0.8, 1.3)),
                           ("stop", lambda: r.choice(["the", [". ", "house"]])), ("ignore_eos", lambda: True)):
            if r.random() < 0.3:
                p[name] = draw()
        if r.random() < 0.25:
            p["n"] = r.randint(2, 4)
        return p

    def work(self):
        """(path, body) of a random good request."""
        r = self.random
        kind = r.choice(("completions", "chat", "generate"))
        if kind == "completions":
            body = {"prompt": self.text(), **self.sampling("max_tokens"), **({"logprobs": 3} if r.random() < 0.3 else {})}
            return "/v1/completions", body
        if kind == "chat":
            turns = [{"role": role, "content": self.text()} for role in ("user", "assistant", "user")[r.choice((0, 2)):]]
            more = {"logprobs": True, "top_logprobs": r.randint(0, 5)} if r.random() < 0.3 else {}
            return "/v1/chat/completions", {"messages": turns, **self.sampling("max_tokens"), **more}
        more = {"return_logprob": True, "top_logprobs_num": 2} if r.random() < 0.3 else {}
        return "/generate", {"text": self.text(), "sampling_params": self.sampling("max_new_tokens"), **more}

    def long_stream(self, **extra):
        """The bytes of a request whose answer fills the context."""
        prompt = self.text()
        return raw_post("/v1/completions", {"prompt": prompt, "ignore_eos": True, "stream": True, "max_tokens": 500, **extra})

    def read_until(self, s, needle):
        received = b""
        while needle not in received:
            piece = s.recv(65536)
            if not piece:
                break
            received += piece
        return received

    # ---- good clients

    def whole(self):
        path, body = self.work()
        answer = self.expect({200}, "POST", path, body)
        if answer is None:
            return
        if path == "/generate":
            answers = answer if isinstance(answer, list) else [answer]
            self.require(len(answers) == body["sampling_params"].get("n", 1), f"{len(answers)} answers to {body}")
            ends = [a["meta_info"]["finish_reason"]["type"] for a in answers]
        else:
            self.require(len(answer["choices"]) == body.get("n", 1), f"{len(answer['choices'])} choices for {body}")
            ends = [c["finish_reason"] for c in answer["choices"]]
        self.require(set(ends) <= {"stop", "length", "abort"}, f"ends {ends}")

    def stream(self):
        path, body = self.work()
        status, headers, text = self.request("POST", path, {**body, "stream": True})
        if status == 503:
            self.refused += 1
            return self.require(headers["Retry-After"], "503 without Retry-After")
        self.require(status == 200, f"{status} for {path}: {text[:300]}")
        events = [e for e in text.split("\n\n") if e and not e.startswith(":")]
        self.require(events[-1] == "data: [DONE]", f"a stream of {path} ends with {events[-1][:300]}")
        for event in events[:-1]:
            json.loads(event.removeprefix("data: "))

    def scored(self):
        body = {"prompt": self.text(20, 200), "max_tokens": self.random.choice((0, 2)), "echo": True, "logprobs": 2}
        answer = self.expect({200}, "POST", "/v1/completions", body)
        if answer and answer["choices"][0]["finish_reason"] != "abort":
            values = answer["choices"][0]["logprobs"]["token_logprobs"]
            self.require(values[0] is None and all(v <= 0 for v in values[1:]), f"log probabilities {values}")

    def several_prompts(self):
        prompts = [self.text() for _ in range(self.random.randint(2, 4))]
        answer = self.expect({200}, "POST", "/v1/completions", {"prompt": prompts, "max_tokens": 4})
        self.require(answer is None or len(answer["choices"]) == len(prompts), "choices of several prompts")

    def tokenize(self):
        text = self.text(1, 300)
        tokens = self.expect({200}, "POST", "/v1/tokenize", {"prompt": text})["tokens"]
        back = self.expect({200}, "POST", "/v1/detokenize", {"tokens": tokens, "skip_special_tokens": False})["text"]
        self.require(back == text, f"{text!r} came back as {back!r}")

    def look(self):
        path = self.random.choice(("/health", "/metrics", "/v1/models", "/get_model_info", "/version", "/", "/health_generate"))
        # A health_generate that is aborted with all others, or in a reload, has made no token.
        status, _, text = self.request("GET", path)
        self.require(status == 200 or (status == 503 and path == "/health_generate"), f"{status} for {path}: {text[:300]}")

    # ---- clients that leave

    def leave_in_stream(self):
        with self.server.connect() as s:
            s.sendall(self.long_stream(n=self.random.choice((1, 3))))
            self.read_until(s, b"data: ")
            self.hang_up(s)

    def leave_at_once(self):
        with self.server.connect() as s:
            s.sendall(self.random.choice((self.long_stream(), self.long_stream(stream=False), self.long_stream(n=4))))
            time.sleep(self.random.choice((0, 0.001, 0.02, 0.1)))
            self.hang_up(s)

    def hang_up(self, s):
        if self.random.random() < 0.5:  # a reset instead of an end
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def abort_by_name(self):
        rid = self.name + str(self.random.getrandbits(60))
        with self.server.connect() as s:
            s.sendall(self.long_stream(rid=rid))
            received = self.read_until(s, b"data: ")
            if b"data: " not in received:
                return
            # 404: it has ended in between.
            self.expect({200, 404}, "POST", "/abort_request", {"rid": rid})
            if b"[DONE]" not in received:
                received += self.read_until(s, b"[DONE]")
            self.require(b"[DONE]" in received, f"after an abort: {received[-300:]}")

    # ---- clients that are wrong or slow

    def malformed(self):
        path = self.random.choice(("/v1/completions", "/v1/chat/completions", "/generate", "/v1/tokenize"))
        answer = self.expect({400}, "POST", path, self.random.choice(BROKEN)) if self.random.random() < 0.8 else \
            self.expect({404, 405}, "GET", self.random.choice(("/v1/completions", "/v2", "/%00", "/../etc/passwd")))
        self.require(answer["error"]["message"], "an error without a sentence")

    def no_http(self):
        answer = self.server.raw(self.random.choice(NO_HTTP))
        self.require(answer.startswith(("HTTP/1.1 400", "HTTP/1.1 431", "HTTP/1.1 404", "HTTP/1.0 400")),
                     f"no refusal: {answer[:200]!r}")

    def over_long(self):
        many = self.random.choice((self.context + 1, 3 * self.context))
        body = self.random.choice(({"prompt": [5] * many, "max_tokens": 1}, {"prompt": "a", "max_tokens": many},
                                   {"prompt": "word " * many, "max_tokens": 1}))
        answer = self.expect({400}, "POST", "/v1/completions", body)
        self.require(answer["error"]["code"] == "context_length_exceeded", f"{answer} for an over-long request")

    def half_open(self):
        with self.server.connect() as s:
            whole = self.long_stream()
            s.sendall(whole[:self.random.randrange(len(whole))])
            time.sleep(self.random.uniform(0, 2))
            self.hang_up(s)

    def slow_reader(self):
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            s.settimeout(TIMEOUT)
            s.connect(("127.0.0.1", self.server.port))
            s.sendall(self.long_stream(n=4, logprobs=5, max_tokens=100))
            end = time.monotonic() + self.random.uniform(0.2, 3)
            while time.monotonic() < end and s.recv(100):
                time.sleep(0.02)

    def slow_sender(self):
        whole = raw_post("/v1/completions", {"prompt": self.text(), "max_tokens": 2})
        with self.server.connect() as s:
            step = len(whole) // 20 + 1
            for i in range(0, len(whole), step):
                s.sendall(whole[i:i + step])
                time.sleep(0.03)
            answer = self.read_until(s, b"\r\n\r\n")
        self.require(answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 503")), f"to a slow sender: {answer[:200]}")

    # ---- what concerns everybody

    def full_queue(self):
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(self.server.connect()) for _ in range(60)]
            for s in sockets:
                s.sendall(self.long_stream(max_tokens=4, stream=False))
            answers = [self.read_until(s, b"\r\n\r\n") for s in sockets]
        for a in answers:
            polite = a.startswith(b"HTTP/1.1 503") and b"Retry-After" in a
            self.require(polite or a.startswith(b"HTTP/1.1 200"), f"from a full queue: {a[:200]}")
        self.refused += sum(a.startswith(b"HTTP/1.1 503") for a in answers)

    def flush(self):
        self.require(self.expect({200}, "POST", "/flush_cache", {})["success"], "flush_cache")

    def abort_all(self):
        self.require(self.expect({200}, "POST", "/abort_request", {"abort_all": True})["success"], "abort_all")

    def reload(self):
        self.require(self.expect({200}, "POST", "/update_weights_from_disk", {})["success"], "update_weights_from_disk")
