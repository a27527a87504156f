# SPDX-License-Identifier: Apache-2.0
"""Ten thousand connections to `sluice serve`: more than it takes, and as many as it takes.

usage: connections.py PROGRAM SOURCE_FOLDER [COUNT]

More than --max-connections, half of them silent: each that asks is answered, and the silent ones that were there first get
a clean end. Within it: every one is answered. Meanwhile /health answers within a second, and when the clients have gone the server holds as many
descriptors as before. Where the limit of descriptors forbids the count, it takes what is allowed and says so.
Exit codes: 0 as it should be; 1 not (the last line says what); 2 wrong usage.
"""
import contextlib
import http.client
import pathlib
import resource
import socket
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from serve_driver import Server  # noqa: E402

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
OTHERS = 128  # descriptors of either process that are no test connection; the server sets 80 aside itself
SLOWEST_HEALTH = 8.0  # seconds: on a busy machine too, and before silent connections end by themselves after 10
SETTLE = 120


class Wrong(Exception):
    pass


def allowed_connections(wanted):
    """Raises this process's limit, which the server inherits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + 2 * OTHERS
    unlimited = hard == resource.RLIM_INFINITY
    with contextlib.suppress(ValueError, OSError):  # above the hard limit: for privileged users
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard if unlimited else max(needed, hard)))
    with contextlib.suppress(ValueError, OSError):
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < needed and not unlimited:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit >= needed:
        return wanted
    print(f"the limit of descriptors is {limit}: {limit - 2 * OTHERS} connections instead of {wanted}")
    return limit - 2 * OTHERS


class Health:
    """Asks /health every 20 ms over one connection, which was there before the crowd; the slowest answer."""

    def __init__(self, server):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        self.slowest, self.count, self.error, self.over = 0.0, 0, None, threading.Event()
        self.ask()
        self.thread = threading.Thread(target=self.run)

    def ask(self):
        begin = time.monotonic()
        self.connection.request("GET", "/health")
        answer = self.connection.getresponse()
        answer.read()
        self.slowest, self.count = max(self.slowest, time.monotonic() - begin), self.count + 1
        if answer.status != 200:
            raise Wrong(f"/health gives {answer.status} in a crowd")

    def run(self):
        try:
            while not self.over.wait(0.02):
                self.ask()
        except Exception as error:
            self.error = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        self.connection.close()
        if self.error:
            raise Wrong(f"/health in a crowd: {type(self.error).__name__}: {self.error}")
        if self.slowest > SLOWEST_HEALTH:
            raise Wrong(f"/health took {self.slowest:.2f} s in a crowd; accepted: {SLOWEST_HEALTH:.0f} s")


def descriptors(server):
    return len(list(pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir()))


def wait_for_descriptors(server, wanted):
    end = time.monotonic() + SETTLE
    while (now := descriptors(server)) != wanted:
        if time.monotonic() > end:
            raise Wrong(f"the server holds {now} descriptors {SETTLE} s after its clients have gone, not {wanted}")
        time.sleep(0.02)


def connect(server, stack):
    s = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def read_answer(s):
    """What comes until the end, or until one whole answer; and how it ended."""
    received = b""
    try:
        while b"\r\n\r\n" not in received or not received.endswith(b"}"):
            piece = s.recv(65536)
            if not piece:
                return received, "end"
            received += piece
        return received, "answer"
    except ConnectionResetError:
        return received, "reset"


def beyond_the_limit(program, model, count, limit):
    server = Server(program, model, "--max-connections", limit)
    with contextlib.closing(server):
        before = descriptors(server)
        begin = time.monotonic()
        with Health(server) as health, contextlib.ExitStack() as stack:
            silent = []
            for i in range(count):
                if i % 2:
                    silent.append(connect(server, stack))
                    continue
                with contextlib.ExitStack() as one:
                    s = connect(server, one)
                    s.sendall(HEALTH)
                    received, end = read_answer(s)
                    if not received.startswith(b"HTTP/1.1 200 "):
                        raise Wrong(f"connection {i} got {received[:200]!r} and then a {end}")
            for s in silent[:100]:
                received, end = read_answer(s)
                if received or end != "end":
                    raise Wrong(f"a silent connection got {received[:200]!r} and then a {end}, not a clean end")
        wait_for_descriptors(server, before)
        print(f"{count} connections, half of them silent, --max-connections {limit}: all that asked were answered, in "
              f"{time.monotonic() - begin:.1f} s; slowest of {health.count} /health {1e3 * health.slowest:.0f} ms; "
              f"{before} descriptors before and after")
        if server.stop() != 0:
            raise Wrong("the exit code is not 0")


def within_the_limit(program, model, count):
    server = Server(program, model, "--max-connections", count + OTHERS)
    with contextlib.closing(server):
        before = descriptors(server)
        begin = time.monotonic()
        with Health(server) as health, contextlib.ExitStack() as stack:
            sockets = []
            for _ in range(count):
                sockets.append(connect(server, stack))
                sockets[-1].sendall(HEALTH)  # a connection without a byte ends after ten seconds
            opened = time.monotonic() - begin
            for i, s in enumerate(sockets):
                received, end = read_answer(s)
                if not received.startswith(b"HTTP/1.1 200"):
                    raise Wrong(f"connection {i} of {count} got {received[:200]!r} and then a {end}")
            status, answer = server.post("/v1/completions", {"prompt": "a", "max_tokens": 4})  # one more, that works
            if status != 200:
                raise Wrong(f"a completion in a crowd: {status} {answer}")
            rss = int(pathlib.Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()
        wait_for_descriptors(server, before)
        print(f"{count} connections, --max-connections {count + OTHERS}: open after {opened:.1f} s, all answered after "
              f"{time.monotonic() - begin:.1f} s; slowest of {health.count} /health {1e3 * health.slowest:.0f} ms; "
              f"{rss / 2**20:.0f} MiB resident; {before} descriptors before and after")
        if server.stop() != 0:
            raise Wrong("the exit code is not 0")


def main():
    if len(sys.argv) not in (3, 4) or (len(sys.argv) == 4 and not sys.argv[3].isdigit()):
        print(__doc__, file=sys.stderr)
        return 2
    program, model = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]) / "models" / "tiny-nemotron-h"
    count = allowed_connections(int(sys.argv[3]) if len(sys.argv) == 4 else 10_000)
    try:
        beyond_the_limit(program, model, count, count // 5)
        within_the_limit(program, model, count)
    except (Wrong, OSError, AssertionError) as error:
        print(f"failed: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
