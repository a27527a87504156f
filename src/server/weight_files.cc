// SPDX-License-Identifier: Apache-2.0
#include "server/weight_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "io/file.h"
#include "io/quote.h"
#include "server/api_error.h"

namespace sluice::server {

namespace fs = std::filesystem;

std::string checked_path(const ServiceConfig& config, std::string_view field, const std::string& wanted,
                         const std::string& served) {
  if (wanted.empty()) refuse(field, fmt::format("{} is empty; accepted: a path", field));
  if (wanted == served) return served;
  std::error_code error;
  // A path ends at a NUL for the system, but not for what is compared and logged here.
  const bool whole = wanted.find('\0') == wanted.npos;
  const fs::path path = whole ? fs::canonical(wanted, error) : fs::path();
  if (whole && !error) {
    for (const std::string& folder : config.weight_folders) {
      const fs::path root = fs::canonical(folder, error);
      if (error) continue;
      const auto [end, ignored] = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
      if (end == root.end()) return path.string();
    }
    if (!served.empty() && path == fs::canonical(served, error) && !error) return served;
  }
  // The same sentence whether it exists or not: the answer must not tell which files there are.
  refuse(field, fmt::format("{} is {}; accepted: {}what lies below a weights folder of the server", field,
                            io::quote(wanted), served.empty() ? "" : "the served checkpoint, or "));
}

namespace {
constexpr size_t kMostTensors = size_t{1} << 20;

struct Given {
  std::string name, path;  // path: "tensors[3]", for sentences
  DType dtype;
  Shape shape;
  int64_t offset = 0;
};

// As torch, numpy and safetensors write it.
DType read_dtype(Fields& fields) {
  std::string name = fields.string("dtype").value_or("");
  if (name.starts_with("torch.")) name.erase(0, 6);
  for (const auto& known : kDTypes)
    if (name == known.name || name == io::file_dtype_of(known.value).name) return known.value;
  fields.refuse("dtype", fmt::format("is {}; accepted: bfloat16, float32, float16, uint8, float8_e4m3fn and the other "
                                     "types of the checkpoint",
                                     io::quote(name)));
}

Given read_one(const io::JsonValue& json, size_t index, UnknownFields& unknown) {
  Given out;
  out.path = fmt::format("tensors[{}]", index);
  if (json.as<io::JsonValue::Object>() == nullptr)
    refuse(out.path, fmt::format("{} is {}; accepted: an object with name, dtype, shape and offset", out.path,
                                 io::describe(json)));
  Fields fields(json, out.path + ".");
  const auto name = fields.string("name");
  if (!name) fields.refuse("name", "is missing; accepted: the tensor's name in the checkpoint");
  out.name = *name;
  out.dtype = read_dtype(fields);
  const io::JsonValue* shape = fields.find("shape");
  const auto* sizes = shape == nullptr ? nullptr : shape->as<io::JsonValue::Array>();
  if (sizes == nullptr || sizes->size() > 8) fields.refuse("shape", "is missing or no array of at most 8 sizes");
  for (const io::JsonValue& size : *sizes) {
    const auto* n = size.as<int64_t>();
    if (n == nullptr || *n < 0) fields.refuse("shape", fmt::format("holds {}; accepted: sizes", io::describe(size)));
    out.shape.push_back(*n);
  }
  const auto offset = fields.integer("offset", 0, std::numeric_limits<int64_t>::max());
  if (!offset) fields.refuse("offset", "is missing; accepted: the bytes before the tensor's first");
  out.offset = *offset;
  fields.finish(unknown);
  return out;
}

void check_against(const io::Checkpoint& checkpoint, const std::vector<Given>& all) {
  std::set<std::string_view> names;
  for (const Given& g : all) {
    const io::SafetensorsEntry* entry = checkpoint.find(g.name);
    if (entry == nullptr)
      refuse(g.path + ".name",
             fmt::format("{}.name is {}, which is no tensor of the served checkpoint", g.path, io::quote(g.name)));
    if (!names.insert(g.name).second)
      refuse(g.path + ".name", fmt::format("{}.name is {}, which came before", g.path, io::quote(g.name)));
    if (entry->dtype->dtype != g.dtype)
      refuse(g.path + ".dtype",
             fmt::format("{}.dtype is {}; accepted: {}, as the served checkpoint has {}{}", g.path, to_string(g.dtype),
                         entry->dtype->dtype ? to_string(*entry->dtype->dtype) : entry->dtype->name, io::quote(g.name),
                         g.dtype == DType::bf16 ? ": to send BF16 for quantised weights, serve the BF16 checkpoint and "
                                                  "let the server quantise it"
                                                : ""));
    if (entry->shape != g.shape)
      refuse(g.path + ".shape", fmt::format("{}.shape is {}; accepted: {}, as the served checkpoint has {}", g.path,
                                            to_string(g.shape), to_string(entry->shape), io::quote(g.name)));
  }
}

// Without memory.
engine::NamedTensors views_of(const std::vector<Given>& all) {
  engine::NamedTensors out;
  for (const Given& g : all) out.emplace_back(g.name, Tensor(g.dtype, g.shape, nullptr, nullptr));
  return out;
}

// Only names of the shared memory itself: no slash leads out of it.
io::FileHandle open_shared_memory(const std::string& wanted) {
  const std::string name = wanted.starts_with('/') ? wanted.substr(1) : wanted;
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  };
  if (name.empty() || name.size() > 255 || name.starts_with('.') || !std::all_of(name.begin(), name.end(), fits))
    refuse("shared_memory", fmt::format("shared_memory is {}; accepted: the name of a POSIX shared memory, of letters, "
                                        "digits and _-.",
                                        io::quote(wanted)));
  io::FileHandle file(::shm_open(("/" + name).c_str(), O_RDONLY | O_CLOEXEC, 0));
  struct stat status {};
  if (!file.is_open() || ::fstat(file.fd(), &status) != 0 || !S_ISREG(status.st_mode))
    refuse("shared_memory",
           fmt::format("shared_memory is {}, which cannot be opened: {}", io::quote(wanted), std::strerror(errno)));
  return file;
}

io::FileHandle open_source(Fields& fields, const ServiceConfig& config, std::string& field) {
  const auto memory = fields.string("shared_memory"), path = fields.string("file");
  if (memory.has_value() == path.has_value())
    fields.refuse("shared_memory", "and file: exactly one of them must be given");
  field = memory ? "shared_memory" : "file";
  if (memory) return open_shared_memory(*memory);
  try {
    return io::open_regular(checked_path(config, "file", *path, ""));
  } catch (const Error& error) {
    refuse("file", fmt::format("file: {}", error.what()));
  }
}

// Read, not mapped: a client that cuts its memory short meanwhile gets an error, not the server a SIGBUS.
void read_bytes(const io::FileHandle& file, const Given& given, Tensor& out) {
  auto* to = static_cast<std::byte*>(out.data());
  for (int64_t done = 0; done < out.bytes();) {
    const ssize_t n = ::pread(file.fd(), to + done, static_cast<size_t>(out.bytes() - done), given.offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      refuse(given.path, fmt::format("{} cannot be read: {}", given.path, n < 0 ? std::strerror(errno) : "cut short"));
    done += n;
  }
}
}  // namespace

engine::NamedTensors read_given_tensors(Fields& fields, const ServiceConfig& config, const EngineClient& engine,
                                        UnknownFields& unknown) {
  const io::JsonValue* value = fields.find("tensors");
  const auto* array = value == nullptr ? nullptr : value->as<io::JsonValue::Array>();
  if (array == nullptr || array->empty() || array->size() > kMostTensors)
    fields.refuse("tensors",
                  fmt::format("is {}; accepted: an array of 1 to {} objects with name, dtype, shape and offset",
                              value == nullptr ? "missing" : io::describe(*value), kMostTensors));
  std::vector<Given> all;
  for (size_t i = 0; i < array->size(); ++i) all.push_back(read_one((*array)[i], i, unknown));
  if (engine.sent())  // dummies: there is no checkpoint yet that says what is accepted
    engine.check_update(views_of(all));
  else
    check_against(engine.weights(), all);
  std::string field;
  const io::FileHandle file = open_source(fields, config, field);
  const int64_t size = io::size_of(file, field);
  for (const Given& g : all) {
    const int64_t bytes = elements_of(g.shape) * bytes_of(g.dtype);
    if (bytes > size || g.offset > size - bytes)
      refuse(g.path + ".offset", fmt::format("{}.offset is {}, and the tensor has {} bytes; {} has {}", g.path,
                                             g.offset, bytes, field, size));
  }
  engine::NamedTensors out;
  for (const Given& g : all) {
    Tensor tensor(g.dtype, g.shape);
    read_bytes(file, g, tensor);
    out.emplace_back(g.name, std::move(tensor));
  }
  return out;
}

}  // namespace sluice::server
