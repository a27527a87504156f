#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing on Debian 12 or Ubuntu 24.04: `scripts/setup.sh` for building, `scripts/setup.sh test` for
# the tests too. Works as root or with sudo; says what it does; touches no network when everything is there.
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

# The official clients, in an environment of their own; without PyPI their tests say so and skip.
readonly clients="$(dirname "$0")/../build/clients"
if [[ ${1:-} == test ]] && ! "$clients/bin/python" -c 'import openai, prometheus_client' 2>/dev/null; then
  python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
  echo "setup: installing the openai and prometheus clients from PyPI into $clients"
  if ! { python3 -m venv "$clients" && "$clients/bin/pip" install -q --disable-pip-version-check 'openai>=1.50,<3' \
    prometheus-client; }; then
    echo "setup: PyPI cannot be reached; the tests of these clients will skip"
  fi
fi
