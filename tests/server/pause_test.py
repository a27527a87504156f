# SPDX-License-Identifier: Apache-2.0
"""/pause_generation and /continue_generation, in every mode.

usage: pause_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import json
import time

from control_case import Control
from serve_case import main, NEVER_ENDS
from serve_driver import TIMEOUT


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
            self.server.wait_for_metric("num_running_reqs", 1 if mode == "in_place" else 0)
            steps = self.server.metric("generation_tokens_total")
            time.sleep(0.2)
            self.assertEqual(self.server.metric("generation_tokens_total"), steps)
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

    def test_time_limits_act_while_paused(self):
        thread, out = self.running(timeout=2.5)
        self.server.wait_for_metric("num_running_reqs", 1)
        self.ok("/pause_generation", {"mode": "in_place"})
        body = {"prompt": "a", "max_tokens": 3}
        self.refused("/v1/completions", {**body, "queue_timeout": 0.1}, status=503, needle="waited")
        self.refused("/v1/completions", {**body, "timeout": 0.1}, status=503, needle="waited")
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


if __name__ == "__main__":
    main()
