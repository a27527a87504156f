# SPDX-License-Identifier: Apache-2.0
"""The page at / in headless Chromium: it names the model, chats, shows thoughts, calls, speed and errors, and fits.

usage: playground_test.py PROGRAM SOURCE_FOLDER [unittest arguments]   exit code 77: there is no Chromium
With SLUICE_SCREENSHOTS=FOLDER it leaves a picture of each width there.
"""
import base64
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for path in map(shutil.which, BROWSERS) if path), None)
if CHROMIUM is None:
    print("skipped: no Chromium is installed; scripts/setup.sh test installs Debian's chromium-headless-shell")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from serve_driver import endless_model, Server  # noqa: E402


class Browser:
    """Chromium's DevTools protocol over a pair of pipes: JSON messages, each followed by a NUL."""

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
            pass_fds=(to_read, back_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        for end in (*low_ends, to_read, back_write):
            os.close(end)
        self.number, self.buffer, self.events, self.session = 0, b"", [], None

    def close(self):
        os.killpg(self.process.pid, signal.SIGKILL)  # with its children, which write to the folder
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


def remove(folder):
    """Also while processes that were killed still end."""
    end = time.monotonic() + 5
    while os.path.exists(folder) and time.monotonic() < end:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.02)


class Playground(unittest.TestCase):
    def open(self, *words):
        copy = tempfile.TemporaryDirectory(prefix="sluice-serve-")
        self.addCleanup(copy.cleanup)
        model = endless_model(SOURCE / "models" / "tiny-nemotron-h", copy.name)
        server = Server(PROGRAM, model, "--served-model-name", "tiny", *words)
        self.addCleanup(server.close)
        folder = tempfile.mkdtemp(prefix="sluice-chromium-")
        self.addCleanup(remove, folder)
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

        self.say(browser, "And then?", max_tokens="10000000")
        error = browser.wait_for("document.querySelector('.error')?.textContent")
        self.assertIn("context length", error)

        self.say(browser, "Go on.", max_tokens="1000000")  # until it is stopped, however late the page is seen
        browser.wait_for("document.getElementById('send').textContent == 'Stop'")
        browser.evaluate("document.getElementById('form').requestSubmit()")  # stop
        browser.wait_for("document.getElementById('send').textContent == 'Send'")
        server.wait_until_idle()
        failures = [e for e in browser.events if e.get("method") == "Runtime.exceptionThrown"]
        self.assertEqual(failures, [])

    def test_system_prompt_and_thoughts(self):
        server, browser = self.open("--reasoning-parser", "deepseek-r1")  # takes all for a thought until </think>
        browser.wait_for("document.getElementById('model').textContent == 'tiny'")
        self.say(browser, "Once", system="Be brief.", max_tokens="20", temperature="0", top_p="0.5")
        browser.wait_for("document.querySelector('.stats') != null")
        status, answer = server.post("/v1/chat/completions", {
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Once"}],
            "max_tokens": 20, "temperature": 0, "top_p": 0.5})
        message, usage = answer["choices"][0]["message"], answer["usage"]
        self.assertEqual(browser.evaluate("document.querySelector('.thought div').textContent"), message["reasoning_content"])
        self.assertEqual(browser.evaluate("document.querySelector('.assistant').textContent"), message["content"])
        self.assertEqual(usage["completion_tokens_details"]["reasoning_tokens"], usage["completion_tokens"])
        self.assertRegex(browser.evaluate("document.querySelector('.stats').textContent"),
                         rf"tokens/s, {usage['completion_tokens']} tokens, first after \d+ ms, {usage['completion_tokens']} of them thought")
        self.assertIn("Thought for", browser.evaluate("document.querySelector('summary').textContent"))
        browser.evaluate("document.getElementById('clear').click()")
        self.assertEqual(browser.evaluate("[...document.querySelectorAll('.message')].length"), 0)

    CONVERSATION = r"""
      document.querySelector(".empty").remove();
      const say = (text) => add(add($("log"), "div", "turn mine"), "div", "message user", text);
      say("How warm is it in Lisbon, and is <b>that</b> usual for the season?");
      const first = new Answer();
      first.take({reasoning_content: "I need the weather of today, and the mean of the month. A tool has the first."});
      first.take({tool_calls: [{index: 0, id: "c1", function: {name: "weather", arguments: '{"city": "Lis'}}]});
      first.take({tool_calls: [{index: 0, function: {arguments: 'bon", "unit": "celsius"}'}}]});
      first.end();
      const second = new Answer();
      second.take({content: "It is 19 \u00b0C in Lisbon.\n\nThe mean high of November is 18 \u00b0C, so this is what you would expect; "});
      second.take({content: "nights fall to 12 \u00b0C.\n\n" + "averylongwordwithoutanyplacetobreakit".repeat(6)});
      second.finish({completion_tokens: 48, completion_tokens_details: {reasoning_tokens: 0}}, {predicted_per_second: 41.3});
      second.end();
      $("log").scrollTop = 0;
    """

    def test_it_fits_at_three_widths(self):
        server, browser = self.open()
        browser.wait_for("document.getElementById('model').textContent == 'tiny'")
        browser.evaluate(self.CONVERSATION)
        self.assertEqual(browser.evaluate("document.querySelector('.call pre').textContent"),
                         '{"city": "Lisbon", "unit": "celsius"}')
        self.assertEqual(browser.evaluate("JSON.stringify(first.message().tool_calls[0])"), json.dumps(
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Lisbon", "unit": "celsius"}'}},
            separators=(",", ":")))
        folder = os.environ.get("SLUICE_SCREENSHOTS")
        for width, height in ((1440, 900), (1100, 800), (390, 844)):
            browser.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
            for settings in (False, True):
                browser.evaluate(f"open_settings({json.dumps(settings)})")
                wrong = browser.evaluate("""(() => {
                  const box = (element) => element.getBoundingClientRect(), seen = (element) => box(element).width > 0;
                  const wrong = [], inside = (a, b) => a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
                  if (document.documentElement.scrollWidth > innerWidth) wrong.push("the page scrolls sideways");
                  if (!inside(box($("send")), box(document.querySelector(".composer")))) wrong.push("Send is outside of its row");
                  for (const element of document.querySelectorAll("header, header > *, form, #log, aside, button, input, textarea"))
                    if (seen(element) && !element.closest("aside") && !inside(box(element), {left: 0, top: 0, right: innerWidth, bottom: innerHeight}))
                      wrong.push(`${element.tagName} ${element.id} is outside of the window`);
                  const pen = document.createElement("canvas").getContext("2d");
                  for (const element of document.querySelectorAll("input[placeholder], textarea[placeholder]")) {
                    const style = getComputedStyle(element);
                    pen.font = style.font;
                    const room = element.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
                    if (seen(element) && pen.measureText(element.placeholder).width > room) wrong.push(`${element.id}'s placeholder is cut`);
                  }
                  return wrong;
                })()""")
                self.assertEqual(wrong, [], (width, settings))
                self.assertTrue(browser.evaluate("$('panel').getBoundingClientRect().width > 0") or not settings)
                if folder and (width < 1000 or not settings):
                    picture = browser.call("Page.captureScreenshot", format="png")["data"]
                    name = f"playground-{width}{'-settings' if settings else ''}.png"
                    (pathlib.Path(folder) / name).write_bytes(base64.b64decode(picture))

    def test_key(self):
        server, browser = self.open("--api-key", "secret")
        browser.wait_for("/API key is needed/.test(document.getElementById('model').textContent)")
        browser.evaluate("document.getElementById('key').value = 'secret'; "
                         "document.getElementById('key').dispatchEvent(new Event('change'))")
        browser.wait_for("document.getElementById('model').textContent == 'tiny'")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
