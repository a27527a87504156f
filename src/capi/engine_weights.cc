// SPDX-License-Identifier: Apache-2.0
// What a trainer calls of an engine: pauses, other weights, memory given back for a while.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "capi/engine.h"
#include "capi/status.h"
#include "io/quote.h"
#include "io/tensor_values.h"

using namespace sluice;
using capi::check_struct_out;
using capi::guard;
using capi::read_structs;
using capi::required;
using capi::Running;
using capi::write_struct;

// The tensors as they are when it is made: a later update changes the engine's, not these.
struct sluice_weights {
  io::Checkpoint checkpoint;
  std::vector<std::string> names;  // sorted

  const std::string& name(size_t index) const {
    check(index < names.size(), "index is {}; there are {} tensors", index, names.size());
    return names[index];
  }
  Tensor tensor(size_t index) const { return checkpoint.tensor(name(index)); }
  Tensor last;  // what sluice_weights_get() gave out last, which keeps alive a tensor that had to be copied
};

namespace {

constexpr size_t kMostDimensions = 8;

// Views of the caller's memory, of which nothing has been read yet.
engine::NamedTensors view_tensors(const sluice_tensor* given, size_t count) {
  check(count > 0, "count is 0; give at least one tensor");
  engine::NamedTensors out;
  for (const sluice_tensor& t : read_structs(given, count, "tensors", sizeof(sluice_tensor))) {
    const std::string name = &required(t.name, "tensor.name");
    const DType dtype =
        parse_name(kDTypes, fmt::format("the type of tensor {}", io::quote(name)), &required(t.dtype, "tensor.dtype"));
    check(t.rank <= kMostDimensions, "tensor {} has {} dimensions; accepted: at most {}", io::quote(name), t.rank,
          kMostDimensions);
    check(t.shape != nullptr || t.rank == 0, "tensor {} has {} dimensions, but shape is NULL", io::quote(name), t.rank);
    check(t.data != nullptr, "tensor {}: data is NULL", io::quote(name));
    out.emplace_back(name, Tensor(dtype, Shape(t.shape, t.shape + t.rank), t.data, nullptr));
  }
  return out;
}

// The tensors that run.
io::Checkpoint weights_of(const Running& r) {
  io::Checkpoint weights = r.live->weights();
  if (weights.bytes() == 0)
    fail(ErrorCode::unsupported, "the weights are dummies (load_format \"dummy\"), not those of a checkpoint");
  return weights;
}

engine::MemoryTags read_tags(sluice_memory memory) {
  constexpr sluice_memory kAll = SLUICE_MEMORY_WEIGHTS | SLUICE_MEMORY_KV_CACHE;
  check(memory > 0 && (memory & ~kAll) == 0,
        "memory is {}; accepted: SLUICE_MEMORY_WEIGHTS, SLUICE_MEMORY_KV_CACHE, or both with |", memory);
  return {.weights = (memory & SLUICE_MEMORY_WEIGHTS) != 0, .kv_cache = (memory & SLUICE_MEMORY_KV_CACHE) != 0};
}

}  // namespace

static_assert(static_cast<int>(engine::PauseMode::abort) == SLUICE_PAUSE_ABORT &&
              static_cast<int>(engine::PauseMode::retract) == SLUICE_PAUSE_RETRACT &&
              static_cast<int>(engine::PauseMode::in_place) == SLUICE_PAUSE_IN_PLACE);

