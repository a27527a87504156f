// SPDX-License-Identifier: Apache-2.0
// What the endpoints know of the model: its names, its words, and what its authors recommend.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/compiler.h"
#include "model/model.h"
#include "text/chat_template.h"
#include "text/special_guard.h"
#include "text/tokenizer.h"

namespace sluice::server {

// The sampling parameters of a request that does not state them.
struct SamplingDefaults {
  double temperature = 1, top_p = 1, min_p = 0, repetition_penalty = 1;
  int64_t top_k = 0;
  std::string source;  // "generation_config.json: temperature 0.6, top_p 0.95"; "" for OpenAI's
};

// Reads generation_config.json when the folder has one. Throws bad_file for values out of range.
SamplingDefaults read_sampling_defaults(const std::string& folder);

class ServedModel {
 public:
  // template_text: "" takes the checkpoint's own.
  ServedModel(std::vector<std::string> names, std::string path, text::Tokenizer tokenizer, const model::ModelInfo& info,
              SamplingDefaults defaults, std::string_view template_text = "", std::string_view template_source = "");

  const bool any_name;                   // "*" was among them: requests may call it anything
  const std::vector<std::string> names;  // without the "*"; answers carry the first
  const std::string path;
  const std::string model_type;  // as config.json states it, "" where it does not
  const text::Tokenizer tokenizer;
  const model::ModelInfo info;
  const SamplingDefaults defaults;

  bool has_name(std::string_view name) const;

  // Compiles grammars for the model's vocabulary and keeps the latest ones.
  grammar::GrammarCompiler& grammars() const { return *grammars_; }

  // Throws ApiError 400 where the model has no template, or one that cannot be used, with the line at fault.
  const text::ChatTemplate& chat_template() const;
  const std::string& chat_template_text() const { return template_text_; }
  const std::string& chat_template_error() const { return template_error_; }

  // Users' special tokens are plain text: messages go through guard(), rendered chats through encode_chat().
  const text::SpecialGuard& special_guard() const { return special_guard_; }
  std::string guard(std::string_view text) const { return special_guard_.guard(text); }
  std::vector<int32_t> encode_chat(std::string_view rendered, size_t enough = SIZE_MAX) const {
    return special_guard_.encode(tokenizer, rendered, enough);
  }
  size_t bytes_without_guards(std::string_view rendered) const {
    return text::SpecialGuard::bytes_without_guards(rendered);
  }
  // Whether this text is a special token. Answers leave these out unless a request asks for them.
  bool is_special_token(std::string_view text) const { return special_guard_.is_special(text); }

 private:
  std::string template_text_, template_error_;
  std::optional<text::ChatTemplate> template_;
  text::SpecialGuard special_guard_;
  std::unique_ptr<grammar::GrammarCompiler> grammars_;
};

}  // namespace sluice::server
