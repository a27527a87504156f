# SPDX-License-Identifier: Apache-2.0
"""What RL trainers ask of `sluice serve`: pauses, versions, checksums, other weights, memory given back.

usage: control_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import json
import math
import os
import pathlib
import shutil
import struct
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from checkpoint_bytes import checksums, halved, other_weights, read_checkpoint, SharedTensors  # noqa: E402
from serve_driver import TIMEOUT  # noqa: E402
from serve_case import CHAT, main, MODEL, NEVER_ENDS, PROMPT, SOURCE, WithServer  # noqa: E402

LOGPROBS = {"text": PROMPT, "return_logprob": True, "logprob_start_len": 0,
            "sampling_params": {"max_new_tokens": 8, "temperature": 0}}


class Control(WithServer):
    def answer(self):
        got = self.ok("/generate", LOGPROBS)
        meta = got["meta_info"]
        return got["output_ids"], meta["input_token_logprobs"], meta["output_token_logprobs"]

    def info(self, key):
        return json.loads(self.server.get("/model_info")[2])[key]

    def begin(self, path, body):
        """(thread, list that gets the status and the answer)."""
        out = []
        thread = threading.Thread(target=lambda: out.extend(self.server.post(path, body)))
        thread.start()
        return thread, out

    def begin_many(self, tokens):
        """[(thread, list)] of requests that run for seconds, some of which run when this returns. One alone may be over
        before a slow machine looks, and many take minutes with sanitizers: their number follows from the speed."""
        def body(n):
            return {"text": "Once", "sampling_params": {"max_new_tokens": n, "ignore_eos": True, "temperature": 0}}

        alone = tokens / self.tokens_for(1)
        begun = [self.begin("/generate", body(tokens)) for _ in range(max(1, min(24, round(6 / alone))))]
        while self.server.metric("num_running_reqs") < 1:
            time.sleep(0.005)
        return begun

    def failed(self, path, body, status=400, param=None, needle=""):
        """A refusal in SGLang's form."""
        got, answer = self.server.post(path, body)
        self.assertEqual((got, answer["success"]), (status, False), answer)
        self.assertEqual(answer["message"], answer["error"]["message"])
        if param is not None:
            self.assertEqual(answer["error"]["param"], param, answer)
        self.assertIn(needle, answer["message"])
        return answer


