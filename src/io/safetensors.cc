// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <cstring>
#include <unordered_map>

#include "base/error.h"
#include "io/quote.h"

namespace sluice::io {

struct SafetensorsFile::Impl {
  std::shared_ptr<const MappedFile> file;
  SafetensorsHeader header;
  std::unordered_map<std::string_view, const SafetensorsEntry*> by_name;
};

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  auto impl = std::make_shared<Impl>();
  impl->file = std::make_shared<const MappedFile>(path);
  const MappedFile& file = *impl->file;
  impl->header = parse_safetensors_header(
      {reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size())}, file.name());
  impl->by_name.reserve(impl->header.entries.size());
  for (const SafetensorsEntry& e : impl->header.entries) impl->by_name.emplace(e.name, &e);
  SafetensorsFile out;
  out.impl_ = std::move(impl);
  return out;
}

const std::string& SafetensorsFile::name() const { return impl_->file->name(); }
const std::vector<SafetensorsEntry>& SafetensorsFile::entries() const { return impl_->header.entries; }
const std::map<std::string, std::string>& SafetensorsFile::metadata() const { return impl_->header.metadata; }
const std::shared_ptr<const MappedFile>& SafetensorsFile::mapping() const { return impl_->file; }
bool SafetensorsFile::contains(std::string_view name) const { return find(name) != nullptr; }

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> out;
  out.reserve(entries().size());
  for (const SafetensorsEntry& e : entries()) out.push_back(e.name);
  return out;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto it = impl_->by_name.find(name);
  return it == impl_->by_name.end() ? nullptr : it->second;
}

Tensor SafetensorsFile::tensor(std::string_view tensor_name) const {
  const SafetensorsEntry* e = find(tensor_name);
  if (e == nullptr) fail(ErrorCode::not_found, "{} has no tensor {}", name(), quote(tensor_name));
  if (!e->dtype->dtype)
    fail(ErrorCode::unsupported, "{}: tensor {} has the dtype {}, which cannot be read", name(), quote(e->name),
         e->dtype->name);
  impl_->file->check_not_cut();
  const DType dtype = *e->dtype->dtype;
  const std::byte* data = impl_->file->data() + impl_->header.data_offset + e->begin;
  // The format does not promise alignment: only the writers in use pad the header and sort by element size.
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes_of(dtype)) == 0)
    return {dtype, e->shape, data, impl_->file};
  Tensor copy(dtype, e->shape);
  std::memcpy(copy.data(), data, static_cast<size_t>(copy.bytes()));
  return copy;
}

}  // namespace sluice::io
