# SPDX-License-Identifier: Apache-2.0
"""Starts `sluice serve` and talks to it, for the tests beside this file."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import tempfile
import time

TIMEOUT = 120
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}  # bytes: freed tensors go back at once


class Server:
    """A running `sluice serve` on a port of its own; the standard error goes to `log`."""

    def __init__(self, program, model, *words, wait=True, limits=(), environment=None):
        """`limits`: (resource.RLIMIT_..., value) of the server; `environment`: variables beside this process's own."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")} | (environment or {})
        self.errors = tempfile.TemporaryFile(mode="w+")
        self.key = words[words.index("--api-key") + 1] if "--api-key" in words else None
        self.process = subprocess.Popen(
            [program, "serve", "--model-path", str(model), "--port", "0", *map(str, words)], env=clean, text=True,
            stdout=subprocess.PIPE, stderr=self.errors,
            preexec_fn=lambda: [resource.setrlimit(which, (value, value)) for which, value in limits])
        first = self.process.stdout.readline()
        found = re.match(r"listening on http://(\S+):(\d+)", first)
        if not found:
            raise AssertionError(f"no port in {first!r}; {self.log()}")
        self.host, self.port = found[1], int(found[2])
        if wait:
            self.wait_until_ready()

    def sanitized(self):
        """Built with AddressSanitizer or ThreadSanitizer, which keep freed memory and take their time."""
        maps = pathlib.Path(f"/proc/{self.process.pid}/maps").read_text()
        return "libasan" in maps or "libtsan" in maps

    def wait_until_ready(self):
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError("ended before it was ready: " + self.log())
            if line.startswith("ready:"):
                return

    def log(self):
        self.errors.seek(0)
        return self.errors.read()

    def stop(self):
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()

    # ---- requests

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body as text)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        with contextlib.closing(connection):
            head = dict(headers or {})
            if body is not None and not isinstance(body, (str, bytes)):
                body = json.dumps(body)
            if body is not None:
                head.setdefault("Content-Type", "application/json")
            connection.request(method, path, body, head)
            response = connection.getresponse()
            return response.status, response.headers, response.read().decode()

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def post(self, path, body, **options):
        """(status, parsed body)."""
        status, _, text = self.request("POST", path, body, **options)
        return status, json.loads(text)

    def stream(self, path, body):
        """The objects of a stream; checks that it is complete."""
        status, headers, text = self.request("POST", path, {**body, "stream": True})
        if status != 200:
            return status, json.loads(text)
        assert headers["Content-Type"].startswith("text/event-stream"), headers["Content-Type"]
        events = [e for e in text.split("\n\n") if e and not e.startswith(":")]
        assert all(e.startswith("data: ") for e in events), events
        assert events[-1] == "data: [DONE]", events[-1]
        return status, [json.loads(e[6:]) for e in events[:-1]]

    def metric(self, name):
        status, _, text = self.get("/metrics", headers={"Authorization": f"Bearer {self.key}"} if self.key else None)
        assert status == 200, text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                   if re.match(rf"sluice:{name}\{{", line))

    def wait_for_metric(self, name, value, seconds=TIMEOUT):
        """Seconds until the metric has that value."""
        begin = time.monotonic()
        while self.metric(name) != value:
            if time.monotonic() - begin > seconds:
                raise AssertionError(f"{name} is {self.metric(name)} after {seconds} s, not {value}")
            time.sleep(0.01)
        return time.monotonic() - begin

    def wait_until_idle(self):
        """Until no answer waits or runs. The numbers are those after a step, and an answer's first tokens may come before
        them: where one still counts as waiting, that none runs says nothing."""
        self.wait_for_metric("num_queue_reqs", 0)
        self.wait_for_metric("num_running_reqs", 0)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT)

    def raw(self, data, timeout=TIMEOUT):
        """Everything that comes back for these bytes; "" when the connection just ends."""
        with self.connect() as s:
            s.settimeout(timeout)
            received = b""
            try:
                s.sendall(data)
                while piece := s.recv(65536):
                    received += piece
            except (ConnectionResetError, BrokenPipeError, socket.timeout):
                pass
            return received.decode(errors="replace")


def raw_post(path, body, extra=""):
    """An HTTP request as bytes, closed after the answer."""
    body = json.dumps(body).encode() if not isinstance(body, bytes) else body
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n{extra}\r\n").encode() + body


def copy_of_model(model, folder):
    """A folder of links: for changed configurations of the same weights."""
    copy = pathlib.Path(folder)
    copy.mkdir(parents=True, exist_ok=True)
    for file in pathlib.Path(model).iterdir():
        (copy / file.name).symlink_to(file)
    return copy


def endless_model(model, folder):
    """The model with a context that no test lives to see the end of: a long answer is then still running when a test
    looks at it, however fast or loaded the machine is. For models whose positions are not in the weights."""
    copy = copy_of_model(model, folder)
    config = copy / "config.json"
    text = config.read_text()
    config.unlink()
    config.write_text(json.dumps({**json.loads(text), "max_position_embeddings": 1 << 20}))
    return copy
