// SPDX-License-Identifier: Apache-2.0
// fuzz_seeds FOLDER: writes FOLDER/{safetensors,config,tokenizer}/<case> for every file of the tests' generators, and a
// few templates and texts.
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/io/config_defects.h"
#include "tests/io/tokenizer_defects.h"

namespace {
void put(const std::filesystem::path& folder, const std::string& name, const std::string& bytes) {
  // Megabytes of one bracket teach the fuzzer nothing and slow every mutation.
  if (bytes.size() > 4096) return;
  std::filesystem::create_directories(folder);
  std::ofstream(folder / name, std::ios::binary) << bytes;
}
}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  using namespace sluice::io;
  const std::filesystem::path root = argv[1];
  put(root / "safetensors", "sound", 'f' + sound_safetensors());
  put(root / "safetensors", "index",
      R"(i{"metadata":{"total_size":8},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");
  for (const auto& file : safetensors_defects()) put(root / "safetensors", file.name, 'f' + file.bytes);
  put(root / "config", "sound", kSoundConfig);
  for (const auto& file : config_defects()) put(root / "config", file.name, file.bytes);
  put(root / "tokenizer", "sound", kSoundTokenizer + std::string(1, '\0') + kSoundTokenizerConfig);
  for (const auto& file : tokenizer_defects()) put(root / "tokenizer", file.name, file.bytes);
  put(root / "template", "chat",
      "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' and not loop.last %}<|{{ m.role }}|>"
      "{{ m['content'] | trim }}{% else %}{{- (m.content or '') + '\n' }}{% endif %}{% endfor %}");
  put(root / "template", "macro",
      "{% macro f(x, y=2) -%}{{ x[::-1] | tojson }}{%- endmacro %}{% set ns = namespace(i=0) %}"
      "{% for t in tools if t is mapping %}{% set ns.i = ns.i + loop.index %}{{ f(t.items() | list) }}{% endfor %}");
  put(root / "encode", "text", "It's 12345 aaab  <s>a \xc3\xa9\xe4\xb8\xad\r\n\t we'll\xff");
}
