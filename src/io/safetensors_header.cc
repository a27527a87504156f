// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/math.h"
#include "io/json.h"
#include "io/quote.h"

namespace sluice::io {

namespace {
constexpr std::array<FileDType, 22> kFileDTypes{{{"F32", 32, DType::f32},
                                                 {"F16", 16, DType::f16},
                                                 {"BF16", 16, DType::bf16},
                                                 {"F8_E4M3", 8, DType::e4m3},
                                                 {"F8_E8M0", 8, DType::e8m0},
                                                 {"U8", 8, DType::u8},
                                                 {"I8", 8, DType::i8},
                                                 {"I16", 16, DType::i16},
                                                 {"I32", 32, DType::i32},
                                                 {"I64", 64, DType::i64},
                                                 {"BOOL", 8, DType::boolean},
                                                 {"F64", 64, DType::f64},
                                                 {"F4", 4, {}},
                                                 {"F6_E2M3", 6, {}},
                                                 {"F6_E3M2", 6, {}},
                                                 {"F8_E5M2", 8, {}},
                                                 {"F8_E4M3FNUZ", 8, {}},
                                                 {"F8_E5M2FNUZ", 8, {}},
                                                 {"U16", 16, {}},
                                                 {"U32", 32, {}},
                                                 {"U64", 64, {}},
                                                 {"C64", 64, {}}}};

// check_file() would build the sentence's arguments for each of a million sound tensors.
template <class... Args>
[[noreturn]] void bad(fmt::format_string<Args...> text, Args&&... args) {
  fail(ErrorCode::bad_file, text, std::forward<Args>(args)...);
}

std::string known_dtypes() {
  std::string names;
  for (const FileDType& d : kFileDTypes) names.append(names.empty() ? "" : ", ").append(d.name);
  return names;
}

// Collects {"__metadata__": {string: string}, name: {"dtype":, "shape":, "data_offsets":}, ...} and refuses the rest.
class HeaderReader final : public JsonEvents {
 public:
  explicit HeaderReader(std::string_view source) : source_(source) {}

  void null() override { refuse("null"); }
  void boolean(bool value) override { refuse(value ? "true" : "false"); }
  void real(double value) override { refuse("the number " + number_text(value)); }

