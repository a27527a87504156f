// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "io/file.h"
#include "io/quote.h"
#include "io/safetensors_index.h"

namespace sluice::io {

namespace {
constexpr int64_t kMaxIndexBytes = int64_t{256} << 20;  // 1.3 million tensors take 150 MB

std::optional<Config> load_if_present(const std::filesystem::path& path) {
  return is_present(path) ? std::optional<Config>(Config::load(path)) : std::nullopt;
}

[[noreturn]] void fail_without_weights(const std::filesystem::path& folder) {
  const std::string name = printable(folder.native(), 4096);
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator(folder, ignored)) {
    const std::filesystem::path extension = file.path().extension();
    if (extension == ".bin" || extension == ".gguf" || extension == ".pth" || extension == ".pt")
      fail(ErrorCode::not_found,
           "{} holds {}, but no model.safetensors or model.safetensors.index.json; only safetensors are read", name,
           printable(file.path().filename().native()));
  }
  fail(ErrorCode::not_found, "{} holds no model.safetensors and no model.safetensors.index.json", name);
}

void check_folder(const std::filesystem::path& folder) {
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return;
  if (folder.empty()) fail(ErrorCode::not_found, "the name of the model's folder is empty");
  const std::string name = printable(folder.native(), 4096);
  if (is_present(folder))
    fail(ErrorCode::bad_file, "{} is a file; a model is a folder with config.json and safetensors", name);
  fail(ErrorCode::not_found, "{} does not exist; a model is a folder with config.json and safetensors", name);
}
}  // namespace

struct Checkpoint::Impl {
  struct Place {
    const SafetensorsEntry* entry;
    const SafetensorsFile* file;  // nullptr: in memory
    const Tensor* tensor = nullptr;
  };
  std::filesystem::path folder;
  Config config;
  std::optional<Config> generation, quant;
  std::vector<SafetensorsFile> files;
  std::vector<std::pair<SafetensorsEntry, Tensor>> in_memory;
  std::map<std::string, Tensor> updates;  // of updated() and extended(); in in_memory too
  std::unordered_map<std::string_view, Place> by_name;
  int64_t bytes = 0;

  Impl(const std::filesystem::path& dir)
      : folder(dir),
        config(Config::load(dir / "config.json")),
        generation(load_if_present(dir / "generation_config.json")),
        quant(load_if_present(dir / "hf_quant_config.json")) {}

  Impl(const Impl& configs, const std::vector<std::pair<std::string, Tensor>>& tensors)
      : folder(configs.folder), config(configs.config), generation(configs.generation), quant(configs.quant) {
    in_memory.reserve(tensors.size());  // by_name points into it
    for (const auto& [name, tensor] : tensors) {
      const auto& [entry, kept] = in_memory.emplace_back(
          SafetensorsEntry{name, &file_dtype_of(tensor.dtype()), tensor.shape(), bytes, bytes + tensor.bytes()},
          tensor);
      by_name[entry.name] = {&entry, nullptr, &kept};
      bytes = entry.end;
    }
  }

  // The files of `base` with `tensors` besides, which take the places of those of the same names.
  Impl(const Impl& base, std::map<std::string, Tensor> tensors)
      : folder(base.folder),
        config(base.config),
        generation(base.generation),
        quant(base.quant),
        files(base.files),
        updates(std::move(tensors)) {
    collect();
    in_memory.reserve(updates.size());  // by_name points into it
    for (const auto& [name, tensor] : updates) {
      const auto& [entry, kept] = in_memory.emplace_back(
          SafetensorsEntry{name, &file_dtype_of(tensor.dtype()), tensor.shape(), 0, tensor.bytes()}, tensor);
      const auto [it, fresh] = by_name.try_emplace(entry.name);
      if (!fresh) bytes -= it->second.entry->end - it->second.entry->begin;
      bytes += tensor.bytes();
      it->second = {&entry, nullptr, &kept};
    }
  }

  // Two shards that hold the same tensor are refused: which one would be meant?
  void collect() {
    size_t count = 0;
    for (const SafetensorsFile& file : files) count += file.entries().size();
    by_name.reserve(count);
    for (const SafetensorsFile& file : files) {
      for (const SafetensorsEntry& entry : file.entries()) {
        const auto [it, fresh] = by_name.try_emplace(entry.name, Place{&entry, &file});
        if (!fresh)
          fail(ErrorCode::bad_file, "{} and {} both hold tensor {}", it->second.file->name(), file.name(),
               quote(entry.name));
        bytes += entry.end - entry.begin;
      }
    }
  }

  void open_shards(const std::filesystem::path& index_path) {
    const std::string source = printable(index_path.native(), 4096);
    const SafetensorsIndex index = parse_safetensors_index(read_file(index_path, kMaxIndexBytes), source);
    for (const std::string& shard : index.shards) {
      if (!is_present(folder / shard))
        fail(ErrorCode::not_found, "{} does not exist, but {} names it", printable((folder / shard).native(), 4096),
             source);
      files.push_back(SafetensorsFile::open(folder / shard));
    }
    collect();
    for (const auto& [name, shard] : index.tensors) {
      if (!files[shard].contains(name))
        fail(ErrorCode::bad_file, "{} holds no tensor {}, but {} places it there", files[shard].name(), quote(name),
             source);
    }
    if (index.tensors.size() == by_name.size()) return;
    std::unordered_map<std::string_view, size_t> listed(index.tensors.begin(), index.tensors.end());
    for (const auto& [name, place] : by_name)
      if (!listed.contains(name))
        fail(ErrorCode::bad_file, "{} holds tensor {}, which {} does not list", place.file->name(), quote(name),
             source);
  }
};

