# SPDX-License-Identifier: Apache-2.0
"""/release_memory_occupation and /resume_memory_occupation: memory that a server gives back and takes again.

usage: memory_release_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import pathlib
import time

from checkpoint_bytes import halved, read_checkpoint, SharedTensors
from control_case import Control
from serve_case import CHAT, main, MODEL
from serve_driver import TIMEOUT


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
        prompts = 4 if self.server.sanitized() else 16  # 16 take minutes there

        def fill():
            for i in range(prompts):  # one by one: all of them may take a busy machine longer than a client waits
                self.ok("/v1/completions", {"prompt": [i + 3] * 1900, "max_tokens": 1})
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

    def test_graphs_have_no_memory_of_their_own(self):
        before = self.answer()
        for path in ("/release_memory_occupation", "/resume_memory_occupation"):
            self.assertIn("cuda_graph", self.ok(path, {"tags": ["cuda_graph"]})["message"])
            self.assertEqual(self.answer(), before)  # nothing waits

    def test_bad_input(self):
        for path in ("/release_memory_occupation", "/resume_memory_occupation"):
            for body in ({"tags": ["x"]}, {"tags": 7}, {"tags": [7]}, {"tag": "weights"}):
                self.refused(path, body, next(iter(body)))


class MemoryUnderRequests(Control):
    endless = True  # a request that ends by itself may be over before a busy machine asks for the memory

    def test_not_under_running_requests(self):
        body = {"text": "Once", "sampling_params": {"max_new_tokens": 1_000_000, "ignore_eos": True, "temperature": 0}}
        thread, out = self.begin("/generate", {**body, "rid": "long"})
        self.addCleanup(thread.join, TIMEOUT)
        self.addCleanup(self.server.post, "/abort_request", {"abort_all": True})
        self.server.wait_for_metric("num_running_reqs", 1)
        self.refused("/release_memory_occupation", {}, status=503, needle="pause")
        self.ok("/pause_generation", {"mode": "retract"})
        self.ok("/release_memory_occupation", {})
        self.ok("/resume_memory_occupation", {})
        paused = self.server.metric("generation_tokens_total")
        self.ok("/continue_generation", {})
        while self.server.metric("generation_tokens_total") < paused + 20:
            time.sleep(0.01)
        self.ok("/abort_request", {"rid": "long"})
        thread.join(TIMEOUT)
        self.assertEqual(out[1]["meta_info"]["finish_reason"]["type"], "abort")
        # As many tokens without a pause.
        body["sampling_params"]["max_new_tokens"] = len(out[1]["output_ids"])
        self.assertEqual(out[1]["output_ids"], self.ok("/generate", body)["output_ids"])


if __name__ == "__main__":
    main()
