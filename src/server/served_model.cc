// SPDX-License-Identifier: Apache-2.0
#include "server/served_model.h"

#include <filesystem>

#include "io/config.h"
#include "server/api_error.h"

namespace sluice::server {

namespace {
// U+FDD0, a noncharacter "for internal use": it cuts a user's special token in two until the text is encoded. A text
// that holds one already loses it.
constexpr std::string_view kCut = "\xEF\xB7\x90";

std::string without_cuts(std::string_view text) {
  std::string out;
  for (size_t at = 0;;) {
    const size_t cut = text.find(kCut, at);
    out.append(text.substr(at, cut - at));
    if (cut == text.npos) return out;
    at = cut + kCut.size();
  }
}
}  // namespace

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
  take("repetition_penalty", d.repetition_penalty, [&] { return config.number("repetition_penalty", {1e-3, 2}); });
  return d;
}

ServedModel::ServedModel(std::vector<std::string> names_, std::string path_, text::Tokenizer tokenizer_,
                         const model::ModelInfo& info_, SamplingDefaults defaults_, std::string_view template_text,
                         std::string_view template_source)
    : names(std::move(names_)),
      path(std::move(path_)),
      tokenizer(std::move(tokenizer_)),
      info(info_),
      defaults(std::move(defaults_)),
      template_text_(template_text.empty() ? tokenizer.chat_template() : std::string(template_text)) {
  if (template_text_.empty()) {
    template_error_ =
        fmt::format("{} has no chat template; use /v1/completions, or start with --chat-template", names[0]);
  } else {
    try {
      template_.emplace(template_text_, template_source.empty() ? "the checkpoint's chat template" : template_source);
    } catch (const Error& error) {
      template_error_ = error.what();
    }
  }
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.is_special(id) && tokenizer.bytes_of(id).size() > 1)
      special_texts_.emplace_back(tokenizer.bytes_of(id));
}

const text::ChatTemplate& ServedModel::chat_template() const {
  if (!template_) throw ApiError(400, "invalid_request_error", template_error_, "messages", "unsupported");
  return *template_;
}

std::string ServedModel::guard(std::string_view text) const {
  std::string out = without_cuts(text);
  for (const std::string& special : special_texts_) {
    for (size_t at = out.find(special); at != out.npos; at = out.find(special, at)) {
      size_t behind_first = at + 1;  // character
      while (behind_first < out.size() && (static_cast<unsigned char>(out[behind_first]) & 0xC0) == 0x80)
        ++behind_first;
      out.insert(behind_first, kCut);
      at = behind_first + kCut.size();
    }
  }
  return out;
}

std::vector<int32_t> ServedModel::encode_chat(std::string_view rendered) const {
  // The template writes the bos token itself.
  const text::EncodeOptions options{.parse_special = true, .add_special_tokens = false};
  std::vector<int32_t> ids;
  for (size_t at = 0;;) {
    const size_t cut = rendered.find(kCut, at);
    const std::vector<int32_t> piece = tokenizer.encode(rendered.substr(at, cut - at), options);
    ids.insert(ids.end(), piece.begin(), piece.end());
    if (cut == rendered.npos) return ids;
    at = cut + kCut.size();
  }
}

}  // namespace sluice::server