extern "C" {

sluice_status sluice_engine_flush_cache(sluice_engine* engine) {
  return guard(
      [&] { required(engine, "engine").running->live->async().run([](engine::Engine& e) { e.flush_cache(); }); });
}

sluice_status sluice_engine_pause(sluice_engine* engine, sluice_pause mode) {
  return guard([&] {
    engine::LiveEngine& live = *required(engine, "engine").running->live;
    check(mode >= SLUICE_PAUSE_ABORT && mode <= SLUICE_PAUSE_IN_PLACE,
          "mode is {}; accepted: SLUICE_PAUSE_ABORT, _RETRACT, _IN_PLACE", mode);
    live.pause(static_cast<engine::PauseMode>(mode));
  });
}

sluice_status sluice_engine_continue(sluice_engine* engine) {
  return guard([&] { required(engine, "engine").running->live->resume(); });
}

sluice_status sluice_engine_update_weights(sluice_engine* engine, const char* folder) {
  return guard([&] {
    Running& r = *required(engine, "engine").running;
    model::LoadOptions options = r.options;
    options.path = &required(folder, "folder");
    options.dummy = false;
    r.live->reload([&] { return options; }, r.replacement(false));
  });
}

sluice_status sluice_engine_update_tensors(sluice_engine* engine, const sluice_tensor* tensors, size_t count,
                                           int abort) {
  return guard([&] {
    Running& r = *required(engine, "engine").running;
    engine::NamedTensors given = view_tensors(tensors, count);
    // Names, types and shapes before the first byte: a wrong shape would be read beyond its end. In an engine of dummy
    // weights the model's configuration says which are right.
    r.live->check_update(given);
    for (auto& [name, tensor] : given) tensor = tensor.clone();
    r.live->update(given, r.replacement(abort != 0));
  });
}

sluice_status sluice_engine_begin_update(sluice_engine* engine) {
  return guard([&] { required(engine, "engine").running->live->begin_update(); });
}

sluice_status sluice_engine_end_update(sluice_engine* engine, int abort) {
  return guard([&] {
    Running& r = *required(engine, "engine").running;
    r.live->end_update(r.replacement(abort != 0));
  });
}

sluice_status sluice_engine_sent_tensors(const sluice_engine* engine, int64_t* come, int64_t* total, char* missing,
                                         size_t size, size_t* needed) {
  return guard([&] {
    const engine::SentTensors sent = required(engine, "engine").running->live->sent().value_or(engine::SentTensors{});
    capi::check_text_out(missing, size);
    required(total, "total") = sent.needed;
    required(come, "come") = sent.come;
    return capi::copy_text(sent.missing, missing, size, needed);
  });
}

sluice_status sluice_engine_release_memory(sluice_engine* engine, sluice_memory memory) {
  return guard([&] { required(engine, "engine").running->live->release_memory(read_tags(memory)); });
}

sluice_status sluice_engine_resume_memory(sluice_engine* engine, sluice_memory memory) {
  return guard([&] { required(engine, "engine").running->live->resume_memory(read_tags(memory)); });
}

sluice_status sluice_engine_get_weights(const sluice_engine* engine, sluice_weights** out) {
  return guard([&] {
    required(out, "out") = nullptr;
    auto made = std::make_unique<sluice_weights>();
    made->checkpoint = weights_of(*required(engine, "engine").running);
    made->checkpoint.check_unchanged();
    made->names = made->checkpoint.names();
    *out = made.release();
  });
}

void sluice_weights_destroy(sluice_weights* weights) { delete weights; }

sluice_status sluice_weights_count(const sluice_weights* weights, size_t* out) {
  return guard([&] { required(out, "out") = required(weights, "weights").names.size(); });
}

sluice_status sluice_weights_find(const sluice_weights* weights, const char* name, size_t* index) {
  return guard([&] {
    const auto& names = required(weights, "weights").names;
    const auto at = std::lower_bound(names.begin(), names.end(), std::string_view(&required(name, "name")));
    if (at == names.end() || *at != name) fail(ErrorCode::not_found, "there is no tensor {}", io::quote(name));
    required(index, "index") = static_cast<size_t>(at - names.begin());
  });
}

sluice_status sluice_weights_get(sluice_weights* weights, size_t index, sluice_tensor* out) {
  return guard([&] {
    sluice_weights& w = required(weights, "weights");
    check_struct_out(out, "out");  // before what the last call gave out goes
    w.last = w.tensor(index);
    write_struct({0, w.name(index).c_str(), to_string(w.last.dtype()).data(), w.last.shape().data(),
                  w.last.shape().size(), w.last.data()},
                 out, "out");
  });
}

sluice_status sluice_weights_checksum(const sluice_weights* weights, size_t index, char* buffer, size_t size) {
  return guard([&] {
    capi::check_text_out(buffer, size);
    return capi::copy_text(io::checksum(required(weights, "weights").tensor(index)), buffer, size, nullptr);
  });
}

sluice_status sluice_weights_values(const sluice_weights* weights, size_t index, int64_t first, int64_t count,
                                    double* values) {
  return guard([&] {
    check(values != nullptr || count == 0, "values is NULL and count is {}", count);
    const Tensor t = required(weights, "weights").tensor(index);
    check(first >= 0 && count >= 0 && first <= t.elements() && count <= t.elements() - first,
          "first is {} and count {}; the tensor has {} elements", first, count, t.elements());
    for (int64_t i = 0; i < count; ++i) values[i] = io::value_at(t, first + i);
  });
}
}
