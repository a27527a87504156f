#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing on Debian 12 or Ubuntu 24.04: `scripts/setup.sh` for building, `scripts/setup.sh test` for
# the tests too, `scripts/setup.sh gpu` for building with CUDA, `scripts/setup.sh engines` for the tests inside vLLM and
# SGLang. Works as root or with sudo; says what it does; touches no network when everything is there.
set -euo pipefail

# A row is: what to look for (a command, or a file), and the package that has it.
build=(
  g++:g++ cmake:cmake ninja:ninja-build pkg-config:pkg-config ccache:ccache mold:mold
  /usr/include/nlohmann/json.hpp:nlohmann-json3-dev
  /usr/include/CLI/CLI.hpp:libcli11-dev
  /usr/include/fmt/core.h:libfmt-dev
  /usr/include/boost/beast.hpp:libboost-dev
  /usr/include/pcre2.h:libpcre2-dev
  /usr/include/utf8proc.h:libutf8proc-dev
)
tests=(
  /usr/include/gtest/gtest.h:libgtest-dev git:git python3:python3 clang++:clang clang-format-14:clang-format-14
  /usr/include/zmq.h:libzmq3-dev
)

missing_packages() {
  local row
  for row in "$@"; do
    local probe=${row%%:*}
    if [[ $probe == /* ]]; then [[ -e $probe ]]; else command -v "$probe" >/dev/null; fi || echo "${row##*:}"
  done
}

as_root=()
if [[ $(id -u) != 0 ]]; then as_root=(sudo); fi
updated=no
install_packages() {
  [[ $# -gt 0 ]] || return 0
  echo "setup: installing $*"
  if ! command -v apt-get >/dev/null; then
    echo "setup: no apt-get here; please install the packages above (Debian names) by hand" >&2
    exit 1
  fi
  if [[ ${#as_root[@]} -gt 0 ]] && ! command -v sudo >/dev/null; then
    echo "setup: neither root nor sudo; please install the packages above as root" >&2
    exit 1
  fi
  # The lists may be absent (images clear them) or old: one update before the first installation.
  if [[ $updated == no ]]; then "${as_root[@]}" apt-get update -qq; updated=yes; fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

rows=("${build[@]}")
if [[ ${1:-} == test ]]; then rows+=("${tests[@]}"); fi
mapfile -t packages < <(missing_packages "${rows[@]}")
install_packages "${packages[@]}"

# The run time of clang's sanitizers and of libFuzzer is a package of its own, named after clang's version.
if [[ ${1:-} == test ]] && ! compgen -G "$(clang++ -print-resource-dir)/lib/linux/libclang_rt.fuzzer-*.a" >/dev/null; then
  install_packages "libclang-rt-$(clang++ -dumpversion | cut -d. -f1)-dev"
fi

# A browser for the test of the page at / (100 MB). Ubuntu has Chromium as a snap alone: the test skips there without one.
browsers() { command -v chromium-headless-shell chromium chromium-browser google-chrome; }
if [[ ${1:-} == test ]] && grep -qsx 'ID=debian' /etc/os-release && ! browsers >/dev/null; then
  (install_packages chromium-headless-shell) || echo "setup: Chromium cannot be installed; the test of the page at / will skip"
fi

# What is fetched from PyPI as its authors publish it, as archives of which only a part is needed. pip checks the hash
# before it looks inside.
readonly third_party="$(dirname "$0")/../build/third-party"
download() { # name-version, sha256, folder, pip's option for the kind of archive
  local name=$1 hash=$2 work=$3 kind=$4
  echo "${name%-*}==${name##*-} --hash=sha256:$hash" >"$work/requirements.txt"
  python3 -m pip download -q --disable-pip-version-check --no-deps "$kind" "${name%-*}" --require-hashes \
    -r "$work/requirements.txt" -d "$work"
}
keep() { # folder with the parts, name of the folder under build/third-party
  mkdir -p "$third_party"
  rm -rf "${third_party:?}/$2"
  mv "$1" "$third_party/$2"
}
fetch() { # name-version, sha256, name of the folder, members of the source archive
  local name=$1 hash=$2 folder=$3 work
  shift 3
  work=$(mktemp -d)
  if ! download "$name" "$hash" "$work" --no-binary; then
    rm -r "$work"
    return 1
  fi
  echo "$hash  $work/$name.tar.gz" | sha256sum --check --quiet
  tar -xzf "$work/$name.tar.gz" -C "$work" "${@/#/$name/}"
  keep "$work/$name" "$folder"
  rm -r "$work"
}
fetch_wheel() { # name-version, sha256, name of the folder, folder in the wheel, folders of that one
  local name=$1 hash=$2 folder=$3 inside=$4 work
  shift 4
  work=$(mktemp -d)
  if ! download "$name" "$hash" "$work" --only-binary; then
    rm -r "$work"
    return 1
  fi
  python3 - "$hash" "$work" "$inside" "$@" <<'EOF'
import glob, hashlib, sys, zipfile
digest, work, inside, *parts = sys.argv[1:]
(wheel,) = glob.glob(work + "/*.whl")
assert hashlib.sha256(open(wheel, "rb").read()).hexdigest() == digest, wheel
wanted = tuple(f"{inside}/{part}/" for part in parts)
with zipfile.ZipFile(wheel) as archive:
    names = [n for n in archive.namelist() if n.startswith(wanted) or "/licenses/LICENSE" in n]
    archive.extractall(work, names)
EOF
  cp -r "$work"/*.dist-info/licenses "$work/$inside/"
  keep "$work/$inside" "$folder"
  rm -r "$work"
}
install_pip() {
  command -v python3 >/dev/null || install_packages python3
  python3 -m pip --version >/dev/null 2>&1 || install_packages python3-pip
}

# The grammar library behind constrained output: its C++ core is built here (cmake/Xgrammar.cmake).
if [[ ! -d $third_party/xgrammar-0.2.8 ]]; then
  install_pip
  echo "setup: fetching xgrammar 0.2.8 from PyPI into $third_party"
  fetch xgrammar-0.2.8 8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80 xgrammar-0.2.8 \
    LICENSE NOTICE cpp include 3rdparty/picojson 3rdparty/dlpack/include 3rdparty/dlpack/LICENSE ||
    echo "setup: xgrammar is not there; constrained output (JSON schemas, grammars) will be refused"
fi
# The JSON Schema Test Suite, which the jsonschema package ships with its source.
if [[ ${1:-} == test && ! -d $third_party/json-schema-suite ]]; then
  install_pip
  echo "setup: fetching the JSON Schema Test Suite (jsonschema 4.25.1) from PyPI into $third_party"
  if fetch jsonschema-4.25.1 e4a9655ce0da0c0b67a085847e00a3a51449e1157f4f75e9fb5aa545e122eb85 json-schema-suite \
    json/LICENSE json/tests; then
    mv "$third_party/json-schema-suite/json/"* "$third_party/json-schema-suite"
    rmdir "$third_party/json-schema-suite/json"
  else
    echo "setup: the suite is not there; the test that runs it will skip"
  fi
fi

# Python packages of tests, in environments of their own; without PyPI their tests say so and skip. The versions are those
# that the tests were tried with: a package that changes must not fail a commit that has not.
python_environment() { # folder, package==version... (or: folder, -r, a file that lists them, pip's options)
  local folder=$1 wanted
  shift
  wanted=$*
  if [[ $1 == -r ]]; then wanted=$(cat "$2"); fi
  [[ "$(cat "$folder/pinned" 2>/dev/null)" != "$wanted" ]] || return 0
  python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
  echo "setup: installing $* from PyPI into $folder"
  rm -f "$folder/pinned"
  if python3 -m venv "$folder" && "$folder/bin/pip" install -q --disable-pip-version-check "$@"; then
    echo "$wanted" >"$folder/pinned"
  else
    echo "setup: PyPI cannot be reached; the tests of these packages will skip"
  fi
}
readonly environments="$(dirname "$0")/../build"
if [[ ${1:-} == test ]]; then
  # LiteLLM needs mcp for tools.
  python_environment "$environments/clients" openai==2.54.0 prometheus-client==0.26.0 litellm==1.106.2 mcp==2.3.0 \
    anthropic==2.12.0 instructor==1.17.0 langchain-openai==1.7.3 jsonschema==4.26.0 sglang-router==0.3.2 \
    pyzmq==27.3.0 msgpack==1.2.4 msgspec==0.22.0
  # 950 MB, two minutes. Not aiperf, which is 1.2 GB and cannot be installed beside this guidellm; no newer guidellm, as it brings torch.
  python_environment "$environments/evaluators" "lm-eval[api]==0.4.13" transformers==5.17.0 guidellm==0.3.1
  python_environment "$environments/python" numpy==2.3.5 ml_dtypes==0.6.0 pytest==9.0.1 scikit-build-core==1.1.2 \
    mypy==2.4.1
fi
if [[ ${1:-} == engines ]]; then
  # 7 GB, two minutes. Without dependencies beyond the list: the engines ask for many that these tests do not import, and for
  # different versions of some. Not through pip's cache, which would keep the archives.
  python_environment "$environments/engines" -r "$(dirname "$0")/engines.txt" --no-deps --no-cache-dir
fi

# FlashInfer's attention kernels, and the headers of CUTLASS and CCCL that come with them (cmake/FlashInfer.cmake).
with_cuda=no
if [[ ${1:-} == gpu ]] || { [[ ${1:-} == test ]] && { [[ -n ${CUDACXX:-} || -x /usr/local/cuda/bin/nvcc ]] || command -v nvcc >/dev/null; }; }; then
  with_cuda=yes
fi
if [[ $with_cuda == yes && ! -d $third_party/flashinfer-0.7.2.post1 ]]; then
  install_pip
  echo "setup: fetching FlashInfer 0.7.2.post1 from PyPI into $third_party (62 MB)"
  fetch_wheel flashinfer-python-0.7.2.post1 bfdc18b9e1e4d8d0730fe4343dc0e284cd0c160086de80f99888bc4867922d49 \
    flashinfer-0.7.2.post1 flashinfer/data include cutlass/include cutlass/tools/util/include \
    cccl/libcudacxx/include cccl/cub/cub cccl/thrust/thrust ||
    echo "setup: FlashInfer is not there; prompts will be attended by slower kernels"
fi

# The CUDA compiler, where there is none: packages of PyPI with their hashes, in a folder where cmake/Toolchain.cmake
# looks for it. NVIDIA's repository has it for apt, but would be a second source of packages on the user's machine.
readonly cuda="$(dirname "$0")/../build/cuda" cuda_wheels="$(dirname "$0")/cuda-wheels.txt"
if [[ ${1:-} == gpu && -z ${CUDACXX:-} ]] && ! command -v nvcc >/dev/null && ! cmp -s "$cuda_wheels" "$cuda/installed"; then
  python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3 python3-venv
  echo "setup: installing the CUDA compiler from PyPI into $cuda (105 MB)"
  rm -rf "$cuda"
  python3 -m venv "$cuda/pip"
  "$cuda/pip/bin/pip" install -q --disable-pip-version-check --no-deps --require-hashes --target "$cuda" -r "$cuda_wheels"
  # CMake looks for the names of an installed toolkit.
  ln -s lib "$cuda/nvidia/cu13/lib64"
  ln -s libcudart.so.13 "$cuda/nvidia/cu13/lib/libcudart.so"
  cp "$cuda_wheels" "$cuda/installed"
fi
