# SPDX-License-Identifier: Apache-2.0
"""Other weights for `sluice serve` while requests run or are paused.

usage: update_while_serving_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import os
import pathlib
import shutil
import time

from checkpoint_bytes import checksums, halved, other_weights, read_checkpoint, SharedTensors
from control_case import WithWeightUpdates
from serve_case import main, MODEL, PROMPT, SOURCE
from serve_driver import TIMEOUT


class UpdatesWhileServing(WithWeightUpdates):
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
        self.ok("/update_weights_from_disk", {"model_path": str(MODEL)})
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


class UpdatesUnderRequests(WithWeightUpdates):
    endless = True  # a request that ends by itself may be over before a busy machine sends the update

    def setUp(self):
        self.model = self.info("model_path")

    def aborts(self, path, body):
        """Without a pause, what runs is aborted."""
        thread, out = self.begin("/generate", {"text": PROMPT, "sampling_params": {
            "max_new_tokens": 1_000_000, "ignore_eos": True, "temperature": 0}})
        self.server.wait_for_metric("num_running_reqs", 1)
        self.ok(path, body)
        thread.join(TIMEOUT)
        self.assertEqual(out[1]["meta_info"]["finish_reason"]["type"], "abort", out)

    def test_an_update_aborts_what_runs(self):
        fresh = self.answer()
        changed = {name: halved(t) for name, t in self.tensors.items() if "in_proj" in name}
        with SharedTensors(changed) as spec:
            self.aborts("/update_weights_from_tensor", spec)
        self.assertNotEqual(self.answer(), fresh)
        self.aborts("/update_weights_from_disk", {"model_path": self.model, "abort_all_requests": True})
        self.assertEqual(self.answer(), fresh)


if __name__ == "__main__":
    main()
