#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tags a wheel of `pip wheel .` with the oldest glibc that its library runs on, and copies it to FOLDER.

usage: manylinux.py WHEEL FOLDER   prints the versioned symbols that decide, and the new file last

manylinux_2_28 is the oldest tag, and what cmake/OldGlibc.cmake links for. A symbol that it does not know shows here: a
newer glibc puts newer versions into the library (pthread_create is GLIBC_2.34 since 2.34), and the tag says so.
"""
import base64
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

LEAST = (2, 28)


def symbols(library):
    """{version: names} of the library's undefined symbols of glibc."""
    out = subprocess.run(["objdump", "-T", library], check=True, text=True, capture_output=True).stdout
    found = {}
    for version, name in re.findall(r"\*UND\*.*\(?GLIBC_([\d.]+)\)?\s+(\S+)$", out, flags=re.M):
        found.setdefault(tuple(map(int, version.split("."))), set()).add(name)
    foreign = set(re.findall(r"\*UND\*.*\(?((?:GLIBCXX|CXXABI|GCC)_[\d.]+)\)?", out))
    if foreign:
        sys.exit(f"manylinux: {library} needs C++'s run time ({', '.join(sorted(foreign))}); link it statically")
    return found


def record(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def retag(wheel, folder, platform):
    new = folder / wheel.name.replace("linux_x86_64", platform)
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as out:
        lines = ""
        for entry in old.infolist():
            if entry.filename.endswith(".dist-info/RECORD"):
                last = entry
                continue
            data = old.read(entry)
            if entry.filename.endswith(".dist-info/WHEEL"):
                data = data.replace(b"linux_x86_64", platform.encode())
            out.writestr(entry, data, zipfile.ZIP_DEFLATED)
            lines += record(entry.filename, data)
        out.writestr(last, lines + f"{last.filename},,\n", zipfile.ZIP_DEFLATED)
    return new


def main(wheel, folder):
    wheel, folder = pathlib.Path(wheel), pathlib.Path(folder)
    if not wheel.name.endswith("-py3-none-linux_x86_64.whl"):
        sys.exit(f"manylinux: {wheel.name} is not a wheel of pip wheel . (...-py3-none-linux_x86_64.whl)")
    if not folder.is_dir():
        sys.exit(f"manylinux: {folder} is not a folder")
    with tempfile.TemporaryDirectory() as temporary:
        library = zipfile.ZipFile(wheel).extract("sluice_moe/libsluice.so", temporary)
        found = symbols(library)
    for version in sorted(v for v in found if v > LEAST):
        print(f"GLIBC_{'.'.join(map(str, version))}: {', '.join(sorted(found[version]))}")
    newest = max([LEAST, *found])
    print(retag(wheel, folder, f"manylinux_{newest[0]}_{newest[1]}_x86_64"))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
