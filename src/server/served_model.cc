// SPDX-License-Identifier: Apache-2.0
#include "server/served_model.h"

#include <algorithm>
#include <filesystem>

#include "io/config.h"
#include "sampling/sampler.h"
#include "server/api_error.h"

namespace sluice::server {

namespace {
std::vector<std::string> without_star(std::vector<std::string> names) {
  std::erase(names, "*");
  return names;
}
}  // namespace

bool ServedModel::has_name(std::string_view name) const {
  return any_name || std::find(names.begin(), names.end(), name) != names.end();
}

SamplingDefaults read_sampling_defaults(const std::string& folder) {
  SamplingDefaults d;
  const std::filesystem::path file = std::filesystem::path(folder) / "generation_config.json";
  if (!std::filesystem::exists(file)) return d;
  const io::Config config = io::Config::load(file);
  const auto take = [&](const char* key, auto& value, auto read) {
    if (!config.has(key)) return;
    value = read();
    d.source += fmt::format("{}{} {}", d.source.empty() ? "generation_config.json: " : ", ", key, value);
  };
  take("temperature", d.temperature, [&] { return config.number("temperature", {0, 1e6}); });
  take("top_p", d.top_p, [&] { return config.number("top_p", {1e-9, 1}); });
  take("top_k", d.top_k, [&] { return config.integer("top_k", {0, int64_t{1} << 31}); });
  take("min_p", d.min_p, [&] { return config.number("min_p", {0, 1}); });
  take("repetition_penalty", d.repetition_penalty, [&] {
    return config.number("repetition_penalty", {sampling::kLeastRepetitionPenalty, 2});
  });
  return d;
}

ServedModel::ServedModel(std::vector<std::string> names_, std::string path_, text::Tokenizer tokenizer_,
                         const model::ModelInfo& info_, SamplingDefaults defaults_, std::string_view template_text,
                         std::string_view template_source)
    : any_name(std::find(names_.begin(), names_.end(), "*") != names_.end()),
      names(without_star(std::move(names_))),
      path(std::move(path_)),
      model_type(io::Config::load(std::filesystem::path(path) / "config.json").string("model_type", "")),
      tokenizer(std::move(tokenizer_)),
      info(info_),
      defaults(std::move(defaults_)),
      template_text_(template_text.empty() ? tokenizer.chat_template() : std::string(template_text)),
      special_guard_(tokenizer),
      grammars_(
          std::make_unique<grammar::GrammarCompiler>(grammar::vocabulary_of(tokenizer, info.vocab, info.stop_tokens))) {
  if (template_text_.empty()) {
    template_error_ =
        fmt::format("{} has no chat template; use /v1/completions, or start the server with a chat template", names[0]);
  } else {
    try {
      template_.emplace(template_text_, template_source.empty() ? "the checkpoint's chat template" : template_source);
    } catch (const Error& error) {
      template_error_ = error.what();
    }
  }
}

const text::ChatTemplate& ServedModel::chat_template() const {
  if (!template_) throw ApiError(400, "invalid_request_error", template_error_, "messages", "unsupported");
  return *template_;
}

}  // namespace sluice::server
