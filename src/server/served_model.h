// SPDX-License-Identifier: Apache-2.0
// What the endpoints know of the model: its names, its words, and what its authors recommend.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/model.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace sluice::server {

// Of a request that does not say.
struct SamplingDefaults {
  double temperature = 1, top_p = 1, min_p = 0, repetition_penalty = 1;
  int64_t top_k = 0;
  std::string source;  // "generation_config.json: temperature 0.6, top_p 0.95"; "" for OpenAI's
};

// Reads generation_config.json when the folder has one. Throws bad_file for values that cannot be.
SamplingDefaults read_sampling_defaults(const std::string& folder);

class ServedModel {
 public:
  // template_text: "" takes the checkpoint's own.
  ServedModel(std::vector<std::string> names, std::string path, text::Tokenizer tokenizer, const model::ModelInfo& info,
              SamplingDefaults defaults, std::string_view template_text = "", std::string_view template_source = "");

  const std::vector<std::string> names;  // the first is what answers say
  const std::string path;
  const text::Tokenizer tokenizer;
  const model::ModelInfo info;
  const SamplingDefaults defaults;

  // Throws ApiError 400 when there is none, or it cannot be used: then the sentence names its line.
  const text::ChatTemplate& chat_template() const;
  const std::string& chat_template_text() const { return template_text_; }
  const std::string& chat_template_error() const { return template_error_; }

  // The token ids of a rendered chat whose messages went through guard(): the template's special tokens are tokens,
  // the users' own are plain text, so that nobody's words can end their turn and begin the system's.
  std::vector<int32_t> encode_chat(std::string_view rendered) const;
  std::string guard(std::string_view text) const;

 private:
  std::string template_text_, template_error_;
  std::optional<text::ChatTemplate> template_;
  std::vector<std::string> special_texts_;
};

}  // namespace sluice::server