Checkpoint Checkpoint::open(const std::filesystem::path& folder) {
  check_folder(folder);
  auto impl = std::make_shared<Impl>(folder);
  if (is_present(folder / "model.safetensors")) {
    impl->files.push_back(SafetensorsFile::open(folder / "model.safetensors"));
    impl->collect();
  } else if (is_present(folder / "model.safetensors.index.json")) {
    impl->open_shards(folder / "model.safetensors.index.json");
  } else {
    fail_without_weights(folder);
  }
  Checkpoint out;
  out.impl_ = std::move(impl);
  return out;
}

Checkpoint Checkpoint::open_configs(const std::filesystem::path& folder) {
  check_folder(folder);
  Checkpoint out;
  out.impl_ = std::make_shared<Impl>(folder);
  return out;
}

Checkpoint Checkpoint::with_tensors(const std::vector<std::pair<std::string, Tensor>>& tensors) const {
  Checkpoint out;
  out.impl_ = std::make_shared<Impl>(*impl_, tensors);
  return out;
}

Checkpoint Checkpoint::updated(const std::vector<std::pair<std::string, Tensor>>& tensors) const {
  for (const auto& [name, tensor] : tensors) {
    const SafetensorsEntry* entry = impl_->files.empty() ? nullptr : find(name);
    check(entry != nullptr, "{} has no tensor {}", printable(impl_->folder.native(), 4096), quote(name));
    check(entry->dtype->dtype == tensor.dtype(), "tensor {} is {}; accepted: {}, as the checkpoint has it", quote(name),
          to_string(tensor.dtype()), entry->dtype->dtype ? to_string(*entry->dtype->dtype) : entry->dtype->name);
    check(entry->shape == tensor.shape(), "tensor {} has the shape {}; accepted: {}, as the checkpoint has it",
          quote(name), to_string(tensor.shape()), to_string(entry->shape));
  }
  return extended(tensors);
}

Checkpoint Checkpoint::extended(const std::vector<std::pair<std::string, Tensor>>& tensors) const {
  std::map<std::string, Tensor> all = impl_->updates;
  std::set<std::string_view> given;
  for (const auto& [name, tensor] : tensors) {
    check(given.insert(name).second, "tensor {} is given twice", quote(name));
    all.insert_or_assign(name, tensor);
  }
  Checkpoint out;
  out.impl_ = std::make_shared<Impl>(*impl_, std::move(all));
  return out;
}

std::vector<std::string> Checkpoint::updated_names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : impl_->updates) names.push_back(name);
  return names;
}

Checkpoint Checkpoint::without_updates() const {
  if (impl_->updates.empty()) return *this;
  Checkpoint out;
  out.impl_ = std::make_shared<Impl>(*impl_, std::map<std::string, Tensor>());
  return out;
}

Checkpoint Checkpoint::with_updates_of(const AskedNames& asked) const {
  std::map<std::string, Tensor> kept = impl_->updates;
  std::erase_if(kept, [&](const auto& update) { return !asked.contains(update.first); });
  Checkpoint out;
  out.impl_ = std::make_shared<Impl>(*impl_, std::move(kept));
  return out;
}

Checkpoint Checkpoint::noting(std::shared_ptr<AskedNames> asked) const {
  Checkpoint out = *this;
  out.asked_ = std::move(asked);
  return out;
}

void Checkpoint::note(std::string_view name) const {
  if (asked_) asked_->add(name);
}

void Checkpoint::forget(const void* memory, int64_t bytes) const {
  for (const SafetensorsFile& file : impl_->files)
    if (file.mapping()->holds(memory)) return file.mapping()->forget(memory, bytes);
}

void Checkpoint::check_unchanged() const {
  for (const SafetensorsFile& file : impl_->files) file.mapping()->check_unchanged();
}

const std::filesystem::path& Checkpoint::folder() const { return impl_->folder; }
const Config& Checkpoint::config() const { return impl_->config; }
const std::optional<Config>& Checkpoint::generation_config() const { return impl_->generation; }
const std::optional<Config>& Checkpoint::quant_config() const { return impl_->quant; }
int64_t Checkpoint::bytes() const { return impl_->bytes; }

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> out;
  out.reserve(impl_->by_name.size());
  for (const auto& [name, place] : impl_->by_name) out.emplace_back(name);
  std::sort(out.begin(), out.end());
  return out;
}

bool Checkpoint::contains(std::string_view name) const {
  note(name);
  return impl_->by_name.contains(name);
}

const SafetensorsEntry* Checkpoint::find(std::string_view name) const {
  note(name);
  const auto it = impl_->by_name.find(name);
  return it == impl_->by_name.end() ? nullptr : it->second.entry;
}

Tensor Checkpoint::tensor(std::string_view name) const {
  note(name);
  const auto it = impl_->by_name.find(name);
  if (it == impl_->by_name.end())
    fail(ErrorCode::not_found, "{} has no tensor {}", printable(impl_->folder.native(), 4096), quote(name));
  return it->second.file == nullptr ? *it->second.tensor : it->second.file->tensor(name);
}

std::string Checkpoint::source_of(std::string_view name) const {
  const auto it = impl_->by_name.find(name);
  if (it == impl_->by_name.end()) return printable(impl_->folder.native(), 4096);
  const SafetensorsFile* file = it->second.file;
  return (file == nullptr ? printable(impl_->folder.native(), 4096) : file->name()) + ": tensor " + quote(name);
}

}  // namespace sluice::io
