# SPDX-License-Identifier: Apache-2.0
"""What clients do to a server, well and badly behaved, each a method that draws its details at random and raises
Unexpected when the answer is not one that the API promises."""
import contextlib
import http.client
import json
import random
import re
import socket
import struct
import time

from checkpoint_bytes import SharedTensors
from serve_driver import raw_post

TIMEOUT = 300  # of a machine that does other things too
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
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Riga"]}, "days": {"type": "integer"}},
           "required": ["city", "days"]}
BAD_CONSTRAINTS = (
    {"regex": "(" * 20}, {"regex": "[a"}, {"regex": "a" * 9000}, {"ebnf": "root ::= nobody"}, {"ebnf": "root ::= ((("},
    {"guided_json": {"type": "object", "not": {}}}, {"guided_json": {"$ref": "#/nowhere"}}, {"guided_json": {"type": "thing"}},
    {"response_format": {"type": "json_schema"}}, {"guided_choice": []}, {"regex": "a", "ebnf": 'root ::= "a"'},
    {"guided_json": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9}}, {"structural_tag": "{"},
)


class Unexpected(Exception):
    pass


class Client:
    """One thread's clients of a server. `counts` (name to number) is its own."""

    def __init__(self, server, context, seed, tensors=None):
        """`tensors` of the model's checkpoint: for the one client of a server that may do what concerns everybody."""
        self.server, self.context, self.random = server, context, random.Random(seed)
        self.counts, self.refused, self.name = {}, 0, f"c{seed}-"
        self.doing = ""
        self.kept = None  # a connection that is used again
        self.actions = [
            (10, self.whole), (14, self.stream), (3, self.scored), (3, self.several_prompts), (4, self.leave_in_stream),
            (4, self.leave_at_once), (3, self.abort_by_name), (5, self.malformed), (2, self.no_http), (2, self.over_long),
            (1, self.half_open), (2, self.slow_reader), (1, self.slow_sender), (6, self.tokenize), (4, self.look),
            (6, self.other_api), (8, self.tools), (8, self.constrained), (2, self.bad_constraint)]
        self.tensors = tensors
        if tensors:  # one client of a server, or nothing would ever be cached or finished
            self.actions += [(8, self.full_queue), (6, self.flush), (3, self.abort_all), (3, self.reload),
                             (5, self.pause), (3, self.update_tensors), (3, self.give_memory_back)]

    def act(self):
        action = self.random.choices([a for _, a in self.actions], [w for w, _ in self.actions])[0]
        name = self.doing = action.__name__
        action()
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
        reused = kept and self.kept is not None
        if kept and not reused:
            self.kept = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=TIMEOUT)
        connection = self.kept if kept else http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=TIMEOUT)
        data = json.dumps(body) if body is not None and not isinstance(body, bytes) else body
        head = {"Content-Type": "application/json"} if body is not None else {}
        self.doing = f"{self.doing.partition(' ')[0]} {path}"
        try:
            connection.request(method, path, data, {**head, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        except BaseException as error:
            self.close()
            # A connection that was idle for too long has been closed by the server.
            if not reused or not isinstance(error, (BrokenPipeError, ConnectionResetError)):
                raise
        finally:
            if not kept:
                connection.close()
        return self.request(method, path, body, headers)

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

    def handling(self):
        """Fields beside the sampling: who goes first, who shares prefixes, who waits how long."""
        r = self.random
        draws = {"priority": lambda: r.randint(-3, 3), "cache_salt": lambda: f"tenant {r.randrange(3)}",
                 "timeout": lambda: r.choice((0.01, 0.1, 5)), "queue_timeout": lambda: r.choice((0.01, 0.1, 5))}
        return {name: draw() for name, draw in draws.items() if r.random() < 0.15}

    def events(self, path, body):
        """The data of a stream's events, without the closing one; None if it was refused, or waited too long."""
        status, headers, text = self.request("POST", path, {**body, "stream": True})
        if status == 503:
            self.refused += 1
            self.require(headers["Retry-After"], "503 without Retry-After")
            return None
        self.require(status == 200, f"{status} for {path} {str(body)[:300]}: {text[:300]}")
        lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
        if body.keys() & {"queue_timeout", "timeout"} and '"timed_out"' in lines[-1]:  # one of several answers, after others had begun
            self.refused += 1
            return None
        if path not in ("/v1/messages", "/v1/responses"):
            self.require(lines[-1] == "[DONE]", f"a stream of {path} ends with {lines[-1][:300]}")
            lines.pop()
        return [json.loads(line) for line in lines if line != "[DONE]"]

    def work(self):
        """(path, body) of a random good request."""
        r = self.random
        kind = r.choice(("completions", "chat", "generate"))
        handling = self.handling()
        if kind == "completions":
            body = {"prompt": self.text(), **handling, **self.sampling("max_tokens"), **({"logprobs": 3} if r.random() < 0.3 else {})}
            return "/v1/completions", body
        if kind == "chat":
            turns = [{"role": role, "content": self.text()} for role in ("user", "assistant", "user")[r.choice((0, 2)):]]
            more = {"logprobs": True, "top_logprobs": r.randint(0, 5)} if r.random() < 0.3 else {}
            return "/v1/chat/completions", {"messages": turns, **handling, **self.sampling("max_tokens"), **more}
        more = {"return_logprob": True, "top_logprobs_num": 2} if r.random() < 0.3 else {}
        return "/generate", {"text": self.text(), "sampling_params": self.sampling("max_new_tokens"), **handling, **more}

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
        self.events(*self.work())

    def other_api(self):
        r, tokens = self.random, self.random.randint(1, 30)
        said = [{"role": "user", "content": "Once " * r.randint(1, 50)}]
        path, body = r.choice((("/v1/messages", {"messages": said, "system": "Be brief.", "max_tokens": tokens}),
                               ("/v1/responses", {"input": said, "instructions": "Be brief.", "max_output_tokens": tokens})))
        body = {**body, **self.handling()}
        if r.random() < 0.2:
            count = self.expect({200}, "POST", "/v1/messages/count_tokens", {"messages": said})
            self.require(count["input_tokens"] > 0, f"count_tokens: {count}")
        if r.random() < 0.5:
            answer = self.expect({200}, "POST", path, body)
            self.require(answer is None or answer.get("type", answer.get("object")) in ("message", "response"), f"{path}: {answer}")
        elif (events := self.events(path, body)) is not None:
            last = events[-1]["type"]
            self.require(last in ("message_stop", "response.completed", "response.incomplete"), f"{path} ends with {events[-1]}")

    def tools(self):
        """Calls of tools, whole and streamed. A trained story-teller makes none by itself; where it must, its arguments are right."""
        r = self.random
        offered = [{"type": "function", "function": {"name": name, "parameters": WEATHER, **({"strict": True} if r.random() < 0.3 else {})}}
                   for name in ("weather", "forecast")[:r.randint(1, 2)]]
        choice = r.choice(("auto", "none", "required", {"type": "function", "function": {"name": "weather"}}))
        turns = [{"role": "user", "content": self.text()}]
        if r.random() < 0.3:
            call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo", "days": 1}'}}
            turns += [{"role": "assistant", "content": None, "tool_calls": [call]},
                      {"role": "tool", "tool_call_id": "call_1", "content": "It rains."}, {"role": "user", "content": "Thanks"}]
        body = {"messages": turns, "tools": offered, "tool_choice": choice, "max_tokens": r.choice((8, 48, 96)),
                "temperature": r.choice((0, 0.7)), **({"parallel_tool_calls": False} if r.random() < 0.3 else {}), **self.handling()}
        calls, path, end = {}, "/v1/chat/completions", None
        if r.random() < 0.5:
            if (answer := self.expect({200}, "POST", path, body)) is None:
                return
            parts, end = answer["choices"][0]["message"].get("tool_calls") or [], answer["choices"][0]["finish_reason"]
            calls = {i: [c["function"]["name"], c["function"]["arguments"]] for i, c in enumerate(parts)}
        else:
            if (events := self.events(path, body)) is None:
                return
            for choices in (e["choices"] for e in events if e["choices"]):
                end = choices[0]["finish_reason"] or end
                for c in choices[0]["delta"].get("tool_calls") or []:
                    call = calls.setdefault(c["index"], ["", ""])
                    call[0] += c["function"].get("name") or ""
                    call[1] += c["function"].get("arguments") or ""
        self.require(end in ("stop", "length", "abort", "tool_calls"), f"{end} ends a chat with tools")
        if end not in ("tool_calls", "stop"):  # cut, perhaps in a call
            return
        self.require(bool(calls) == (end == "tool_calls"), f"{end} with the calls {calls}")
        must = choice == "required" or isinstance(choice, dict)
        self.require(not must or calls, f"{choice} and no call")
        for name, arguments in calls.values():
            self.require(not must or name in ("weather", "forecast"), f"a call of {name}")
            self.require(not must or json.loads(arguments)["city"] in ("Oslo", "Riga"), f"arguments {arguments}")

    def constraint(self, new):
        """(fields that ask for it, whether a complete text keeps to it); a new one is compiled."""
        r = self.random
        which = r.randrange(1_000_000) if new else r.randrange(4)
        word = f"w{which}"
        schema = {"type": "object", "properties": {word: {"enum": [1, which]}, "ok": {"type": "boolean"}}, "required": [word, "ok"]}
        return r.choice((
            ({"guided_json": schema}, lambda s: json.loads(s)[word] in (1, which)),
            ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
             lambda s: isinstance(json.loads(s)["ok"], bool)),
            ({"response_format": {"type": "json_object"}}, lambda s: isinstance(json.loads(s), dict)),
            ({"regex": f"{word}-[0-9]{{2}}"}, lambda s: re.fullmatch(f"{word}-[0-9]{{2}}", s)),
            ({"ebnf": f'root ::= "{word}" [ab]* "."'}, lambda s: re.fullmatch(f"{word}[ab]*\\.", s)),
            ({"guided_choice": [word, "yes"]}, lambda s: s in (word, "yes")),
            ({"structural_tag": json.dumps({"type": "structural_tag", "triggers": ["<w"], "structures": [
                {"begin": f"<{word}>", "schema": schema, "end": "</w>"}]})}, lambda s: True)))

    def fill_grammar_cache(self, number):
        """So that it does not grow any more while others watch."""
        for _ in range(number):
            self.expect({200}, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, **self.constraint(new=True)[0]})

    def constrained(self):
        """Half of the constraints are new to the server: its cache of compiled ones must stay within its bounds."""
        r = self.random
        fields, right = self.constraint(new=r.random() < 0.5)
        body = {"max_tokens": r.choice((4, 40, 80)), "temperature": r.choice((0, 0.7, 1.3)), **fields, **self.handling()}
        path, body = r.choice((("/v1/chat/completions", {"messages": [{"role": "user", "content": self.text()}], **body}),
                               ("/v1/completions", {"prompt": self.text(), **body})))
        if r.random() < 0.5:
            if (answer := self.expect({200}, "POST", path, body)) is None:
                return
            choice = answer["choices"][0]
            said, end = choice["text"] if "text" in choice else choice["message"]["content"], choice["finish_reason"]
        else:
            if (events := self.events(path, body)) is None:
                return
            chosen = [e["choices"][0] for e in events if e["choices"]]
            said = "".join((c["text"] if "text" in c else c["delta"].get("content")) or "" for c in chosen)
            end = next((c["finish_reason"] for c in reversed(chosen) if c["finish_reason"]), None)
        self.require(end in ("stop", "length", "abort"), f"{end} ends a constrained text")
        if end == "stop":
            try:
                good = right(said)
            except (KeyError, ValueError):
                good = False
            self.require(good, f"{said!r} for {fields}")

    def bad_constraint(self):
        answer = self.expect({400}, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 4, **self.random.choice(BAD_CONSTRAINTS)})
        self.require(answer is None or answer["error"]["message"], "an error without a sentence")

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

    @contextlib.contextmanager
    def paused(self, *modes):
        self.expect({200}, "POST", "/pause_generation", {"mode": self.random.choice(modes)})
        yield
        while self.expect({200}, "POST", "/continue_generation", {}) is None:  # or nobody is served any more
            time.sleep(0.05)

    def pause(self):
        with self.paused("abort", "retract", "in_place"):
            time.sleep(self.random.choice((0, 0.01, 0.1)))
            if self.random.random() < 0.3:
                self.update_tensors()

    def update_tensors(self, everything=False):
        """Some tensors by themselves, in one call or in two that belong together."""
        r, names = self.random, self.random.sample(sorted(self.tensors), len(self.tensors) if everything else 6)
        several = r.random() < 0.5
        if several:
            self.expect({200}, "POST", "/begin_weight_update", {})
        for part in (names[:3], names[3:]) if several else (names,):
            with SharedTensors({name: self.tensors[name] for name in part}) as spec:
                answer = self.expect({200}, "POST", "/update_weights_from_tensor", {**spec, "weight_version": f"v{r.randrange(10)}"})
                self.require(answer["success"], f"update_weights_from_tensor: {answer}")
        if several:
            self.expect({200}, "POST", "/end_weight_update", {})

    def give_memory_back(self):
        """What a trainer does between two steps; the weights that had come as tensors come from the checkpoint again."""
        self.reload()
        with self.paused("abort", "retract"):
            tags = self.random.choice((["weights"], ["kv_cache"], ["kv_cache", "weights"]))
            self.expect({200}, "POST", "/release_memory_occupation", {"tags": tags})
            time.sleep(self.random.choice((0, 0.05)))
            self.expect({200}, "POST", "/resume_memory_occupation", {"tags": tags})

    def reload(self):
        path = self.expect({200}, "GET", "/get_model_info")["model_path"]
        answer = self.expect({200}, "POST", "/update_weights_from_disk", {"model_path": path})
        self.require(answer["success"], "update_weights_from_disk")
