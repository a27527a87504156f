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
  // The first byte chooses the endpoint, any of those that read a body.
  for (char endpoint = 10; endpoint < 22; ++endpoint) {
    const std::string name = std::to_string(endpoint);
    put(root / "request", "chat" + name,
        endpoint +
            std::string(R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"stream":true,"n":2,)"
                        R"("logprobs":true,"top_logprobs":2,"stop":["x"],"stream_options":{"include_usage":true}})"));
    put(root / "request", "completion" + name,
        endpoint +
            std::string(R"({"prompt":["a",[1,2]],"echo":true,"logprobs":1,"max_tokens":0,"logit_bias":{"1":2}})"));
    put(root / "request", "generate" + name,
        endpoint +
            std::string(R"({"input_ids":[[1],[2]],"sampling_params":[{"n":2},{"max_new_tokens":3,"top_k":-1}],)"
                        R"("return_logprob":true,"logprob_start_len":0,"rid":"r","tokens":[1],"abort_all":true})"));
  }
}
