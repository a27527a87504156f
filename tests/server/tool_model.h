// SPDX-License-Identifier: Apache-2.0
// The bundled model's words with another chat template.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/tokenizer_json.h"
#include "server/served_model.h"

namespace sluice::server {

// Qwen3's, shortened.
inline constexpr const char* kHermesTemplate = R"jinja({%- if tools %}
    {{- '<|im_start|>system\n<tools>' }}
    {%- for tool in tools %}
        {{- '\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\n</tools>\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
        {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
        {{- '}\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %})jinja";
inline std::shared_ptr<const ServedModel> model_with(const std::string& chat_template) {
  const std::string folder = std::string(SLUICE_SOURCE_DIR) + "/models/tiny-nemotron-h";
  return std::make_shared<const ServedModel>(std::vector<std::string>{"tiny"}, folder,
                                             text::Tokenizer(io::read_tokenizer(folder)), model::ModelInfo(),
                                             SamplingDefaults(), chat_template, "the test's template");
}

}  // namespace sluice::server
