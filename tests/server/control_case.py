# SPDX-License-Identifier: Apache-2.0
"""What the tests share that steer `sluice serve` as RL trainers do: requests in the background, answers to compare, refusals in
SGLang's form, and a server that takes other weights."""
import json
import pathlib
import shutil
import tempfile
import threading

from checkpoint_bytes import read_checkpoint
from serve_case import MODEL, PROMPT, WithServer

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

    def failed(self, path, body, status=400, param=None, needle=""):
        """A refusal in SGLang's form."""
        got, answer = self.server.post(path, body)
        self.assertEqual((got, answer["success"]), (status, False), answer)
        self.assertEqual(answer["message"], answer["error"]["message"])
        if param is not None:
            self.assertEqual(answer["error"]["param"], param, answer)
        self.assertIn(needle, answer["message"])
        return answer


class WithWeightUpdates(Control):
    """Every test begins with the weights of MODEL. `folder` is the one that files with tensors may lie in."""
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
