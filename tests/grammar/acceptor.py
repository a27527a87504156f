# SPDX-License-Identifier: Apache-2.0
"""The acceptor program: which texts a grammar takes."""
import json
import subprocess
import sys


class Acceptor:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, kind, text, texts, closed=False):
        """(None, [bool, ...]), or (the refusal, None)."""
        task = {"kind": kind, "text": text, "texts": texts, "closed": closed}
        try:
            self.process.stdin.write(json.dumps(task, ensure_ascii=False) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, and its exit code says why
        line = self.process.stdout.readline()
        if not line:
            if self.process.wait() == 77:
                print("skipped: built without xgrammar")
                sys.exit(77)
            raise AssertionError(f"the acceptor ended with {self.process.returncode} at {task}")
        answer = json.loads(line)
        return answer.get("error"), answer.get("accepted")

    def close(self):
        self.process.stdin.close()
        self.process.wait()
