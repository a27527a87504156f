# SPDX-License-Identifier: Apache-2.0
"""What the tests of `sluice serve` share: the bundled model, a class with a server, arguments PROGRAM SOURCE_FOLDER."""
import pathlib
import shutil
import sys
import tempfile
import time
import unittest

from serve_driver import Server, endless_model

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
MODEL = SOURCE / "models" / "tiny-nemotron-h"
# The checkpoint's card: a held-out text and how transformers goes on in float32.
PROMPT = "Henry meditated awhile all to himself early the next morning as"
CONTINUATION = " he went down the hill to the house. He had been in the house for a long time, and had been in the house"
CHAT = [{"role": "user", "content": "Hello"}]
CONTEXT = 2048
NEVER_ENDS = {"prompt": "Once", "max_tokens": 1_000_000, "ignore_eos": True, "stream": True}  # of an endless_model


def endless(case):
    """An endless_model in a folder that ends with the test class."""
    folder = tempfile.mkdtemp(prefix="sluice-serve-")
    case.addClassCleanup(shutil.rmtree, folder)
    return endless_model(MODEL, folder)


class WithServer(unittest.TestCase):
    words = ()
    endless = False

    @classmethod
    def setUpClass(cls):
        model = endless(cls) if cls.endless else MODEL
        cls.server = Server(PROGRAM, model, "--served-model-name", "tiny", "--dtype", "float32", *cls.words)
        cls.addClassCleanup(cls.server.close)

    def ok(self, path, body, **options):
        status, answer = self.server.post(path, body, **options)
        self.assertEqual(status, 200, answer)
        return answer

    @classmethod
    def tokens_for(cls, seconds):
        """How many tokens one request alone makes in that time here, at least 100: with sanitizers it is minutes for what
        a fast machine does in less than a test needs to look."""
        begin = time.monotonic()
        body = {"text": "Once", "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}
        status, answer = cls.server.post("/generate", body)
        assert status == 200, answer
        return max(100, round(100 * seconds / (time.monotonic() - begin)))

    def refused(self, path, body, param=None, needle="", status=400, code=None, **options):
        """An error object of OpenAI's form; the server still lives."""
        got, answer = self.server.post(path, body, **options)
        self.assertEqual(got, status, answer)
        error = answer["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertTrue(error["message"])
        if param is not None:
            self.assertEqual(error["param"], param, error)
            self.assertIn(param.split(".")[-1].split("[")[0], error["message"])
        if code is not None:
            self.assertEqual(error["code"], code)
        self.assertIn(needle, error["message"])
        return error


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
