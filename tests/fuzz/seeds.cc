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
  const char* const grammars[] = {
      R"({"type":"object","properties":{"a":{"$ref":"#/$defs/b"}},"required":["a"],"$defs":{"b":{"anyOf":[{"enum":[1,"x"]},)"
      R"({"type":"array","items":{"type":"string","pattern":"^a+$"},"maxItems":3},{"type":"integer","minimum":-5}]}}})",
      R"([a-c]{2,3}(x|yz)*\d+[^\n])", "root ::= \"(\" item{1,4} \")\" | [0-9]+\nitem ::= root | \"\\n\"\n",
      R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<f"],"tags":[{"type":"tag","begin":"<f>",)"
      R"("content":{"type":"json_schema","json_schema":{"type":"integer"}},"end":"</f>"}],"at_least_one":true}})"};
  for (char kind = 0; kind < 4; ++kind) put(root / "grammar", std::to_string(kind), kind + std::string(grammars[kind]));
  // The first byte chooses the format and when calls are told, the second where the text is cut.
  for (const int format :
       {0, 1, 2, 3, 4, 5, 6, 7, 64, 65, 66, 67, 68, 69, 70, 71, 128, 129, 130, 131, 132, 133, 134, 135})
    for (const char* text :
         {R"(<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>)",
          "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
          "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
          R"(<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>)",
          "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
          "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
          "<\uFF5Ctool\u2581call\u2581begin\uFF5C>f<\uFF5Ctool\u2581sep\uFF5C>{}"
          "<\uFF5Ctool\u2581call\u2581end\uFF5C>",
          "<\uFF5Ctool\u2581call\u2581begin\uFF5C>function<\uFF5Ctool\u2581sep\uFF5C>f\n```json\n{}\n```"
          "<\uFF5Ctool\u2581call\u2581end\uFF5C>"}) {
      const std::string text_of_it = text;
      put(root / "tool_calls", std::to_string(format) + "-" + std::to_string(text_of_it.size()),
          std::string(1, static_cast<char>(format)) + '\3' + text_of_it);
    }
  // The first byte chooses the endpoint, any of those that read a body.
  for (char endpoint = 10; endpoint < 64; ++endpoint) {
    const std::string name = std::to_string(endpoint);
    put(root / "request", "chat" + name,
        endpoint +
            std::string(R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"stream":true,"n":2,)"
                        R"("logprobs":true,"top_logprobs":2,"stop":["x"],"stream_options":{"include_usage":true}})"));
    put(root / "request", "tools" + name,
        endpoint + std::string(R"({"messages":[{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f",)"
                               R"("arguments":"{\"a\":1}"}}]},{"role":"tool","content":"x"}],"tool_choice":"auto",)"
                               R"("tools":[{"type":"function","function":{"name":"f","parameters":{}}}]})"));
    put(root / "request", "completion" + name,
        endpoint +
            std::string(
                R"({"prompt":["a",[1,2]],"cache_salt":"s","priority":1,"timeout":1,"echo":true,"logprobs":1,"max_tokens":0,"logit_bias":{"1":2}})"));
    put(root / "request", "message" + name,
        endpoint +
            std::string(
                R"({"system":[{"type":"text","text":"a"}],"max_tokens":3,"thinking":{"type":"enabled"},"messages":[)"
                R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"a"}]},)"
                R"({"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"a":[1,null]}}]}]})"));
    put(root / "request", "agent" + name,
        endpoint +
            std::string(
                R"({"max_tokens":3,"stream":true,"messages":[{"role":"user","content":"a"}],"tools":[{"name":"f",)"
                R"("strict":true,"eager_input_streaming":true,"input_schema":{"type":"object","properties":{"a":)"
                R"({"type":"string"}},"required":["a"]}}],"tool_choice":{"type":"any","disable_parallel_tool_use":)"
                R"(true},"output_config":{"format":{"type":"json_schema","schema":{"type":"integer"}}}})"));
    put(root / "request", "function" + name,
        endpoint +
            std::string(
                R"({"input":"a","stream":true,"tools":[{"type":"function","name":"f","parameters":{"type":"object",)"
                R"("properties":{"a":{"type":"string"}}},"strict":true},{"type":"web_search"}],"tool_choice":{"type":)"
                R"("allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]},"parallel_tool_calls":)"
                R"(false,"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"integer"}}},)"
                R"("include":["reasoning.encrypted_content"]})"));
    put(root / "request", "response" + name,
        endpoint +
            std::string(R"({"instructions":"a","input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},)"
                        R"({"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"reasoning",)"
                        R"("content":[{"type":"reasoning_text","text":"a"}]}],"text":{"format":{"type":"text"}}})"));
    put(root / "request", "weights" + name,
        endpoint +
            std::string(
                R"({"tensors":[{"name":"a","dtype":"torch.float32","shape":[2,2],"offset":0}],"tags":["weights"],)"
                R"("shared_memory":"none","mode":"retract","name":"a","num_steps":2,"new_version":"v"})"));
    put(root / "request", "generate" + name,
        endpoint +
            std::string(R"({"input_ids":[[1],[2]],"sampling_params":[{"n":2},{"max_new_tokens":3,"top_k":-1}],)"
                        R"("return_logprob":true,"logprob_start_len":0,"rid":"r","tokens":[1],"abort_all":true})"));
    // Requests that /generate, /v1/responses and /v1/messages answer; of those above they refuse some field.
    put(root / "request", "generated" + name,
        endpoint + std::string(R"({"input_ids":[[1],[2]],"sampling_params":[{"n":2},{"n":2,"top_k":-1}],"stream":true,)"
                               R"("return_logprob":true,"logprob_start_len":0,"top_logprobs_num":2,"rid":["r","s"]})"));
    put(root / "request", "called" + name,
        endpoint + std::string(R"({"input":"a","stream":true,"tools":[{"type":"function","name":"f","parameters":)"
                               R"({"type":"object","properties":{"a":{"type":"string"}}},"strict":true}]})"));
    put(root / "request", "said" + name,
        endpoint + std::string(R"({"max_tokens":3,"system":"a","messages":[{"role":"user","content":"a"}]})"));
  }
}