class Pauses(Control):
    endless = True

    tokens = 1_000_000  # of a request that a test ends: one that ends by itself may be over before a busy machine looks

    def tearDown(self):
        self.ok("/continue_generation", {})
        self.ok("/abort_request", {"abort_all": True})

    def running(self, **more):
        return self.begin("/generate", {"text": "Once", "rid": "long", "return_logprob": True,
                                        "sampling_params": {"max_new_tokens": self.tokens, "ignore_eos": True, "temperature": 0},
                                        **more})

    def pause_while_running(self, mode):
        self.server.wait_until_idle()
        before = self.server.metric("generation_tokens_total")
        thread, out = self.running()
        while self.server.metric("generation_tokens_total") < before + 20:
            time.sleep(0.01)
        answer = self.ok("/pause_generation", {} if mode is None else {"mode": mode})
        self.assertEqual(answer["status"], "ok")
        return thread, out

    def test_abort_ends_what_runs(self):
        for mode in (None, "abort"):
            thread, out = self.pause_while_running(mode)
            thread.join(TIMEOUT)
            self.assertEqual(out[1]["meta_info"]["finish_reason"]["type"], "abort")
            self.assertGreaterEqual(len(out[1]["output_ids"]), 20)  # what there was is not lost
            # What comes meanwhile waits.
            thread, out = self.begin("/v1/completions", {"prompt": "a", "max_tokens": 3})
            thread.join(0.5)
            self.assertTrue(thread.is_alive())
            self.assertEqual(self.server.get("/health")[0], 200)
            self.assertEqual(self.server.get("/health_generate")[0], 200)  # on purpose, so no sickness
            self.ok("/continue_generation", "")
            thread.join(TIMEOUT)
            self.assertEqual(out[0], 200)

    def test_what_waits_goes_on_to_the_same_answer(self):
        for mode in ("retract", "in_place"):
            thread, out = self.pause_while_running(mode)
            time.sleep(0.2)
            steps = self.server.metric("generation_tokens_total")
            time.sleep(0.2)
            self.assertEqual(self.server.metric("generation_tokens_total"), steps)
            self.assertEqual(self.server.metric("num_running_reqs"), 1 if mode == "in_place" else 0)
            self.assertTrue(self.ok("/flush_cache", "")["success"])
            self.ok("/continue_generation", {})
            while self.server.metric("generation_tokens_total") < steps + 20:
                time.sleep(0.01)
            self.ok("/abort_request", {"rid": "long"})
            thread.join(TIMEOUT)
            # As many tokens without a pause.
            whole = self.ok("/generate", {"text": "Once", "return_logprob": True, "sampling_params": {
                "max_new_tokens": len(out[1]["output_ids"]), "ignore_eos": True, "temperature": 0}})
            self.assertEqual(out[1]["output_ids"], whole["output_ids"], mode)
            self.assertEqual(out[1]["meta_info"]["output_token_logprobs"], whole["meta_info"]["output_token_logprobs"])

    def test_paused_requests_can_be_aborted_and_left(self):
        thread, out = self.pause_while_running("in_place")
        self.ok("/abort_request", {"rid": "long"})
        thread.join(TIMEOUT)
        self.assertEqual(out[1]["meta_info"]["finish_reason"]["type"], "abort")

    def test_a_stream_pauses_in_its_middle(self):
        with self.server.connect() as s:
            body = json.dumps(NEVER_ENDS).encode()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                      b"Content-Length: %d\r\n\r\n" % len(body) + body)
            self.assertTrue(s.recv(65536))
            self.ok("/pause_generation", {"mode": "retract"})
            s.settimeout(0.5)
            with self.assertRaises(TimeoutError):
                while True:
                    self.assertTrue(s.recv(1 << 20))
            self.ok("/continue_generation", {})
            s.settimeout(TIMEOUT)
            self.assertTrue(s.recv(65536))
        self.server.wait_until_idle()

    def test_bad_input(self):
        for body in ({"mode": "stop"}, {"mode": 7}, {"mode": ""}):
            self.refused("/pause_generation", body, "mode")
        self.refused("/pause_generation", {"modes": "abort"}, "modes")
        self.refused("/continue_generation", {"x": 1}, "x")
        for body in ("[]", "x", "7"):
            self.refused("/pause_generation", body)


