# SPDX-License-Identifier: Apache-2.0
"""KV events of `sluice serve`, read as routers read them: pyzmq, and msgspec structs of the published schemas.

usage: kv_events_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
exit code 77: pyzmq, msgpack and msgspec are not installed, or the program was built without KV events
"""
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
sys.path.insert(0, str(SOURCE / "tests" / "support"))
from client_packages import need  # noqa: E402

need("zmq", "msgpack", "msgspec")

import msgpack  # noqa: E402
import msgspec  # noqa: E402
import zmq  # noqa: E402

from serve_driver import Server  # noqa: E402

TIMEOUT = 60
BLOCK = 8
END = 2**64 - 1


# vLLM since June 2026, SGLang since September 2026: events are maps.
class BlockStored(msgspec.Struct, tag=True, kw_only=True):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, tag=True, kw_only=True):
    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


# Before, they were arrays; these are the fields of 2025's first releases, which pass over further ones.
class OldStored(msgspec.Struct, array_like=True, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None


class OldRemoved(msgspec.Struct, array_like=True, tag="BlockRemoved"):
    block_hashes: list[int]


class OldCleared(msgspec.Struct, array_like=True, tag="AllBlocksCleared"):
    pass


class OldBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[OldStored | OldRemoved | OldCleared]


def attention_model(folder):
    """A model without recurrent states, whose hits are whole blocks: the shapes of a fixture with random weights."""
    config = json.loads((SOURCE / "tests" / "fixtures" / "qwen3-moe" / "config.json").read_text())
    config.update(vocab_size=4096, max_position_embeddings=1 << 20)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).symlink_to(SOURCE / "models" / "tiny-nemotron-h" / name)
    return folder


class Subscriber:
    """Takes what is published at `endpoint`; synchronize() takes all that has happened, by a replay."""

    def __init__(self, endpoint, replay, topic=b"", hwm=0, batch=Batch, topic_in_replay=True):
        self.context = zmq.Context()
        self.live = self.context.socket(zmq.SUB)
        self.live.set(zmq.RCVHWM, hwm)
        self.live.set(zmq.SUBSCRIBE, topic)
        self.live.connect(endpoint)
        self.replay = self.context.socket(zmq.DEALER)
        self.replay.set(zmq.RCVHWM, 0)
        self.replay.connect(replay)
        for s in (self.live, self.replay):
            s.set(zmq.RCVTIMEO, TIMEOUT * 1000)
            s.set(zmq.LINGER, 0)
        self.topic, self.batch, self.topic_in_replay = topic, batch, topic_in_replay
        self.payloads = {}  # by sequence number

    def close(self):
        self.context.destroy(linger=0)

    def ask(self, first):
        """[(sequence number, payload)] that are still there."""
        self.replay.send_multipart([b"", first.to_bytes(8, "big")])
        out = []
        while True:
            empty, *topic, number, payload = self.replay.recv_multipart()
            assert empty == b"" and len(number) == 8, (empty, number)
            assert len(topic) == (1 if self.topic_in_replay else 0), topic
            number = int.from_bytes(number, "big")
            if number == END:
                assert payload == b"", payload
                return out
            assert topic in ([self.topic], []), topic
            out.append((number, payload))

    def synchronize(self):
        for number, payload in self.ask(len(self.payloads)):
            assert number == len(self.payloads), (number, len(self.payloads))
            self.payloads[number] = payload
        return self

    def take_live(self):
        """Number and payload of the next message."""
        topic, number, payload = self.live.recv_multipart()
        assert topic == self.topic, topic
        return int.from_bytes(number, "big"), payload

    def wait_until_subscribed(self, flush):
        """A subscription takes a while to arrive; until then messages pass by."""
        begin = time.monotonic()
        while not self.live.poll(50):
            assert time.monotonic() - begin < TIMEOUT, "nothing arrives"
            flush()

    def events(self):
        for _, payload in sorted(self.payloads.items()):
            yield from msgspec.msgpack.decode(payload, type=self.batch).events


