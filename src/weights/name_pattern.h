// SPDX-License-Identifier: Apache-2.0
// Lists of module names in quantisation configs: exact names, globs, parents, tails and regular expressions.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/regex.h"

namespace sluice::weights {

// A module's name as exclusion lists write it: without "language_model." and with "model." for NemotronH's "backbone.".
std::string normal_name(std::string_view module);

// One entry. "re:P" is a regular expression that must match from the name's first character (compressed-tensors).
// Everything else is a glob, where * stands for any characters, dots too; it must begin and end at dots or at the
// name's ends, so "lm_head" and "model.layers.1.mlp*" match themselves, what is below them and, as a tail, "mlp.gate"
// matches "model.layers.7.mlp.gate" but not "mlp.gate_proj". This covers ModelOpt's rule (full match of the name or of
// one dotted part, with globs), SGLang's (a name with or without "model.") and transformers' (prefix or tail), and
// mends the last one's "model.layers.1" that also takes layer 10.
class NamePattern {
 public:
  // `what` names the list in an error sentence. Throws bad_file when a regular expression does not compile.
  NamePattern(std::string_view pattern, const std::string& what);
  bool matches(std::string_view module) const;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::shared_ptr<text::Regex> regex_;
};

}  // namespace sluice::weights