class Shutdown(Control):
    endless = True

    def test_a_paused_server_ends_at_once(self):
        thread, out = self.begin("/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 1_000_000, "ignore_eos": True}})
        self.server.wait_for_metric("num_running_reqs", 1)
        self.ok("/pause_generation", {"mode": "in_place"})
        begin = time.monotonic()
        self.assertEqual(self.server.stop(), 0)
        self.assertLess(time.monotonic() - begin, 20)  # not the 60 s of --shutdown-timeout
        thread.join(TIMEOUT)
        self.assertEqual(out[1]["meta_info"]["finish_reason"]["type"], "abort")


class Versions(Control):
    def test_every_answer_names_the_weights(self):
        self.assertEqual(self.info("weight_version"), "0")
        named = self.ok("/update_weight_version", {"new_version": "step-3"})
        self.assertEqual((named["success"], named["new_version"]), (True, "step-3"))
        self.assertEqual(self.info("weight_version"), "step-3")
        self.assertEqual(self.ok("/generate", LOGPROBS)["meta_info"]["weight_version"], "step-3")
        for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": CHAT})):
            self.assertEqual(self.ok(path, {**body, "max_tokens": 2})["metadata"], {"weight_version": "step-3"})
            events = self.server.stream(path, {**body, "max_tokens": 2, "n": 2, "ignore_eos": True})[1]
            for event in events:  # that of the weights that made the choice's last token
                last = event["choices"][0]["finish_reason"] is not None
                self.assertEqual(event.get("metadata"), {"weight_version": "step-3"} if last else None, event)
            self.assertEqual(sum("metadata" in event for event in events), 2)
        status, events = self.server.stream("/generate", LOGPROBS)
        self.assertEqual({e["meta_info"]["weight_version"] for e in events}, {"step-3"})
        message, response = {"messages": CHAT, "max_tokens": 2}, {"input": "a", "max_output_tokens": 2, "metadata": {"a": "b"}}
        self.assertEqual(self.ok("/v1/messages", message)["weight_version"], "step-3")
        got = self.ok("/v1/responses", response)
        self.assertEqual((got["weight_version"], got["metadata"]), ("step-3", {"a": "b"}))
        for path, body, bearer in (("/v1/messages", message, lambda e: e),
                                   ("/v1/responses", response, lambda e: e.get("response", {}))):
            text = self.server.request("POST", path, {**body, "stream": True})[2]
            events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
            named = {e["type"] for e in events if bearer(e).get("weight_version") == "step-3"}
            self.assertEqual(named, {"message_delta"} if path == "/v1/messages" else {"response.incomplete"})
        done = self.ok("/update_weights_from_disk", {"model_path": str(MODEL)})
        self.assertEqual(done["weight_version"], "1")
        self.assertEqual(self.info("weight_version"), "1")
        for body in ({}, {"new_version": ""}, {"new_version": 7}, {"new_version": "x" * 257}, {"new_version": "a", "x": 1}):
            self.refused("/update_weight_version", body)
        self.assertEqual(self.info("weight_version"), "1")


class Weights(Control):
    words = ("--allow-weight-update",)

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-weights-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.words = (*cls.words, "--weights-folder", str(cls.folder))
        super().setUpClass()
        cls.tensors = read_checkpoint(MODEL)
        cls.norm = next(name for name in sorted(cls.tensors) if name.endswith("norm_f.weight"))

    def setUp(self):
        self.ok("/update_weights_from_disk", {"model_path": str(MODEL)})

    def checker(self, **more):
        return self.ok("/weights_checker", {"action": "checksum", **more})

    def test_checksums_are_hashlibs(self):
        each, all_of_them = checksums(self.tensors)
        got = self.checker()
        self.assertTrue(got["success"])
        self.assertEqual(got["ranks"][0]["checksums"], each)
        self.assertEqual(got["per_engine_checksum"], all_of_them)
        skipped = self.checker(skip_tensor_list=[self.norm])
        self.assertEqual(set(each) - set(skipped["ranks"][0]["checksums"]), {self.norm})
        self.assertNotEqual(skipped["per_engine_checksum"], all_of_them)
        self.assertEqual(json.loads(self.server.get("/weights_checker")[2])["per_engine_checksum"], all_of_them)
        for body in ({"action": "snapshot"}, {"action": 7}, {"selector": "draft"}, {"skip_tensor_list": 7}, {"x": 1}):
            self.refused("/weights_checker", body, next(iter(body)))

    def test_values_by_name(self):
        for name, (dtype, shape, data) in sorted(self.tensors.items())[:40]:
            rows = self.ok("/get_weights_by_name", {"name": name, "truncate_size": 3})
            width = math.prod(shape[1:])
            count = min(3, shape[0]) * width
            if dtype == "F32":
                expected = list(struct.unpack(f"<{count}f", data[:count * 4]))
            else:
                expected = [struct.unpack("<f", b"\0\0" + data[2 * i:2 * i + 2])[0] for i in range(count)]
            flat = rows
            for _ in shape[1:]:
                flat = [v for row in flat for v in row]
            self.assertEqual(len(rows), min(3, shape[0]))
            self.assertEqual([struct.pack("<f", v) for v in flat], [struct.pack("<f", v) for v in expected], name)
        for body in ({}, {"name": 7}, {"name": "model.nothing"}, {"name": self.norm, "truncate_size": 0},
                     {"name": self.norm, "truncate_size": 10**9}, {"name": self.norm, "x": 1}):
            self.refused("/get_weights_by_name", body)

    def test_tensors_come_through_shared_memory(self):
        fresh = self.answer()
        changed = {name: halved(t) for name, t in self.tensors.items() if "in_proj" in name or name == self.norm}
        with SharedTensors(changed) as spec:
            done = self.ok("/update_weights_from_tensor", {**spec, "weight_version": "half", "flush_cache": False,
                                                           "load_format": "flattened_bucket"})
        self.assertEqual((done["success"], done["weight_version"]), (True, "half"))
        each, all_of_them = checksums({**self.tensors, **changed})
        got = self.checker()
        self.assertEqual(got["ranks"][0]["checksums"], each)
        self.assertEqual((got["per_engine_checksum"], got["weight_version"]), (all_of_them, "half"))
        other = self.answer()
        self.assertNotEqual(other, fresh)
        # The same as of a checkpoint with these tensors, and back.
        with SharedTensors({name: self.tensors[name] for name in changed}) as spec:
            self.ok("/update_weights_from_tensor", spec)
        self.assertEqual(self.answer(), fresh)
        self.assertEqual(self.checker()["ranks"][0]["checksums"], checksums(self.tensors)[0])
        with SharedTensors(changed) as spec:
            self.ok("/update_weights_from_tensor", spec)
        self.assertEqual(self.answer(), other)

    def test_tensors_come_from_a_file(self):
        fresh = self.answer()
        dtype, shape, data = halved(self.tensors[self.norm])
        (self.folder / "bucket").write_bytes(b"before" + data)
        spec = [{"name": self.norm, "dtype": {"BF16": "torch.bfloat16", "F32": "float32"}[dtype], "shape": shape, "offset": 6}]
        self.ok("/update_weights_from_tensor", {"tensors": spec, "file": str(self.folder / "bucket")})
        self.assertNotEqual(self.answer(), fresh)
        os.symlink("/etc/passwd", self.folder / "link")
        for path in ("/etc/passwd", str(self.folder / "link"), str(self.folder / ".." / ".." / "etc" / "passwd"),
                     str(self.folder), str(self.folder / "nothing"), "", "bucket", str(self.folder / "bucket") + "\0"):
            self.failed("/update_weights_from_tensor", {"tensors": spec, "file": path}, param="file")

    def test_all_or_nothing(self):
        """Nothing of a refused update is in place, wherever in it the mistake is."""
        fresh, before = self.answer(), self.checker()
        good = {name: halved(t) for name, t in sorted(self.tensors.items())[:6]}
        with SharedTensors(good) as spec:
            tensors = spec["tensors"]
            bad = lambda **more: {**spec, "tensors": [*tensors[:-1], {**tensors[-1], **more}]}
            last = "tensors[5]."
            for body, param in ((bad(name="model.nothing"), last + "name"), (bad(name=tensors[0]["name"]), last + "name"),
                                (bad(name=7), last + "name"), (bad(dtype="F16"), last + "dtype"),
                                (bad(dtype="pickle"), last + "dtype"), (bad(dtype=None), last + "dtype"),
                                (bad(shape=[2**62, 4]), last + "shape"), (bad(shape=[-1]), last + "shape"),
                                (bad(shape="x"), last + "shape"), (bad(shape=None), last + "shape"),
                                (bad(offset=-1), last + "offset"), (bad(offset=2**63 - 1), last + "offset"),
                                (bad(offset=tensors[-1]["offset"] + 1), last + "offset"), (bad(offset=None), last + "offset"),
                                (bad(extra=1), last + "extra"), ({**spec, "tensors": []}, "tensors"),
                                ({**spec, "tensors": 7}, "tensors"), ({**spec, "tensors": [7]}, "tensors[0]"),
                                ({**spec, "shared_memory": None}, "shared_memory"),
                                ({**spec, "file": str(self.folder / "x")}, "shared_memory"),
                                ({**spec, "shared_memory": "sluice_nothing"}, "shared_memory"),
                                ({**spec, "shared_memory": "../../etc/passwd"}, "shared_memory"),
                                ({**spec, "shared_memory": "/a/b"}, "shared_memory"),
                                ({**spec, "shared_memory": ""}, "shared_memory"), ({**spec, "shared_memory": "."}, "shared_memory"),
                                ({**spec, "shared_memory": "x" * 300}, "shared_memory"),
                                ({**spec, "serialized_named_tensors": ["gASV"]}, "serialized_named_tensors"),
                                ({**spec, "cuda_ipc_handle": "AAAA"}, "cuda_ipc_handle"),
                                ({**spec, "load_format": "my.loader"}, "load_format"), ({**spec, "selector": "draft"}, "selector"),
                                ({**spec, "weight_version": 7}, "weight_version"), ({**spec, "unknown": 1}, "unknown")):
                self.failed("/update_weights_from_tensor", body, param=param)
        self.assertEqual(self.answer(), fresh)
        self.assertEqual(self.checker(), before)

    def test_an_update_of_several_calls_is_one(self):
        fresh = self.answer()
        changed = {name: halved(t) for name, t in sorted(self.tensors.items())}
        names = list(changed)
        self.ok("/begin_weight_update", "")
        for part in (names[:len(names) // 2], names[len(names) // 2:]):
            self.assertEqual(self.answer(), fresh)  # half of them are there, and none is in place
            with SharedTensors({name: changed[name] for name in part}) as spec:
                self.ok("/update_weights_from_tensor", spec)
        self.assertEqual(self.checker()["ranks"][0]["checksums"], checksums(self.tensors)[0])
        done = self.ok("/end_weight_update", {"weight_version": "all"})
        self.assertEqual(done["weight_version"], "all")
        self.assertEqual(self.checker()["ranks"][0]["checksums"], checksums(changed)[0])
        self.assertNotEqual(self.answer(), fresh)
        self.failed("/end_weight_update", {}, needle="no update has begun")
        self.failed("/begin_weight_update", {"x": 1}, param="x")

    def test_while_paused_requests_go_on_with_the_new_weights(self):
        changed = {name: halved(t) for name, t in self.tensors.items() if "in_proj" in name}
        tokens = min(1900, self.tokens_for(1))
        body = {"text": PROMPT, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0}}
        for mode in ("retract", "in_place"):
            self.setUp()
            self.server.wait_until_idle()
            before = self.server.metric("generation_tokens_total")
            thread, out = self.begin("/generate", body)
            while self.server.metric("generation_tokens_total") < before + 5:
                time.sleep(0.005)
            self.ok("/pause_generation", {"mode": mode})
            with SharedTensors(changed) as spec:
                self.ok("/update_weights_from_tensor", {**spec, "weight_version": mode})
            self.ok("/continue_generation", {})
            thread.join(TIMEOUT)
            self.assertEqual(out[1]["meta_info"]["finish_reason"]["type"], "length", out)
            self.assertEqual(out[1]["meta_info"]["weight_version"], mode)  # that of the last token
            self.assertEqual(len(out[1]["output_ids"]), tokens)
            # Later requests are the new weights' alone.
            after = self.answer()
            self.ok("/flush_cache", "")
            self.assertEqual(self.answer(), after)
        # Without a pause, what runs is aborted.
        self.setUp()
        begun = self.begin_many(1900)
        with SharedTensors(changed) as spec:
            self.ok("/update_weights_from_tensor", spec)
        for thread, _ in begun:
            thread.join(TIMEOUT)
        self.assertIn("abort", [out[1]["meta_info"]["finish_reason"]["type"] for _, out in begun])

    def begin_paused(self, mode, count=3):
        """[(thread, list)] of requests that a pause has stopped in their middle, and the number of their tokens."""
        tokens = min(1900, self.tokens_for(1))
        body = {"text": PROMPT, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0}}
        while True:
            self.server.wait_for_metric("num_running_reqs", 0)
            before = self.server.metric("generation_tokens_total")
            begun = [self.begin("/generate", body) for _ in range(count)]
            while self.server.metric("generation_tokens_total") < before + 5:
                time.sleep(0.005)
            self.ok("/pause_generation", {"mode": mode})
            if self.server.metric("num_running_reqs") + self.server.metric("num_queue_reqs") == count:
                return begun, tokens
            self.ok("/continue_generation", {})  # some had ended before the pause came
            for thread, _ in begun:
                thread.join(TIMEOUT)

    def test_another_checkpoint_takes_the_place_of_the_first(self):
        """As SGLang's test_update_weights_from_disk: paused requests go on with it, and it is the one that is named."""
        other = other_weights(pathlib.Path(shutil.copytree(MODEL, self.folder / "other")))
        fresh = self.answer()
        done = self.ok("/update_weights_from_disk", {"model_path": str(other)})
        self.assertEqual((self.info("model_path"), self.info("weight_version")), (str(other), done["weight_version"]))
        self.assertEqual(self.checker()["ranks"][0]["checksums"], checksums(read_checkpoint(other))[0])
        changed = self.answer()
        self.assertNotEqual(changed[0], fresh[0])
        for mode in ("in_place", "retract"):
            self.setUp()
            self.assertEqual(self.info("model_path"), str(MODEL))
            begun, tokens = self.begin_paused(mode)
            self.ok("/update_weights_from_disk", {"model_path": str(other), "flush_cache": mode == "retract"})
            self.ok("/continue_generation", {})
            for thread, out in begun:
                thread.join(TIMEOUT)
                self.assertEqual((out[1]["meta_info"]["finish_reason"]["type"], len(out[1]["output_ids"])), ("length", tokens))
            self.assertEqual(self.answer(), changed, mode)
        begun = self.begin_many(1900)
        self.ok("/update_weights_from_disk", {"model_path": str(MODEL), "abort_all_requests": True})
        for thread, _ in begun:
            thread.join(TIMEOUT)
        self.assertIn("abort", [out[1]["meta_info"]["finish_reason"]["type"] for _, out in begun])
        self.assertEqual(self.answer(), fresh)

    def test_a_refused_update_leaves_paused_requests_as_they_are(self):
        """They wait for /continue_generation, whatever came between, and then end with the old weights' text."""
        shapes = self.folder / "shapes"
        shutil.copytree(SOURCE / "tests" / "fixtures" / "qwen3-moe", shapes)
        cut = self.folder / "cut"  # fails after the first of its two files has been read
        shutil.copytree(MODEL, cut)
        last = sorted(cut.glob("model*.safetensors"))[-1]
        os.truncate(last, last.stat().st_size - 1)
        for mode in ("in_place", "retract"):
            begun, tokens = self.begin_paused(mode, count=1)
            version = self.info("weight_version")
            self.failed("/update_weights_from_disk", {"model_path": str(shapes)}, param="model_path", needle="other shapes")
            self.failed("/update_weights_from_disk", {"model_path": str(self.folder / "nowhere")}, param="model_path")
            self.failed("/update_weights_from_disk", {"model_path": str(cut)}, param="model_path")
            self.assertEqual((self.info("model_path"), self.info("weight_version")), (str(MODEL), version))
            (thread, out), = begun
            self.assertTrue(thread.is_alive())
            self.ok("/continue_generation", {})
            thread.join(TIMEOUT)
            whole = self.ok("/generate", {"text": PROMPT, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True,
                                                                              "temperature": 0}})
            self.assertEqual(out[1]["meta_info"]["finish_reason"]["type"], "length")
            self.assertEqual(out[1]["output_ids"], whole["output_ids"], mode)

    def test_files_that_changed_are_not_the_weights(self):
        copy = self.folder / "copy"
        shutil.copytree(MODEL, copy)
        self.ok("/update_weights_from_disk", {"model_path": str(copy)})
        self.checker()
        os.utime(next(copy.glob("model*.safetensors")), (1, 1))
        self.refused("/weights_checker", {}, needle="written to")
        self.refused("/get_weights_by_name", {"name": self.norm}, needle="written to")
        with SharedTensors({self.norm: self.tensors[self.norm]}) as spec:
            self.failed("/update_weights_from_tensor", spec, needle="written to")
        self.assertTrue(self.answer())

    def test_what_needs_torch_says_so(self):
        for path in ("/init_weights_update_group", "/destroy_weights_update_group", "/update_weights_from_distributed",
                     "/update_weights_from_ipc"):
            self.failed(path, {}, status=501, needle="/update_weights_from_tensor")

    def test_as_slime_does(self):
        """pause, flush until 200, tensors, version, continue; every step."""
        for step in range(3):
            self.ok("/pause_generation", {})
            self.assertEqual(self.server.get("/flush_cache")[0], 200)
            new = {name: halved(t) if step % 2 == 0 else t for name, t in self.tensors.items()}
            names = list(new)
            for at in range(0, len(names), 20):
                with SharedTensors({name: new[name] for name in names[at:at + 20]}) as spec:
                    self.ok("/update_weights_from_tensor", {**spec, "load_format": "flattened_bucket", "flush_cache": False,
                                                            "weight_version": str(step)})
            self.ok("/continue_generation", {})
            self.assertEqual(self.checker()["ranks"][0]["checksums"], checksums(new)[0])
            self.assertEqual(self.ok("/generate", LOGPROBS)["meta_info"]["weight_version"], str(step))


