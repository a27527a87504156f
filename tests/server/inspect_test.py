# SPDX-License-Identifier: Apache-2.0
"""What routers and operators ask of `sluice serve`: information, loads, experts, traces; and when requests run.

usage: inspect_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import base64
import json
import pathlib
import shutil
import struct
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from serve_case import CHAT, CONTEXT, main, MODEL, NEVER_ENDS, PROMPT, WithServer  # noqa: E402
from serve_driver import raw_post  # noqa: E402

CONFIG = json.loads((MODEL / "config.json").read_text())
LAYERS, EXPERTS, TOP_K = CONFIG["num_hidden_layers"], CONFIG["n_routed_experts"], CONFIG["num_experts_per_tok"]
GREEDY = {"max_new_tokens": 6, "temperature": 0}


class Inspect(WithServer):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-profile-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.words = ("--profile-folder", str(cls.folder), "--enable-priority-scheduling")
        super().setUpClass()

    def get_json(self, path):
        status, _, text = self.server.get(path)
        self.assertEqual(status, 200, text)
        return json.loads(text)

    def test_what_a_router_reads(self):
        self.server.wait_until_idle()  # of what other tests cancelled
        for path in ("/server_info", "/get_server_info"):
            info = self.get_json(path)
            self.assertEqual((info["model_path"], info["served_model_name"]), (str(MODEL), "tiny"))
            self.assertEqual((info["dp_size"], info["context_length"], info["disaggregation_mode"]), (1, CONTEXT, "null"))
            self.assertGreater(info["max_total_num_tokens"], CONTEXT)
            self.assertGreater(info["max_running_requests"], 0)
            self.assertRegex(info["version"], r"^\d+\.\d+\.\d+$")
            self.assertEqual(info["internal_states"][0]["num_running_reqs"], 0)
        model = self.get_json("/model_info")
        self.assertEqual(model["model_type"], CONFIG["model_type"])
        self.assertEqual(model["architectures"], CONFIG["architectures"])
        self.assertEqual((model["is_generation"], model["has_image_understanding"]), (True, False))

    def test_loads(self):
        self.server.wait_until_idle()
        for _ in range(20):  # who has an answer does not find it counted any more
            self.ok("/generate", {"text": PROMPT, "sampling_params": {"max_new_tokens": 2, "n": 3}})
            self.assertEqual(self.get_json("/v1/loads")["aggregate"]["total_reqs"], 0)
        loads = self.get_json("/v1/loads")
        rank = loads["loads"][0]
        self.assertEqual((loads["dp_rank_count"], rank["dp_rank"], rank["num_running_reqs"]), (1, 0, 0))
        self.assertEqual(loads["aggregate"]["total_reqs"], 0)
        self.assertIn("queues", rank)
        self.assertNotIn("queues", self.get_json("/v1/loads?include=core,memory&dp_rank=0")["loads"][0])
        for query, param in (("include=x", "include"), ("dp_rank=1", "dp_rank"), ("nothing=1", "nothing"), ("=", "")):
            status, _, text = self.server.get("/v1/loads?" + query)
            self.assertEqual(status, 400, text)
            self.assertEqual(json.loads(text)["error"]["param"] or "", param)

    def experts(self, answer):
        """[tokens - 1][layer] -> experts"""
        data = base64.b64decode(answer["meta_info"]["routed_experts"])
        ids = struct.unpack(f"<{len(data) // 4}i", data)
        tokens = len(ids) // (LAYERS * TOP_K)
        at = lambda t, layer: ids[(t * LAYERS + layer) * TOP_K:(t * LAYERS + layer + 1) * TOP_K]
        return [[at(t, layer) for layer in range(LAYERS)] for t in range(tokens)]

    def test_routed_experts(self):
        body = {"text": PROMPT, "sampling_params": GREEDY}
        plain = self.ok("/generate", body)
        self.assertNotIn("routed_experts", plain["meta_info"])
        answer = self.ok("/generate", {**body, "return_routed_experts": True})
        self.assertEqual(answer["output_ids"], plain["output_ids"])
        rows = self.experts(answer)
        prompt = answer["meta_info"]["prompt_tokens"]
        self.assertEqual(len(rows), prompt + len(answer["output_ids"]) - 1)
        kinds = {all(e == -1 for row in rows for e in row[layer]) for layer in range(LAYERS)}
        self.assertEqual(kinds, {True, False})  # the model has layers of both kinds
        for row in rows:
            for experts in row:
                if experts[0] >= 0:
                    self.assertEqual(len({e for e in experts if 0 <= e < EXPERTS}), TOP_K)
        # A token's experts do not depend on what follows it, nor on how it came.
        ids = self.ok("/v1/tokenize", {"prompt": PROMPT})["tokens"] + answer["output_ids"]
        again = self.ok("/generate", {"input_ids": ids, "sampling_params": {**GREEDY, "max_new_tokens": 1},
                                      "return_routed_experts": True})
        self.assertEqual(self.experts(again)[:len(rows)], rows)
        status, events = self.server.stream("/generate", {**body, "return_routed_experts": True})
        self.assertEqual(self.experts(events[-1]), rows)
        self.assertNotIn("routed_experts", events[0]["meta_info"])
        for start in (0, 1, prompt):
            tail = self.ok("/generate", {**body, "return_routed_experts": True, "routed_experts_start_len": start})
            self.assertEqual(self.experts(tail), rows[start:])
        for value in (-1, prompt + 1, "x"):
            self.refused("/generate", {**body, "return_routed_experts": True, "routed_experts_start_len": value},
                         "routed_experts_start_len")
        for value in ("x", 1, []):
            self.refused("/generate", {**body, "return_routed_experts": value}, "return_routed_experts")

    def test_expert_distribution(self):
        self.ok("/start_expert_distribution_record", "")
        answer = self.ok("/generate", {"text": PROMPT, "sampling_params": GREEDY, "return_routed_experts": True})
        self.ok("/stop_expert_distribution_record", "")
        self.ok("/generate", {"text": PROMPT, "sampling_params": GREEDY})
        got = self.ok("/dump_expert_distribution_record", "")
        rows = self.experts(answer)
        self.assertEqual((got["recording"], got["tokens"]), (False, len(rows)))
        for layer in got["layers"]:
            chosen = [e for row in rows for e in row[layer["layer"]]]
            self.assertEqual(layer["counts"], [chosen.count(e) for e in range(EXPERTS)])
        self.assertTrue(got["layers"])
        self.refused("/start_expert_distribution_record", {"x": 1}, "x")

    def test_profile(self):
        self.ok("/start_profile", {"num_steps": 4})
        self.ok("/generate", {"text": PROMPT, "sampling_params": {**GREEDY, "ignore_eos": True}})
        self.ok("/stop_profile", "")
        files = sorted(self.folder.glob("step-*.json"))
        self.assertEqual(len(files), 4)
        for file in files:
            events = json.loads(file.read_text())["traceEvents"]
            names = [e["name"] for e in events]
            for name in ("step", "schedule", "model", "sample and accept", "publish", "layer 0", f"layer {LAYERS - 1}"):
                self.assertIn(name, names)
            step = next(e for e in events if e["name"] == "step")
            for e in events:
                self.assertEqual(e["ph"], "X")
                self.assertGreaterEqual(e["dur"], 0)
                self.assertGreaterEqual(e["ts"], step["ts"] - 1e-3)
                self.assertLessEqual(e["ts"] + e["dur"], step["ts"] + step["dur"] + 1e-3)
        for body in ({"num_steps": 0}, {"num_steps": 10**9}, {"output_dir": "/tmp"}, {"start_step": 3}, {"x": 1}):
            self.refused("/start_profile", body, next(iter(body)))

    def test_salts_share_no_prefix(self):
        prompt = lambda: f"{time.time()} " + "word " * 300

        def cached(path, body):
            answer = self.ok(path, body)
            if "meta_info" in answer:
                return answer["meta_info"]["cached_tokens"]
            return answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        forms = (("/v1/completions", {"prompt": prompt(), "max_tokens": 1}),
                 ("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt()}], "max_tokens": 1}),
                 ("/generate", {"text": prompt(), "sampling_params": {"max_new_tokens": 1}}))
        for path, body in forms:
            for salt in ({}, {"cache_salt": "tenant a"}, {"cache_salt": "tenant b"}):
                self.assertEqual(cached(path, {**body, **salt}), 0, (path, salt))
            for salt in ({}, {"cache_salt": "tenant a"}, {"extra_key": "tenant b"}):
                self.assertGreater(cached(path, {**body, **salt}), 0, (path, salt))
            for bad in ({"cache_salt": ""}, {"cache_salt": 7}, {"cache_salt": "x" * 1025}, {"extra_key": []},
                        {"cache_salt": "a", "extra_key": "b"}):
                self.refused(path, {**body, **bad})

    def test_priorities(self):
        for path, body in (("/v1/completions", {"prompt": "a", "max_tokens": 1}),
                           ("/generate", {"text": "a", "sampling_params": GREEDY}),
                           ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 1})):
            self.ok(path, {**body, "priority": -3})
            for value in ("x", 1.5, 2**40, True):
                self.refused(path, {**body, "priority": value}, "priority")



class Endless(WithServer):
    """Whose requests run until a test ends them, however fast the machine is."""

    endless = True

    def test_loads(self):
        with self.server.connect() as s:
            s.sendall(raw_post("/v1/completions", NEVER_ENDS))
            self.assertTrue(s.recv(1024))  # it runs
            self.server.wait_for_metric("num_running_reqs", 1)
            self.assertEqual(json.loads(self.server.get("/v1/loads")[2])["loads"][0]["num_running_reqs"], 1)
        self.server.wait_until_idle()

    def test_times(self):
        body = {**NEVER_ENDS, "stream": False}
        timeout, text = 0.1, ""
        while not text:  # a busy machine may have none in a short time
            timeout *= 2
            self.assertLess(timeout, 60)
            choice = self.ok("/v1/completions", {**body, "timeout": timeout})["choices"][0]
            self.assertEqual(choice["finish_reason"], "abort")
            text = choice["text"]
        for value in (0, -1, "x", 1e9, True):
            self.refused("/v1/completions", {**body, "timeout": value}, "timeout")
            self.refused("/v1/completions", {**body, "queue_timeout": value}, "queue_timeout")


class OneAtATime(WithServer):
    words = ("--max-running-requests", "1", "--queue-timeout", "2")  # of what may begin at once, a busy machine needs much less
    endless = True

    def test_who_waits_too_long_is_told(self):
        with self.server.connect() as s:
            s.sendall(raw_post("/v1/completions", NEVER_ENDS))
            self.assertTrue(s.recv(1024))
            for path, more in (("/v1/completions", {"prompt": "a"}), ("/generate", {"text": "a"})):
                self.refused(path, more, status=503, code="timed_out", needle="waited")
            # A stream of which nothing has been sent, too: routers and clients act on the status alone.
            short = {"queue_timeout": 0.1, "stream": True}
            for path, body in (("/v1/completions", {"prompt": "a"}), ("/generate", {"text": "a"}),
                               ("/v1/chat/completions", {"messages": CHAT}), ("/v1/responses", {"input": "a"}),
                               ("/v1/messages", {"messages": CHAT, "max_tokens": 1})):
                status, headers, text = self.server.request("POST", path, {**body, **short})
                self.assertEqual((status, headers["Retry-After"]), (503, "1"), (path, text))
                self.assertEqual(headers["Content-Type"], "application/json")
                self.assertEqual(json.loads(text)["error"]["code"], "timed_out")
        self.server.wait_until_idle()
        self.ok("/v1/completions", {"prompt": "a", "max_tokens": 2})

    def test_priority_needs_the_option(self):
        self.refused("/v1/completions", {"prompt": "a", "priority": 1}, "priority", needle="priority scheduling")
        self.ok("/v1/completions", {"prompt": "a", "priority": 0, "max_tokens": 1})

    def test_profiles_need_a_folder(self):
        self.refused("/start_profile", "", status=403, needle="a profile folder")


if __name__ == "__main__":
    main()
