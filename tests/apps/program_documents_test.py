# SPDX-License-Identifier: Apache-2.0
"""What documents say of the program: spec lines, exit codes, the README's commands, names of tests, the worked example.

usage: program_documents_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import json
import re
import shlex
import struct
import subprocess
import sys
import unittest

from program_case import MODEL, OK, SOURCE, USAGE, Program, run


class Documents(Program):
    """docs/reference.md beyond what tools/reference.py generates."""
    TEXT = (SOURCE / "docs" / "reference.md").read_text()

    def section(self, title):
        return self.TEXT.split(f"\n{title}\n", 1)[1].split("\n## ", 1)[0]

    def test_spec_line_has_every_key_and_value(self):
        rows = [line.split("|")[1:3] for line in self.section("## The spec line").splitlines() if line.startswith("| `")]
        documented = {key: values for keys, values in rows for key in re.findall(r"`(\w+)`", keys)}
        accepted = run("explain", "colour=red").stderr.split("accepted: ")[1]
        self.assertEqual(sorted(documented), sorted(re.findall(r"\w+", accepted)))
        for key in ("weights", "inputs", "dtype", "act", "routing"):
            accepted = run("explain", f"experts=8 top_k=2 hidden=64 inter=48 {key}=colour").stderr.split("accepted: ")
            self.assertEqual(re.findall(r"`(\w+)`", documented[key]), re.findall(r"\w+", accepted[1]), key)

    def test_exit_codes_are_those_of_the_program(self):
        rows = re.findall(r"^\| (\d+) \|", self.section("## Exit codes"), re.MULTILINE)
        declared = re.findall(r"^  kExit\w+ = (\d+),", (SOURCE / "apps" / "command.h").read_text(), re.MULTILINE)
        self.assertEqual(rows, declared)

    def test_quick_start_of_the_readme(self):
        """Every command for any checkpoint, with the bundled one."""
        commands = re.findall(r"^sluice (.*?)(?: +#.*)?$", (SOURCE / "README.md").read_text(), re.MULTILINE)
        self.assertEqual({c.split()[0] for c in commands}, {"generate", "serve", "eval", "quantize", "explain"})
        text = self.folder / "text.txt"
        text.write_text((MODEL / "valid.txt").read_text()[:4000])
        for command in commands:
            names = {"DIR": str(MODEL), "OUT": str(self.folder / "out"), "FILE": str(text)}
            words = [names.get(word, word) for word in shlex.split(command)]
            with self.subTest(command):
                if words[0] == "serve":  # it would not end
                    self.refused(USAGE, '--port is "x"', *words, "--port", "x")
                else:
                    self.assertEqual(run(*words).returncode, OK)

    def test_robustness_names_tests_that_exist(self):
        document = (SOURCE / "docs" / "robustness.md").read_text()
        sources = [p.read_text() for p in (SOURCE / "tests").rglob("*") if p.suffix in (".cc", ".h", ".py")]
        tests = set(re.findall(r"TEST(?:_[FP])?\((\w+), (\w+)\)", "\n".join(sources)))
        for suite, name in re.findall(r"`([A-Z]\w+)\.(\w+)`", document):
            self.assertIn((suite, name), tests)
        for case in re.findall(r"`([a-z][a-z0-9]*(?:_[a-z0-9]+)+)`", document):
            if case != "data_offsets":
                self.assertTrue(any(re.search(rf"\b(D::|def ){case}\b", text) for text in sources), case)
        self.assertEqual(re.findall(r"^\| M(\d+) ", document, re.MULTILINE), [str(i) for i in range(1, 17)])
        rows = "".join(re.findall(r"^\| S\d+[^|]*", document, re.MULTILINE))
        numbers = re.findall(r"S(\d+)", rows)
        self.assertEqual(numbers, [str(i + 1) for i in range(len(numbers))])

    def test_worked_example_of_moe_run(self):
        example = self.section("## Files of `sluice moe run`")
        code = re.search(r"```python\n(.*?)```", example, re.DOTALL)[1]
        subprocess.run([sys.executable, "-c", code], cwd=self.folder, check=True)
        command = re.search(r"^\$ sluice (.*)$", example, re.MULTILINE)[1].split()
        result = run(*command, cwd=self.folder)
        self.assertEqual(result.returncode, OK, result.stderr)
        data = (self.folder / "out.safetensors").read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        self.assertEqual((header["output"]["dtype"], header["output"]["shape"]), ("BF16", [2, 2]))
        begin, end = header["output"]["data_offsets"]
        raw = data[start + begin:start + end]
        values = [struct.unpack("<f", b"\0\0" + raw[i:i + 2])[0] for i in range(0, len(raw), 2)]
        self.assertEqual(values, [4.5, 9, 8, 16])
        for name in ("expert_ids", "expert_weights", "trace.input", "trace.up", "trace.activated", "trace.down"):
            self.assertIn(name, header)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
