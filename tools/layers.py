#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The layers: a file may include its own folder and any lower layer, never another folder of its own layer.

usage: layers.py [ROOT]   exit 1 and one line per violation, e.g. "src/format/e4m3.h:2: format may not include moe"
       layers.py --list   the layers, one per line, as docs/architecture.md has them (tools/check.sh compares)
"""
import pathlib
import re
import sys

LAYERS = [
    ["base"],
    ["device"],
    ["format", "activation", "routing", "sampling", "tensor", "text"],
    ["spec", "io"],
    ["weights", "kernels/ptx", "grammar"],
    ["kernels/cpu", "kernels/sm90"],
    ["moe", "ops"],
    ["model"],
    ["engine"],
    ["server", "capi"],
]
LAYER_OF = {folder: level for level, layer in enumerate(LAYERS) for folder in layer}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')

# What may be included only here: pattern of the header, pattern of the files that may, in words.
RESTRICTED = [
    (re.compile(r"^(cuda|cublas|nv|cute|cutlass)"),
     re.compile(r"^src/(device/cuda\.cc$|kernels/(ptx|sm90)/)"),
     "CUDA headers belong in device/cuda.cc, kernels/ptx and kernels/sm90"),
    (re.compile(r"^flashinfer/"), re.compile(r"^src/kernels/sm90/flashinfer/.*\.cuh?$"),
     "FlashInfer belongs in kernels/sm90/flashinfer/*.{cu,cuh}"),
    (re.compile(r"^(imm|x86|amm|xmm|emm)intrin\.h$"), re.compile(r"^src/kernels/cpu/"),
     "CPU intrinsics belong in kernels/cpu"),
    (re.compile(r"^(nlohmann/|simdjson)"), re.compile(r"^(src/io/|src/server/|apps/).*\.cc$"),
     "JSON belongs in the .cc files of io, server and apps"),
    (re.compile(r"^boost/"), re.compile(r"^src/server/http/"), "Boost belongs in server/http"),
    (re.compile(r"^(xgrammar|dlpack|picojson)"), re.compile(r"^src/grammar/xgrammar.*\.cc$"),
     "xgrammar belongs in grammar/xgrammar*.cc"),
    (re.compile(r"^zmq"), re.compile(r"^src/server/kv_events/zmq"), "ZeroMQ belongs in server/kv_events/zmq*"),
    (re.compile(r"^CLI/"), re.compile(r"^apps/.*\.cc$"), "CLI11 belongs in the .cc files of apps"),
]


def folder_of(path, known=LAYER_OF):
    """The longest known folder that holds `path` (relative to src/); None for an unknown one."""
    parts = path.split("/")[:-1]
    for length in range(len(parts), 0, -1):
        if "/".join(parts[:length]) in known:
            return "/".join(parts[:length])
    return None


def violations(root):
    root = pathlib.Path(root)
    for top in ("src", "apps", "include", "bench", "tests", "examples"):
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in (".h", ".cc", ".c", ".hpp", ".cu", ".cuh") or not file.is_file():
                continue
            name = file.relative_to(root).as_posix()
            for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
                match = INCLUDE.match(line)
                if match:
                    for message in check_include(root, name, match[1] == "<", match[2]):
                        yield f"{name}:{number}: {message}"


def check_include(root, name, system, header):
    if name.startswith("include/"):
        if not system and not header.startswith("sluice/"):
            yield f"public headers include only the standard library and sluice/, not {header}"
        elif system and ("." in header and not re.match(r"^std(int|def|bool)\.h$", header)):
            yield f"public headers include only the standard library, not <{header}>"
        return
    if name.startswith(("src/", "apps/")):
        for pattern, where, words in RESTRICTED:
            if pattern.match(header) and not where.match(name):
                yield f"<{header}>: {words}"
    if system or not name.startswith("src/"):
        return
    if ".." in header.split("/"):
        yield f'"{header}": includes are written from src/, without ".."'
        return
    own = folder_of(name[len("src/"):])
    if own is None:
        yield f"folder {name.rsplit('/', 1)[0]} has no layer; add it to tools/layers.py"
        return
    target = folder_of(header)
    if target is None:
        if not header.startswith("sluice/") and not (root / name).parent.joinpath(header).exists():
            yield f'"{header}": not a file under src/'
    elif target != own and LAYER_OF[target] >= LAYER_OF[own]:
        yield f"{own} may not include {target}"


def listed():
    return [f"{level}  {'  '.join(layer)}" for level, layer in enumerate(LAYERS)]


def main():
    if sys.argv[1:] == ["--list"]:
        print("\n".join(listed()))
        return 0
    root = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    found = list(violations(root))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
