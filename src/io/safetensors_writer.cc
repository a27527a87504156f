// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "base/math.h"
#include "io/quote.h"
#include "io/safetensors_header.h"

namespace sluice::io {

struct SafetensorsWriter::State {
  OutputFile file;
  std::map<std::string, std::string> metadata;
  struct Item {
    std::string name;
    DType dtype;
    Shape shape;
    int64_t bytes = 0, offset = 0;  // offset in the file
    bool written = false;
  };
  std::unordered_map<std::string, Item> items;
  bool started = false;
};

namespace {
std::string json_string(std::string_view text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::invalid_argument, "{} is not UTF-8; names and metadata in safetensors files must be", quote(text));
  }
}

// The order in the file.
bool lies_before(DType dtype_a, std::string_view a, DType dtype_b, std::string_view b) {
  const int64_t size_a = bytes_of(dtype_a), size_b = bytes_of(dtype_b);
  return size_a != size_b ? size_a > size_b : a < b;
}

std::string metadata_json(const std::map<std::string, std::string>& metadata) {
  std::string text = "\"__metadata__\":{";
  for (const auto& [key, value] : metadata) {
    if (text.back() != '{') text += ',';
    text += json_string(key) + ':' + json_string(value);
  }
  return text + '}';
}
}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::map<std::string, std::string> metadata)
    : state_(new State{OutputFile(path), std::move(metadata), {}, false}) {}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::add(std::string_view name, DType dtype, const Shape& shape) {
  State& s = *state_;
  check(!s.started, "tensor {} is added after start() of {}", quote(name), s.file.name());
  check(!name.empty() && name.find('\0') == name.npos && name != "__metadata__",
        "the tensor name {} is not accepted: it must not be empty, hold NUL or be __metadata__", quote(name));
  const auto bytes = checked_mul(elements_of(shape), bytes_of(dtype));
  check(bytes.has_value(), "tensor {} of shape {} is larger than any file", quote(name), to_string(shape));
  const bool fresh = s.items.emplace(name, State::Item{std::string(name), dtype, shape, *bytes, 0, false}).second;
  check(fresh, "tensor {} is added twice to {}", quote(name), s.file.name());
}

void SafetensorsWriter::start() {
  State& s = *state_;
  check(!s.started, "start() of {} is called twice", s.file.name());
  s.started = true;
  std::vector<State::Item*> order;
  for (auto& [name, item] : s.items) order.push_back(&item);
  std::sort(order.begin(), order.end(), [](const State::Item* a, const State::Item* b) {
    return lies_before(a->dtype, a->name, b->dtype, b->name);
  });

  std::string header = "{";
  if (!s.metadata.empty()) header += metadata_json(s.metadata);
  int64_t at = 0;
  for (State::Item* item : order) {
    const int64_t end = at + item->bytes;
    if (header.back() != '{') header += ',';
    header +=
        json_string(item->name) + fmt::format(":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                                              file_dtype_of(item->dtype).name, fmt::join(item->shape, ","), at, end);
    item->offset = at;
    at = end;
  }
  header += '}';
  header.resize(round_up<size_t>(header.size(), 8), ' ');
  check(static_cast<int64_t>(header.size()) <= kMaxSafetensorsHeader,
        "{} would get a header of {} bytes; readers accept at most {}: write more than one file", s.file.name(),
        header.size(), kMaxSafetensorsHeader);
  const uint64_t length = header.size();
  const auto data_offset = static_cast<int64_t>(8 + length);
  for (State::Item* item : order) item->offset += data_offset;
  s.file.reserve(data_offset + at);
  s.file.write(&length, 8);  // little-endian, as is x86-64
  s.file.write(header.data(), static_cast<int64_t>(length));
}

void SafetensorsWriter::write(std::string_view name, const Tensor& tensor) {
  State& s = *state_;
  check(s.started, "tensor {} is written before start() of {}", quote(name), s.file.name());
  const auto it = s.items.find(std::string(name));
  check(it != s.items.end(), "tensor {} is written to {} but was not added", quote(name), s.file.name());
  State::Item& item = it->second;
  check(!item.written, "tensor {} is written twice to {}", quote(name), s.file.name());
  check(tensor.dtype() == item.dtype && tensor.shape() == item.shape,
        "tensor {} is {} {}, but was added to {} as {} {}", quote(name), to_string(tensor.dtype()),
        to_string(tensor.shape()), s.file.name(), to_string(item.dtype), to_string(item.shape));
  s.file.write_at(item.offset, tensor.data(), item.bytes);
  item.written = true;
}

void SafetensorsWriter::finish() {
  State& s = *state_;
  check(s.started, "finish() of {} is called before start()", s.file.name());
  for (const auto& [name, item] : s.items)
    check(item.written || item.bytes == 0, "tensor {} of {} was added but never written", quote(name), s.file.name());
  s.file.commit();
}

void SafetensorsWriter::write_all(const std::vector<std::pair<std::string, Tensor>>& tensors,
                                  const std::function<void(const Progress&)>& progress) {
  for (const auto& [name, tensor] : tensors) add(name, tensor.dtype(), tensor.shape());
  start();
  int64_t done = 0, total = 0;
  for (const auto& [name, tensor] : tensors) total += tensor.bytes();
  const auto tell = [&] {
    if (progress) progress({"writing", done, total, "B"});
  };
  std::vector<const std::pair<std::string, Tensor>*> order;
  for (const auto& named : tensors) order.push_back(&named);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return lies_before(a->second.dtype(), a->first, b->second.dtype(), b->first);
  });
  for (const auto* named : order) {
    tell();
    write(named->first, named->second);
    done += named->second.bytes();
  }
  tell();
  finish();
}

}  // namespace sluice::io
