// SPDX-License-Identifier: Apache-2.0
// JSON written from left to right. A stream sends an object per token, so no tree is built for it.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::server {

// In quotes, escaped; what is not UTF-8 becomes U+FFFD.
std::string json_text(std::string_view text);
std::string json_number(double value);  // NaN and infinities, which JSON has not, become null

class JsonArray {
 public:
  JsonArray& raw(std::string_view json) {
    if (text_.size() > 1) text_ += ',';
    text_ += json;
    return *this;
  }
  std::string str() const { return text_ + "]"; }

 private:
  std::string text_ = "[";
};

class JsonObject {
 public:
  JsonObject& raw(std::string_view key, std::string_view json) {
    if (text_.size() > 1) text_ += ',';
    text_.append(json_text(key)).append(":").append(json);
    return *this;
  }
  JsonObject& add(std::string_view key, std::string_view value) { return raw(key, json_text(value)); }
  JsonObject& add(std::string_view key, const char* value) { return raw(key, json_text(value)); }
  JsonObject& add(std::string_view key, bool value) { return raw(key, value ? "true" : "false"); }
  JsonObject& add(std::string_view key, std::integral auto value) { return raw(key, std::to_string(value)); }
  JsonObject& add(std::string_view key, double value) { return raw(key, json_number(value)); }
  // The members of another one.
  JsonObject& append(const JsonObject& more) {
    if (text_.size() > 1 && more.text_.size() > 1) text_ += ',';
    text_.append(more.text_, 1);
    return *this;
  }
  std::string str() const { return text_ + "}"; }

 private:
  std::string text_ = "{";
};

}  // namespace sluice::server