class Memory(Control):
    words = ("--allow-weight-update", "--max-total-tokens", "60000")

    def resident(self):
        text = pathlib.Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(next(line for line in text.splitlines() if line.startswith("VmRSS:")).split()[1]) * 1024

    def unavailable(self, needle):
        for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": CHAT}),
                           ("/generate", {"text": "a"})):
            self.refused(path, body, status=503, needle=needle)

    def test_as_verl_does(self):
        """Abort, release, (training), weights back, tensors, cache back; every step, with the same answers at the end."""
        tensors = read_checkpoint(MODEL)
        fresh = self.answer()
        for step in range(3):
            self.ok("/pause_generation", {"mode": "abort"})
            self.ok("/continue_generation", {})
            self.ok("/release_memory_occupation", {"tags": ["kv_cache", "weights"]})
            self.unavailable("weights and kv_cache")
            self.assertEqual(self.server.get("/health")[0], 200)
            self.ok("/resume_memory_occupation", {"tags": ["weights"]})
            self.unavailable("kv_cache")
            names = list(tensors)
            for at in range(0, len(names), 30):
                with SharedTensors({name: tensors[name] for name in names[at:at + 30]}) as spec:
                    self.ok("/update_weights_from_tensor", {**spec, "flush_cache": False})
            self.ok("/resume_memory_occupation", {"tags": ["kv_cache"]})
            self.assertTrue(self.ok("/flush_cache", "")["success"])
            self.assertEqual(self.answer(), fresh, step)
        self.ok("/update_weights_from_disk", {"model_path": str(MODEL)})

    def test_memory_goes_back(self):
        prompts = 4 if self.server.sanitized() else 16  # 16 take longer than a client waits there
        fill = lambda: self.ok("/v1/completions", {"prompt": [[i + 3] * 1900 for i in range(prompts)], "max_tokens": 1})
        fresh = self.answer()
        fill()
        before = self.resident()
        self.ok("/release_memory_occupation", {"tags": ["kv_cache"]})
        after = self.resident()
        # 1900 tokens of keys and values for each prompt.
        self.assertLess(after, before - 500_000 * prompts, (before, after))
        weights = self.server.metric("weight_memory_usage_gb") * 1e9
        self.ok("/release_memory_occupation", {"tags": ["weights"]})
        if not self.server.sanitized():  # most of them: pages that hold anything else as well stay
            self.assertLess(self.resident(), after - weights / 2, (after, weights))
        self.ok("/release_memory_occupation", {})  # twice is once
        self.ok("/resume_memory_occupation", {})
        self.assertEqual(self.answer(), fresh)
        fill()
        self.assertEqual(self.answer(), fresh)

    def test_updated_tensors_are_awaited(self):
        tensors = read_checkpoint(MODEL)
        names = sorted(tensors)[:3]
        changed = {name: halved(tensors[name]) for name in names}
        with SharedTensors(changed) as spec:
            self.ok("/update_weights_from_tensor", spec)
        updated = self.answer()
        self.ok("/release_memory_occupation", {"tags": ["weights"]})
        self.failed("/update_weights_from_tensor", {**spec}, status=400)  # the memory is gone
        self.ok("/resume_memory_occupation", {})
        self.unavailable("3 tensors")
        with SharedTensors({name: changed[name] for name in names[:2]}) as spec:
            self.ok("/update_weights_from_tensor", spec)
        self.unavailable(names[2])
        with SharedTensors({names[2]: changed[names[2]]}) as spec:
            self.ok("/update_weights_from_tensor", spec)
        self.assertEqual(self.answer(), updated)
        self.ok("/update_weights_from_disk", {"model_path": str(MODEL)})

    def test_not_under_running_requests(self):
        begun = self.begin_many(1500)
        self.refused("/release_memory_occupation", {}, status=503, needle="pause")
        self.ok("/pause_generation", {"mode": "retract"})
        self.ok("/release_memory_occupation", {})
        self.ok("/resume_memory_occupation", {})
        self.ok("/continue_generation", {})
        for thread, out in begun:
            thread.join(TIMEOUT)
            self.assertEqual(out[1]["meta_info"]["finish_reason"]["type"], "length")

    def test_bad_input(self):
        for path in ("/release_memory_occupation", "/resume_memory_occupation"):
            for body in ({"tags": ["x"]}, {"tags": 7}, {"tags": [7]}, {"tag": "weights"}):
                self.refused(path, body, next(iter(body)))


class NotAllowed(Control):
    def test_updates_need_the_option(self):
        with SharedTensors({"a": ("F32", [1], b"\0" * 4)}) as spec:
            for path, body in (("/update_weights_from_tensor", spec), ("/begin_weight_update", ""), ("/end_weight_update", "")):
                self.failed(path, body, status=403, needle="--allow-weight-update")


class Quantized(Control):
    words = ("--allow-weight-update", "--quantization", "mxfp4")

    def test_bf16_is_quantised_as_by_the_loader(self):
        tensors = read_checkpoint(MODEL)
        fresh = self.answer()
        changed = {name: halved(t) for name, t in tensors.items()}
        for new in (changed, tensors):
            with SharedTensors(new) as spec:
                self.ok("/update_weights_from_tensor", spec)
        self.assertEqual(self.answer(), fresh)


if __name__ == "__main__":
    main()
