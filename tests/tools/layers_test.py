# SPDX-License-Identifier: Apache-2.0
"""tools/layers.py finds planted violations, names file and line, and passes what is allowed."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import layers  # noqa: E402


def check(files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return list(layers.violations(root))


class Layers(unittest.TestCase):
    def test_above(self):
        found = check({"src/format/e4m3.h": '#pragma once\n#include "moe/backend.h"\n'})
        self.assertEqual(found, ["src/format/e4m3.h:2: format may not include moe"])

    def test_neighbour(self):
        self.assertEqual(check({"src/moe/a.cc": '#include "ops/b.h"\n'}), ["src/moe/a.cc:1: moe may not include ops"])
        self.assertEqual(check({"src/kernels/cpu/a.cc": '#include "kernels/sm90/b.h"\n'}),
                         ["src/kernels/cpu/a.cc:1: kernels/cpu may not include kernels/sm90"])

    def test_below_and_own_are_allowed(self):
        self.assertEqual(check({"src/moe/a.cc": '#include "moe/b.h"\n#include "kernels/cpu/micro/c.h"\n'
                                                '#include "base/error.h"\n#include <vector>\n'}), [])

    def test_dots_and_unknown_folders(self):
        self.assertEqual(len(check({"src/moe/a.cc": '#include "../base/error.h"\n'})), 1)
        self.assertEqual(len(check({"src/newfolder/a.cc": '#include "base/error.h"\n'})), 1)
        self.assertEqual(len(check({"src/moe/a.cc": '#include "nowhere/error.h"\n'})), 1)

    def test_restricted_headers(self):
        for name, header in [("src/moe/a.cc", "cuda_runtime.h"), ("src/tensor/a.cc", "cuda_runtime.h"),
                             ("src/ops/a_sm90.cc", "cuda_runtime.h"), ("src/engine/runner.cc", "cuda_runtime.h"),
                             ("src/ops/a.cc", "immintrin.h"),
                             ("src/io/a.h", "nlohmann/json.hpp"), ("src/text/a.cc", "nlohmann/json.hpp"),
                             ("src/io/a.cc", "CLI/CLI.hpp")]:
            self.assertEqual(len(check({name: f"#include <{header}>\n"})), 1, (name, header))
        for name, header in [("src/kernels/sm90/a.cu", "cuda_runtime.h"), ("src/kernels/cpu/micro/a.cc", "immintrin.h"),
                             ("src/io/a.cc", "nlohmann/json.hpp"), ("apps/a.cc", "CLI/CLI.hpp"),
                             ("src/kernels/ptx/a.cuh", "cuda_bf16.h")]:
            self.assertEqual(check({name: f"#include <{header}>\n"}), [], (name, header))

    def test_public_headers(self):
        self.assertEqual(len(check({"include/sluice/a.h": "#include <fmt/core.h>\n"})), 1)
        self.assertEqual(len(check({"include/sluice/a.h": '#include "base/error.h"\n'})), 1)
        self.assertEqual(check({"include/sluice/a.h": '#include <vector>\n#include <stdint.h>\n#include "sluice/c.h"\n'}),
                         [])

    def test_every_layer_has_its_folders_and_the_other_way_round(self):
        src = pathlib.Path(layers.__file__).resolve().parent.parent / "src"
        for folder in layers.LAYER_OF:
            self.assertTrue((src / folder).is_dir(), f"{folder} has a layer, but there is no src/{folder}")
        for file in src.rglob("*"):
            if file.suffix in (".h", ".cc", ".cu", ".cuh"):
                self.assertIsNotNone(layers.folder_of(file.relative_to(src).as_posix()), file)


if __name__ == "__main__":
    unittest.main()