  void integer(int64_t value) override {
    if (state_ == State::shape_items && value >= 0) {
      entry_.shape.push_back(value);
    } else if (state_ == State::offset_items && value >= 0) {
      if (offsets_ >= 2) bad("{}: tensor {} has more than two data_offsets", source_, quote(entry_.name));
      (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
    } else {
      refuse(fmt::format("the number {}", value));
    }
  }

  void string(std::string& value) override {
    if (state_ == State::metadata_value) {
      const bool fresh = header_.metadata.emplace(std::move(metadata_key_), std::move(value)).second;
      if (!fresh) bad("{}: __metadata__ has a key twice", source_);
      state_ = State::metadata;
    } else if (state_ == State::dtype) {
      entry_.dtype = find_file_dtype(value);
      if (entry_.dtype == nullptr)
        bad("{}: tensor {} has the unknown dtype {}; known: {}", source_, quote(entry_.name), quote(value),
            known_dtypes());
      state_ = State::tensor;
    } else {
      refuse("the string " + quote(value));
    }
  }

  void key(std::string& value) override {
    if (state_ == State::metadata) {
      metadata_key_ = std::move(value);
      state_ = State::metadata_value;
    } else if (state_ == State::top) {
      begin_member(value);
    } else {  // State::tensor: nothing else is an open object
      begin_field(value);
    }
  }

  void begin_object() override {
    if (state_ == State::start) {
      state_ = State::top;
    } else if (state_ == State::metadata_start) {
      state_ = State::metadata;
    } else if (state_ == State::tensor_start) {
      state_ = State::tensor;
    } else {
      refuse("an object");
    }
  }

  void end_object() override {
    if (state_ == State::tensor) {
      for (const auto& [field, name] : kFields)
        if ((seen_ & field) == 0) bad("{}: tensor {} has no {}", source_, quote(entry_.name), name);
      header_.entries.push_back(std::move(entry_));
    }
    state_ = state_ == State::top ? State::end : State::top;
  }

  void begin_array() override {
    if (state_ == State::shape) {
      state_ = State::shape_items;
    } else if (state_ == State::offsets) {
      state_ = State::offset_items;
    } else {
      refuse("an array");
    }
  }

  void end_array() override {
    if (state_ == State::offset_items)
      if (offsets_ != 2)
        bad("{}: tensor {} has {} data_offsets; it must have two", source_, quote(entry_.name), offsets_);
    state_ = State::tensor;
  }

  SafetensorsHeader take() { return std::move(header_); }

 private:
  enum class State {
    start,
    top,
    end,
    metadata_start,
    metadata,
    metadata_value,  // the frame
    tensor_start,
    tensor,
    dtype,
    shape,
    shape_items,
    offsets,
    offset_items,
  };
  enum Field : unsigned { kDType = 1, kShape = 2, kOffsets = 4 };
  static constexpr std::array<std::pair<Field, std::string_view>, 3> kFields{
      {{kDType, "dtype"}, {kShape, "shape"}, {kOffsets, "data_offsets"}}};

  void begin_member(std::string& name) {
    if (name == "__metadata__") {
      if (seen_metadata_) bad("{} has __metadata__ twice", source_);
      seen_metadata_ = true;
      state_ = State::metadata_start;
      return;
    }
    if (name.empty()) bad("{} has a tensor with an empty name", source_);
    if (name.find('\0') != name.npos) bad("{}: the tensor name {} holds a NUL byte", source_, quote(name));
    entry_ = {};
    entry_.name = std::move(name);
    seen_ = 0;
    offsets_ = 0;
    state_ = State::tensor_start;
  }

  void begin_field(std::string_view name) {
    for (const auto& [field, field_name] : kFields) {
      if (name != field_name) continue;
      if ((seen_ & field) != 0) bad("{}: tensor {} has {} twice", source_, quote(entry_.name), name);
      seen_ |= field;
      state_ = field == kDType ? State::dtype : field == kShape ? State::shape : State::offsets;
      return;
    }
    bad("{}: tensor {} has the unknown field {}; known: dtype, shape, data_offsets", source_, quote(entry_.name),
        quote(name));
  }

  [[noreturn]] void refuse(const std::string& value) const {
    std::string where = "tensor " + quote(entry_.name), wanted;
    switch (state_) {
      case State::start:
      case State::top:
      case State::end:
      case State::tensor:
      case State::metadata:
        where = "the header";
        wanted = "an object";
        break;
      case State::metadata_start:
        where = "__metadata__";
        wanted = "an object of strings";
        break;
      case State::metadata_value:
        where = "__metadata__ " + quote(metadata_key_);
        wanted = "a string";
        break;
      case State::tensor_start:
        wanted = "an object with dtype, shape and data_offsets";
        break;
      case State::dtype:
        where += " dtype";
        wanted = "a string";
        break;
      case State::shape:
      case State::shape_items:
        where += " shape";
        wanted = "an array of integers from 0 to 2^63 - 1";
        break;
      case State::offsets:
      case State::offset_items:
        where += " data_offsets";
        wanted = "an array of two integers from 0 to 2^63 - 1";
        break;
    }
    bad("{}: {} holds {}; it must be {}", source_, where, value, wanted);
  }

  std::string_view source_;
  SafetensorsHeader header_;
  State state_ = State::start;
  bool seen_metadata_ = false;
  std::string metadata_key_;
  SafetensorsEntry entry_;
  unsigned seen_ = 0;  // fields of entry_
  int offsets_ = 0;
};

// NumPy takes no more either. A shape that is written into a sentence is then never long.
constexpr size_t kMostDimensions = 64;

void check_sizes(const SafetensorsEntry& e, std::string_view source) {
  const auto name = [&] { return quote(e.name); };
  if (e.shape.size() > kMostDimensions)
    bad("{}: tensor {} has {} dimensions; accepted: at most {}", source, name(), e.shape.size(), kMostDimensions);
  if (e.begin > e.end)
    bad("{}: tensor {} has data_offsets [{}, {}]; the end must not lie before the begin", source, name(), e.begin,
        e.end);
  std::optional<int64_t> bits = 1;
  for (const int64_t d : e.shape) bits = bits ? checked_mul(*bits, d) : bits;
  if (bits) bits = checked_mul(*bits, e.dtype->bits);
  // 64 dimensions of 19 digits make no readable sentence.
  const auto shape = [&] { return printable(to_string(e.shape)); };
  if (!bits.has_value()) bad("{}: tensor {} of {} {} is larger than 2^63 bits", source, name(), e.dtype->name, shape());
  if (*bits % 8 != 0) bad("{}: tensor {} of {} {} does not fill whole bytes", source, name(), e.dtype->name, shape());
  if (*bits / 8 != e.end - e.begin)
    bad("{}: tensor {} of {} {} needs {} bytes, but its data_offsets [{}, {}] hold {}", source, name(), e.dtype->name,
        shape(), *bits / 8, e.begin, e.end, e.end - e.begin);
}

void check_cover(const SafetensorsHeader& header, int64_t data_bytes, std::string_view source) {
  int64_t at = 0;
  for (const SafetensorsEntry& e : header.entries) {
    if (e.begin < at)
      bad("{}: tensor {} begins at byte {} inside another tensor, which ends at {}", source, quote(e.name), e.begin,
          at);
    if (e.begin != at)
      bad("{}: tensor {} begins at byte {}, which leaves a hole after byte {}", source, quote(e.name), e.begin, at);
    if (e.end > data_bytes)
      bad("{}: tensor {} ends at byte {} of the data, but the file holds only {}: it is cut short", source,
          quote(e.name), e.end, data_bytes);
    at = e.end;
  }
  if (at != data_bytes) bad("{} has {} bytes after the last tensor; there must be none", source, data_bytes - at);
}
}  // namespace

const FileDType* find_file_dtype(std::string_view name) {
  for (const FileDType& d : kFileDTypes)
    if (d.name == name) return &d;
  return nullptr;
}

const FileDType& file_dtype_of(DType dtype) {
  return *std::find_if(kFileDTypes.begin(), kFileDTypes.end(), [&](const FileDType& d) { return d.dtype == dtype; });
}

SafetensorsHeader parse_safetensors_header(std::string_view file, std::string_view source) {
  if (file.size() < 8) bad("{} has {} bytes; a safetensors file has at least 8", source, file.size());
  uint64_t length = 0;  // little-endian, as is x86-64
  std::memcpy(&length, file.data(), sizeof length);
  if (length > kMaxSafetensorsHeader)
    bad("{} claims a header of {} bytes; at most {} are accepted", source, length, kMaxSafetensorsHeader);
  if (length > file.size() - 8)
    bad("{} claims a header of {} bytes, but the file ends after {}", source, length, file.size() - 8);
  const std::string_view json = file.substr(8, length);
  if (!json.starts_with('{')) bad("{} has a header that does not begin with \"{{\"", source);

  HeaderReader reader(source);
  parse_json(json, std::string(source) + " (header)", reader);
  SafetensorsHeader header = reader.take();
  header.data_offset = 8 + static_cast<int64_t>(length);

  std::unordered_set<std::string_view> names;
  names.reserve(header.entries.size());
  for (const SafetensorsEntry& e : header.entries) {
    if (!names.insert(e.name).second) bad("{} has the tensor {} twice", source, quote(e.name));
    check_sizes(e, source);
  }
  // Tensors without elements share their begin with the next one; the name makes the order one and the same.
  std::sort(header.entries.begin(), header.entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_cover(header, static_cast<int64_t>(file.size()) - header.data_offset, source);
  return header;
}

}  // namespace sluice::io