class Mirror:
    """Which blocks a server has, from its events alone."""

    def __init__(self, case, events):
        self.path_of, self.name_of, self.there = {}, {}, set()
        self.case = case
        for event in events:
            self.apply(event)

    def apply(self, event):
        name = type(event).__name__
        if name == "BlockStored":
            self.case.assertEqual(event.block_size, BLOCK)
            self.case.assertEqual(len(event.token_ids), BLOCK * len(event.block_hashes))
            self.case.assertEqual(event.medium, "GPU")
            salt = event.extra_keys[0] if event.extra_keys else ()
            self.case.assertEqual((event.extra_keys or [])[1:], [None] * (len(event.block_hashes) - 1 if salt else 0))
            path = (salt, ()) if event.parent_block_hash is None else self.path_of[event.parent_block_hash]
            for i, block in enumerate(event.block_hashes):
                path = path[0], path[1] + tuple(event.token_ids[i * BLOCK:(i + 1) * BLOCK])
                self.case.assertNotIn(block, self.there)
                self.there.add(block)
                self.case.assertEqual(self.path_of.setdefault(block, path), path)
                self.case.assertEqual(self.name_of.setdefault(path, block), block)
        elif name == "BlockRemoved":
            for block in event.block_hashes:
                self.there.remove(block)
        else:
            self.there.clear()

    def cached(self, tokens, salt=None):
        path, found = (() if salt is None else (salt,), ()), 0
        while found + BLOCK < len(tokens):  # one token at least must be computed
            path = path[0], path[1] + tuple(tokens[found:found + BLOCK])
            if self.name_of.get(path) not in self.there:
                break
            found += BLOCK
        return found


class WithEvents(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-kv-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "model").mkdir()
        self.model = attention_model(self.folder / "model")
        self.servers = 0

    def start(self, *words, model=None, load=("--load-format", "dummy"), **config):
        """A server and its endpoints."""
        self.servers += 1
        at = [f"ipc://{self.folder}/{kind}{self.servers}" for kind in ("live", "replay")]
        config = {"publisher": "zmq", "endpoint": at[0], "replay_endpoint": at[1], "topic": "kv", **config}
        server = Server(PROGRAM, model or self.model, "--served-model-name", "tiny", "--dtype", "float32", *load,
                        "--page-size", BLOCK, *words, "--kv-events-config", json.dumps(config))
        self.addCleanup(server.close)
        return server, config["endpoint"], config["replay_endpoint"]

    def subscribe(self, endpoint, replay, **options):
        subscriber = Subscriber(endpoint, replay, **{"topic": b"kv", **options})
        self.addCleanup(subscriber.close)
        return subscriber

    def generate(self, server, tokens, salt=None, new=1, **options):
        """Tokens of the prompt that were cached, and the answer's tokens."""
        body = {"input_ids": tokens, "sampling_params": {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}, **options}
        if salt is not None:
            body["cache_salt"] = salt
        status, answer = server.post("/generate", body)
        self.assertEqual(status, 200, answer)
        return answer["meta_info"]["cached_tokens"], answer["output_ids"]

    def flush(self, server):
        self.assertEqual(server.request("POST", "/flush_cache")[0], 200)


