// SPDX-License-Identifier: Apache-2.0
// POST /weights_checker: checksums of the tensors that run. GET and POST /get_weights_by_name: their values.
#include <algorithm>

#include "io/quote.h"
#include "io/sha256.h"
#include "io/tensor_values.h"
#include "server/api_error.h"
#include "server/endpoints.h"
#include "server/fields.h"
#include "server/json_out.h"

namespace sluice::server {

namespace {
constexpr int64_t kMostValues = int64_t{1} << 20;  // of one answer; 20 MB of JSON

// The served tensors, if their bytes are still what was loaded.
io::Checkpoint weights_of(Service& service) {
  io::Checkpoint weights = service.engine()->weights();
  weights.check_unchanged();
  if (weights.bytes() == 0)
    throw ApiError(400, "invalid_request_error", "the weights are dummies, not those of a checkpoint", "",
                   "unsupported");
  return weights;
}

bool is_whole(DType d) {
  return d == DType::u8 || d == DType::boolean || d == DType::i8 || d == DType::i16 || d == DType::i32;
}

std::string value_json(const Tensor& t, int64_t i) {
  if (t.dtype() == DType::i64) return std::to_string(t.as<int64_t>()[i]);
  const double value = io::value_at(t, i);
  return is_whole(t.dtype()) ? std::to_string(static_cast<int64_t>(value)) : json_number(value);
}

// Nested lists, as torch's tolist(); `at` goes on with every value. `rows`: of the first dimension.
std::string nested_json(const Tensor& t, size_t dimension, int64_t rows, int64_t& at) {
  if (dimension == t.shape().size()) return value_json(t, at++);
  JsonArray out;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t inner = dimension + 1 < t.shape().size() ? t.shape()[dimension + 1] : 0;
    out.raw(nested_json(t, dimension + 1, inner, at));
  }
  return out.str();
}

std::vector<std::string> read_skipped(Fields& fields) {
  return fields.string_or_strings("skip_tensor_list", size_t{1} << 20);
}
}  // namespace

// {"action": "checksum", "skip_tensor_list": [...]}. The SHA-256 of each tensor's bytes as a safetensors file has them,
// and one over all: of the names and checksums, in the order of the names.
void weights_checker(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  const io::JsonValue body = parse_optional_body(exchange->request().body);
  Fields fields(body);
  const std::string action = fields.string("action").value_or("checksum");
  if (action != "checksum")
    fields.refuse("action", fmt::format("is {}; accepted: checksum", io::quote(action)), "unsupported_parameter");
  const std::vector<std::string> skipped = read_skipped(fields);
  const std::string selector = fields.string("selector").value_or("all");
  if (selector != "all") fields.refuse("selector", fmt::format("is {}; accepted: all", io::quote(selector)));
  fields.boolean("allow_quant_error");  // of comparisons: bytes are compared here
  fields.finish(service.unknown_fields());

  const io::Checkpoint weights = weights_of(service);
  JsonObject checksums;
  io::Sha256 all;
  const auto add = [&](const std::string& text) { all.add(std::as_bytes(std::span(text.data(), text.size()))); };
  size_t count = 0;
  for (const std::string& name : weights.names()) {  // sorted
    if (std::find(skipped.begin(), skipped.end(), name) != skipped.end()) continue;
    const std::string checksum = io::checksum(weights.tensor(name));
    checksums.add(name, checksum);
    add(name);
    add(checksum);
    ++count;
  }
  const std::string total = all.finish();
  io::Sha256 engine;
  engine.add(std::as_bytes(std::span(total.data(), total.size())));
  const std::string rank = JsonObject().add("per_gpu_checksum", total).raw("checksums", checksums.str()).str();
  exchange->reply({.body = JsonObject()
                               .add("success", true)
                               .add("message", fmt::format("SHA-256 of {} tensors", count))
                               .raw("ranks", JsonArray().raw(rank).str())
                               .add("per_engine_checksum", engine.finish())
                               .add("weight_version", service.weight_version())
                               .str()});
}

// {"name", "truncate_size": 100}: the first rows as nested lists.
void get_weights_by_name(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  const io::JsonValue body = parse_body(exchange->request().body);
  Fields fields(body);
  const auto name = fields.string("name");
  if (!name) fields.refuse("name", "is missing; accepted: the tensor's name in the checkpoint");
  const int64_t truncate = fields.integer("truncate_size", 1, kMostValues).value_or(100);
  fields.finish(service.unknown_fields());
  const io::Checkpoint weights = weights_of(service);
  if (!weights.contains(*name))
    fields.refuse("name", fmt::format("is {}, which is no tensor of the served checkpoint", io::quote(*name)),
                  "not_found");
  const Tensor tensor = weights.tensor(*name);
  const int64_t rows = tensor.rank() == 0 ? 1 : std::min(truncate, tensor.dim(0));
  const int64_t values = tensor.rank() == 0 || tensor.dim(0) == 0 ? 1 : tensor.elements() / tensor.dim(0) * rows;
  if (values > kMostValues)
    fields.refuse("truncate_size",
                  fmt::format("is {}: {} values; accepted: at most {} values", truncate, values, kMostValues));
  int64_t at = 0;
  exchange->reply({.body = nested_json(tensor, 0, rows, at)});
}

}  // namespace sluice::server
