# SPDX-License-Identifier: Apache-2.0
"""The page at / in headless Chromium: it names the model, chats, shows the speed, and shows errors.

usage: playground_test.py PROGRAM SOURCE_FOLDER [unittest arguments]   exit code 77: there is no Chromium
"""
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    print("skipped: no Chromium is installed (Debian's package chromium)")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from serve_driver import Server  # noqa: E402


class Browser:
    """Chromium's DevTools protocol over a pair of pipes: JSON messages, each with a NUL behind it."""

    def __init__(self, folder):
        to_read, self.to = os.pipe()
        self.back, back_write = os.pipe()
        # The protocol's ends must be 3 and 4 in the browser; from high numbers, neither is overwritten by the other.
        low_ends = (to_read, back_write)
        to_read, back_write = (fcntl.fcntl(fd, fcntl.F_DUPFD, 50) for fd in low_ends)
        script = f'exec "$0" "$@" 3<&{to_read} 4>&{back_write}'
        self.process = subprocess.Popen(
            ["bash", "-c", script, CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"],
            pass_fds=(to_read, back_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in (*low_ends, to_read, back_write):
            os.close(end)
        self.number, self.buffer, self.events, self.session = 0, b"", [], None

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.back)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.buffer:
                piece = os.read(self.back, 65536)
                if not piece:
                    raise AssertionError("the browser ended")
                self.buffer += piece
            one, _, self.buffer = self.buffer.partition(b"\0")
            answer = json.loads(one)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise AssertionError(answer["error"])
                return answer["result"]
            self.events.append(answer)

    def open(self, url):
        target = self.call("Target.createTarget", url=url)["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Runtime.enable")
        self.call("Log.enable")

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise AssertionError(result["exceptionDetails"])
        return result["result"].get("value")

    def wait_for(self, expression, seconds=30):
        end = time.monotonic() + seconds
        while not (value := self.evaluate(expression)):
            if time.monotonic() > end:
                raise AssertionError(f"{expression} did not become true; the page says {self.evaluate('document.body.innerText')}")
            time.sleep(0.05)
        return value


class Playground(unittest.TestCase):
    def open(self, *words):
        server = Server(PROGRAM, SOURCE / "models" / "tiny-nemotron-h", "--served-model-name", "tiny", *words)
        self.addCleanup(server.close)
        folder = tempfile.mkdtemp(prefix="sluice-chromium-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        browser = Browser(folder)
        self.addCleanup(browser.close)
        browser.open(f"http://127.0.0.1:{server.port}/")
        browser.wait_for("document.readyState == 'complete' && document.getElementById('form') != null")
        return server, browser

    @staticmethod
    def say(browser, text, **fields):
        for name, value in {"text": text, **fields}.items():
            browser.evaluate(f"document.getElementById('{name}').value = {json.dumps(value)}")
        browser.evaluate("document.getElementById('form').requestSubmit()")

    def test_chat(self):
        server, browser = self.open()
        browser.wait_for("document.getElementById('model').textContent == 'tiny'")
        self.say(browser, "Once upon a time <b>there</b>", max_tokens="30", seed="1", temperature="0")
        speed = browser.wait_for("/tokens, first after/.test(document.getElementById('speed').textContent) && "
                                 "document.getElementById('speed').textContent")
        self.assertRegex(speed, r"^[0-9.]+ tokens/s, \d+ tokens, first after \d+ ms$")
        shown = browser.evaluate("[...document.querySelectorAll('.message')].map(m => m.textContent)")
        self.assertEqual(shown[0], "Once upon a time <b>there</b>")
        status, answer = server.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": shown[0]}], "max_tokens": 30, "seed": 1, "temperature": 0})
        self.assertEqual(shown[1], answer["choices"][0]["message"]["content"])

        self.say(browser, "And then?", max_tokens="1000000")
        error = browser.wait_for("document.querySelector('.error')?.textContent")
        self.assertIn("context length", error)

        self.say(browser, "Go on.", max_tokens="1500")
        browser.wait_for("document.getElementById('send').textContent == 'Stop'")
        browser.evaluate("document.getElementById('form').requestSubmit()")  # stop
        browser.wait_for("document.getElementById('send').textContent == 'Send'")
        server.wait_for_metric("num_running_reqs", 0)
        failures = [e for e in browser.events if e.get("method") == "Runtime.exceptionThrown"]
        self.assertEqual(failures, [])

    def test_key(self):
        server, browser = self.open("--api-key", "secret")
        browser.wait_for("/API key is needed/.test(document.getElementById('model').textContent)")
        browser.evaluate("document.getElementById('key').value = 'secret'; "
                         "document.getElementById('key').dispatchEvent(new Event('change'))")
        browser.wait_for("document.getElementById('model').textContent == 'tiny'")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