class Mirrors(WithEvents):
    def test_events_say_what_is_cached(self):
        seed = int(os.environ.get("SLUICE_TEST_SEED") or random.randrange(1 << 32))
        print(f"SLUICE_TEST_SEED={seed}", flush=True)
        rng = random.Random(seed)
        # Room for 40 blocks: most are evicted again.
        server, *at = self.start("--max-total-tokens", 40 * BLOCK, "--context-length", 160)
        subscriber = self.subscribe(*at)

        def prompt():
            family = rng.randrange(3)
            shared = [100 * family + i for i in range(5, 5 + rng.randrange(70))]
            return shared + [rng.randrange(5, 9) for _ in range(rng.randrange(1, 40))]
        hits, round_ = 0, 0

        def seen_enough():
            kinds = [type(e).__name__ for e in subscriber.synchronize().events()]
            return hits > 10 and all(kinds.count(k) > 1 for k in ("BlockStored", "BlockRemoved", "AllBlocksCleared"))
        # At least 25 rounds, and then until enough of everything has happened to say that it was tested.
        while round_ < 25 or (round_ < 250 and not seen_enough()):
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda p: self.generate(server, p[0], p[1], p[2]), [
                    (prompt(), rng.choice((None, None, "one", "two")), rng.randrange(1, 30)) for _ in range(rng.randrange(5))]))
            if round_ % 10 == 9:
                self.flush(server)
            round_ += 1
            for _ in range(3):
                tokens, salt = prompt(), rng.choice((None, None, "one"))
                mirror = Mirror(self, subscriber.synchronize().events())
                self.assertLessEqual(len(mirror.there), 40)
                got, _ = self.generate(server, tokens, salt)
                self.assertEqual(got, mirror.cached(tokens, salt))
                hits += got > 0
        self.assertTrue(seen_enough(), f"{hits} hits in {round_} rounds")

    def test_live_is_what_is_replayed(self):
        server, *at = self.start()
        subscriber = self.subscribe(*at)
        other = self.subscribe(*at, topic=b"of something else")
        subscriber.wait_until_subscribed(lambda: self.flush(server))
        for i in range(10):
            self.generate(server, list(range(10 + i, 60 + i)), new=20)
        before = time.time()
        subscriber.synchronize()
        number, payload = subscriber.take_live()
        while True:
            self.assertEqual(payload, subscriber.payloads[number])
            if number == len(subscriber.payloads) - 1:
                break
            next_, payload = subscriber.take_live()
            self.assertEqual(next_, number + 1)
            number = next_
        self.assertFalse(other.live.poll(0))
        # The same by another decoder.
        ts, events, rank = msgpack.unpackb(subscriber.payloads[number])
        self.assertLess(abs(before - ts), TIMEOUT)
        self.assertEqual(rank, 0)
        self.assertTrue(events)
        for event in events:
            self.assertIn(event["type"], ("BlockStored", "BlockRemoved"))
        # From the middle, from beyond the end, and what is no request.
        self.assertEqual([n for n, _ in subscriber.ask(3)], list(range(3, number + 1)))
        self.assertEqual(subscriber.ask(number + 100), [])
        for parts in ([b"", b"short"], [b"x", bytes(8)], [bytes(8)], [b""] * 9):
            subscriber.replay.send_multipart(parts)
        self.assertEqual(len(subscriber.ask(0)), number + 1)

    def test_what_throws_prefixes_away(self):
        server, *at = self.start("--weights-folder", SOURCE / "models", model=SOURCE / "models" / "tiny-nemotron-h", load=())
        subscriber = self.subscribe(*at)
        there = lambda: Mirror(self, subscriber.synchronize().events()).there
        fill = lambda salt=None: self.generate(server, list(range(5, 5 + 4 * BLOCK)), salt)
        fill()
        plain = there()
        self.assertEqual(len(plain), 4)
        fill("tenant")
        salted = there() - plain
        self.assertEqual(len(salted), 4)  # its own, beside those without a salt
        first = next(e for e in subscriber.events() if isinstance(e, BlockStored) and salted & set(e.block_hashes))
        self.assertEqual(first.extra_keys, [("tenant",)] + [None] * (len(first.block_hashes) - 1))
        self.flush(server)
        self.assertEqual(there(), set())
        fill()
        self.assertEqual(there(), plain)  # the same names again
        status, answer = server.post("/update_weights_from_disk", {"model_path": str(SOURCE / "models" / "tiny-nemotron-h")})
        self.assertEqual((status, answer["success"]), (200, True), answer)
        self.assertEqual(there(), set())
        fill()
        self.assertEqual(there(), plain)
        for tags in (["kv_cache"], ["weights"]):
            self.assertEqual(server.post("/release_memory_occupation", {"tags": tags})[0], 200)
            self.assertEqual(server.post("/resume_memory_occupation", {"tags": tags})[0], 200)
            self.assertEqual(there(), set())
            fill()
            self.assertEqual(there(), plain)

    def test_equal_prefixes_have_equal_hashes_on_two_servers(self):
        mirrors = []
        for words in ((), ("--max-running-requests", 3, "--chunked-prefill-size", 16)):
            server, *at = self.start(*words)
            for salt in (None, "tenant"):
                self.generate(server, list(range(50, 150)), salt, new=30)
            mirrors.append(Mirror(self, self.subscribe(*at).synchronize().events()))
        self.assertEqual(mirrors[0].name_of, mirrors[1].name_of)
        self.assertEqual(mirrors[0].there, mirrors[1].there)
        self.assertEqual(len(mirrors[0].there), 2 * (129 // BLOCK))  # the last token is in no block yet

    def test_arrays_as_in_2025(self):
        server, *at = self.start(event_format="array", topic="")
        subscriber = self.subscribe(*at, topic=b"", batch=OldBatch, topic_in_replay=False)
        self.generate(server, list(range(5, 40)), "salt")
        self.flush(server)
        stored = [e for e in subscriber.synchronize().events() if isinstance(e, OldStored)]
        self.assertEqual([t for e in stored for t in e.token_ids], list(range(5, 37)))
        self.assertIsInstance(list(subscriber.events())[-1], OldCleared)
        for payload in subscriber.payloads.values():
            for event in msgpack.unpackb(payload)[1]:
                if event[0] == "BlockStored":
                    self.assertEqual(event[5:8], [None, "GPU", None])
                    self.assertEqual(event[8], [["salt"], None, None, None])


class Subscribers(WithEvents):
    def test_a_slow_one_and_none_delay_nobody(self):
        # Nobody listens at first; then one takes nothing and has room for two messages.
        server, *at = self.start(hwm=2, buffer_steps=5)
        self.generate(server, list(range(5, 100)), new=10)
        slow = self.subscribe(*at, hwm=1)
        slow.wait_until_subscribed(lambda: self.flush(server))
        for _ in range(400):
            self.flush(server)
        self.assertEqual(self.generate(server, list(range(5, 100)))[0], 0)
        # The gap shows in the sequence numbers, and what is left of the past can be asked for.
        numbers = []
        while slow.live.poll(200):
            numbers.append(slow.take_live()[0])
        self.assertEqual(numbers, sorted(set(numbers)))
        kept = [n for n, _ in slow.ask(0)]
        self.assertEqual(kept, list(range(kept[0], kept[0] + 5)))
        self.assertGreaterEqual(kept[-1], 400)
        # A subscriber that missed the beginning begins anew where the cache was emptied.
        mirror = None
        for _, payload in slow.ask(0):
            for event in msgspec.msgpack.decode(payload, type=Batch).events:
                if isinstance(event, AllBlocksCleared):
                    mirror = Mirror(self, [])
                elif mirror is not None:
                    mirror.apply(event)
        tokens = list(range(5, 100))
        self.assertEqual(self.generate(server, tokens)[0], mirror.cached(tokens))

    def test_over_tcp_and_told_to_routers(self):
        server, *_ = self.start(endpoint="tcp://*:0", replay_endpoint="tcp://127.0.0.1:0")
        told = json.loads(server.get("/server_info")[2])["kv_events"]
        self.assertEqual({k: told[k] for k in ("publisher", "endpoint_host", "topic", "block_size", "dp_size")},
                         {"publisher": "zmq", "endpoint_host": "*", "topic": "kv", "block_size": BLOCK, "dp_size": 1})
        self.assertEqual(told["endpoint"], f"tcp://*:{told['endpoint_port_base']}")
        self.assertIn("can read them", server.log())
        subscriber = self.subscribe(f"tcp://127.0.0.1:{told['endpoint_port_base']}", told["replay_endpoint"])
        subscriber.wait_until_subscribed(lambda: self.flush(server))
        self.generate(server, list(range(5, 40)))
        self.assertEqual(len(Mirror(self, subscriber.synchronize().events()).there), 4)
        self.assertEqual(server.stop(), 0)

    def test_a_server_that_calls_its_subscriber(self):
        context = zmq.Context()
        self.addCleanup(context.destroy, 0)
        live = context.socket(zmq.SUB)
        self.addCleanup(live.close, 0)  # before the context: cleanups go backwards
        live.set(zmq.SUBSCRIBE, b"")
        port = live.bind_to_random_port("tcp://127.0.0.1")
        server, *_ = self.start(endpoint=f"tcp://127.0.0.1:{port}")
        begin = time.monotonic()
        while not live.poll(50):
            self.assertLess(time.monotonic() - begin, TIMEOUT)
            self.flush(server)
        self.assertEqual(live.recv_multipart()[0], b"kv")

    def test_the_end_does_not_wait_for_a_subscriber(self):
        server, *at = self.start()
        slow = self.subscribe(*at, hwm=1)
        slow.wait_until_subscribed(lambda: self.flush(server))
        for _ in range(100):
            self.flush(server)
        self.assertEqual(server.stop(), 0)


class Options(WithEvents):
    def refused(self, config, needle, *words, code=2):
        result = subprocess.run([PROGRAM, "serve", "--model-path", self.model, "--load-format", "dummy", "--port", "0", *words,
                                 "--kv-events-config", config if isinstance(config, str) else json.dumps(config)],
                                capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertIn(needle, result.stderr)

    def test_what_is_refused(self):
        zmq_ = {"publisher": "zmq"}
        self.refused("", "--kv-events-config", code=2)
        self.refused("[]", "accepted: a JSON object")
        self.refused("{", "--kv-events-config")
        self.refused({"publisher": "kafka"}, 'publisher is "kafka"; accepted: zmq, null')
        self.refused({**zmq_, "endpoint": "inproc://a"}, "endpoint is")
        self.refused({**zmq_, "endpoint": ""}, "endpoint is empty")
        self.refused({**zmq_, "endpoint": "tcp://*:notaport"}, "cannot listen at")
        self.refused({**zmq_, "replay_endpoint": "ipc:///no/such/folder/x"}, "cannot listen at")
        self.refused({**zmq_, "hwm": 0}, "hwm is 0")
        self.refused({**zmq_, "buffer_steps": -1}, "buffer_steps is -1")
        self.refused({**zmq_, "max_queue_size": 1.5}, "max_queue_size is 1.5")
        self.refused({**zmq_, "topic": 7}, "topic is 7")
        self.refused({**zmq_, "event_format": "json"}, "accepted: map, array")
        self.refused({**zmq_, "end_point": "tcp://*:1"}, "end_point is not a parameter")
        self.refused(zmq_, "needs the prefix cache", "--disable-radix-cache")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.refused({**zmq_, "replay_endpoint": f"tcp://127.0.0.1:{taken.getsockname()[1]}", "endpoint": f"ipc://{self.folder}/a"},
                         "cannot listen at")

    def test_what_publishes_nothing(self):
        for config in ({}, {"publisher": "null"}, {"enable_kv_cache_events": False, "publisher": "zmq", "endpoint": "tcp://*:1"}):
            server = Server(PROGRAM, self.model, "--load-format", "dummy", "--kv-events-config", json.dumps(config))
            self.addCleanup(server.close)
            self.assertIsNone(json.loads(server.get("/server_info")[2])["kv_events"])


if __name__ == "__main__":
    built = subprocess.run([PROGRAM, "serve", "--model-path", "/nonexistent", "--kv-events-config", '{"publisher": "zmq"}'],
                           capture_output=True, text=True, timeout=TIMEOUT)
    if "libzmq" in built.stderr:
        assert built.returncode != 0
        print(f"skipped: {built.stderr.strip()}")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
