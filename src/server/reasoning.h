// SPDX-License-Identifier: Apache-2.0
// Tells what a model thinks, between <think> and </think>, from what it says.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::server {

class ReasoningSplitter {
 public:
  // unknown: a <think> at the text's beginning decides.
  enum class Begin : uint8_t { unknown, thinking, answering };
  explicit ReasoningSplitter(Begin begin) : state_(begin) {}

  struct Pieces {
    std::string reasoning, content;
  };
  // What is certain after some more text: what may become a tag is held back. The pieces together are the text without
  // the tags and the white space behind each of them.
  Pieces push(std::string_view text);
  Pieces finish();

 private:
  void decide(Pieces& out);
  void think(Pieces& out);
  void drop_space();

  Begin state_;
  bool after_tag_ = false;  // white space is dropped
  std::string held_;
};

// How an answer to this prompt begins: templates may open the thought, or close it at once.
ReasoningSplitter::Begin beginning_of_answer(std::string_view prompt);

}  // namespace sluice::server
