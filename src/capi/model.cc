// SPDX-License-Identifier: Apache-2.0
// Whole models: load, encode, decode, generate, and one sequence step by step.
#include "capi/model.h"

#include <array>
#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "base/math.h"
#include "base/named.h"
#include "capi/context.h"
#include "capi/status.h"
#include "model/generate.h"
#include "model/models.h"
#include "text/detokenizer.h"

namespace sluice::capi {

namespace {
std::optional<DType> kv_dtype_of(std::string_view name, DType dtype) {
  if (name == "auto") return std::nullopt;
  if (name == "fp8_e4m3") return DType::e4m3;
  check(name == "bfloat16" && dtype == DType::bf16,
        "options.kv_cache_dtype is \"{}\"; accepted: auto, fp8_e4m3, and bfloat16 with dtype bfloat16", name);
  return DType::bf16;
}

bool is_dummy(std::string_view load_format) {
  check(load_format == "auto" || load_format == "dummy", "options.load_format is \"{}\"; accepted: auto, dummy",
        load_format);
  return load_format == "dummy";
}
}  // namespace

model::LoadOptions read_load_options(const char* folder, const sluice_model_options* given) {
  model::LoadOptions options;
  options.path = &required(folder, "folder");
  if (given == nullptr) return options;
  const auto o = read_struct(given, "options", offsetof(sluice_model_options, deterministic));
  if (o.dtype != nullptr) {
    constexpr std::array<Named<DType>, 2> kAccepted{{{DType::bf16, "bfloat16"}, {DType::f32, "float32"}}};
    options.dtype = parse_name(kAccepted, "options.dtype", o.dtype);
  }
  if (o.quantization != nullptr) options.quantization = o.quantization;
  if (o.moe_backend != nullptr) options.moe_backend = o.moe_backend;
  options.nvfp4_per_token = o.nvfp4_per_token_activation != 0;
  options.fp8_block_trtllm = o.fp8_block_trtllm != 0;
  options.fp8_f32_sums = o.fp8_tensor_core_sums == 0;
  options.deterministic = o.deterministic != 0;
  if (o.quantization_rest != nullptr) options.quantization_rest = o.quantization_rest;
  if (o.quantization_head != nullptr) options.quantization_head = o.quantization_head;
  if (o.kv_cache_dtype != nullptr) options.kv_dtype = kv_dtype_of(o.kv_cache_dtype, options.dtype);
  if (o.load_format != nullptr) options.dummy = is_dummy(o.load_format);
  return options;
}

std::span<const int32_t> ids_of(const int32_t* ids, size_t count) {
  check(ids != nullptr || count == 0, "ids is NULL and count is {}", count);
  return {ids, count};
}

sluice_model_info info_of(const model::ModelInfo& i) {
  return {
      0, i.vocab, i.hidden, i.layers, i.max_positions, i.weight_bytes, i.has_draft ? 1 : 0, i.row_invariant ? 1 : 0};
}

void check_ids_out(const int32_t* ids, size_t capacity, const size_t* count) {
  check(ids != nullptr || capacity == 0, "ids is NULL and capacity is {}; capacity must be 0 to ask for the number",
        capacity);
  required(count, "count");
}

sluice_status copy_ids(std::span<const int32_t> found, int32_t* ids, size_t capacity, size_t* count) {
  check_ids_out(ids, capacity, count);
  *count = found.size();
  std::copy_n(found.begin(), std::min(found.size(), capacity), ids);
  if (found.size() <= capacity) return SLUICE_OK;
  return record(SLUICE_BUFFER_TOO_SMALL,
                fmt::format("the text has {} ids, the array {}", found.size(), capacity).c_str());
}

sluice_status encode(const text::Tokenizer& tokenizer, const char* text, size_t bytes, int32_t* ids, size_t capacity,
                     size_t* count) {
  check(text != nullptr || bytes == 0, "text is NULL and bytes is {}", bytes);
  check_ids_out(ids, capacity, count);
  return copy_ids(tokenizer.encode({text, bytes}), ids, capacity, count);
}

sluice_status decode(const text::Tokenizer& tokenizer, const int32_t* ids, size_t count, int skip_special_tokens,
                     char* buffer, size_t size, size_t* needed) {
  check_text_out(buffer, size);
  return copy_text(tokenizer.decode(ids_of(ids, count), skip_special_tokens != 0), buffer, size, needed);
}

}  // namespace sluice::capi

using namespace sluice;
using capi::check_struct_out;
using capi::guard;
using capi::ids_of;
using capi::read_struct;
using capi::required;
using capi::write_struct;

namespace {

struct LoadedModel {
  std::shared_ptr<capi::SharedContext> shared;
  std::unique_ptr<model::Model> model;
  text::Tokenizer tokenizer;
};

}  // namespace

struct sluice_model {
  std::shared_ptr<const LoadedModel> loaded;
};

struct sluice_session {
  static constexpr int64_t kBlockSize = 64;

  sluice_session(std::shared_ptr<const LoadedModel> from, int64_t tokens)
      : loaded(std::move(from)), max_tokens(tokens) {
    const int64_t longest = loaded->model->info().max_positions;
    check(tokens > 0 && tokens <= longest, "max_tokens is {}; the model allows 1 to {}", tokens, longest);
    model::RunnerConfig config;
    config.cache.block_size = kBlockSize;
    config.cache.blocks = ceil_div(tokens, kBlockSize);
    config.rows = tokens;
    config.sequence_tokens = tokens;
    blocks.resize(static_cast<size_t>(config.cache.blocks));
    std::iota(blocks.begin(), blocks.end(), 0);
    runner.emplace(loaded->shared->context(), *loaded->model, config);
  }

  void append(std::span<const int32_t> ids, float* logits) {
    const auto rows = static_cast<int64_t>(ids.size());
    check(!state_lost,
          "an earlier call failed inside the model and left the session's recurrent state undefined; call "
          "sluice_session_reset and append all tokens again");
    check(rows > 0, "count is 0; append at least one token");
    check(rows <= max_tokens - length, "{} tokens after {} are more than the session's max_tokens, {}", rows, length,
          max_tokens);
    loaded->shared->use([&](Context&) {
      runner->clear();
      runner->add({0, ids, length, blocks, logits != nullptr ? 1 : 0});
      // Recurrent states are updated in place, layer by layer, and a copy of them per token would cost more than the
      // token; so after a failure half-way only a sequence that begins anew, with cleared states, is right again. Pages
      // of keys and values beyond `length` are written again by the next call.
      state_lost = length > 0 && loaded->model->cache_shape().recurrent();
      runner->run();
      state_lost = false;
      if (logits != nullptr) runner->read_logits(0, 1, logits);
    });
    length += rows;
  }

  std::shared_ptr<const LoadedModel> loaded;
  int64_t max_tokens;
  int64_t length = 0;
  bool state_lost = false;
  std::optional<model::Runner> runner;
  std::vector<int32_t> blocks;
};

extern "C" {

sluice_status sluice_model_load(sluice_context* context, const char* folder, const sluice_model_options* given,
                                sluice_model** out) {
  return guard([&] {
    required(out, "out") = nullptr;
    const auto shared = required(context, "context").shared;  // a callback may destroy the context
    const model::LoadOptions options = capi::read_load_options(folder, given);
    text::Tokenizer tokenizer = model::load_tokenizer(options.path);
    std::unique_ptr<model::Model> model;
    shared->use([&](Context& ctx) { model = model::load_model(ctx, options); });
    auto made = std::make_unique<sluice_model>();
    made->loaded = std::make_shared<const LoadedModel>(LoadedModel{shared, std::move(model), std::move(tokenizer)});
    *out = made.release();
  });
}

void sluice_model_destroy(sluice_model* model) { delete model; }

sluice_status sluice_model_get_info(const sluice_model* model, sluice_model_info* out) {
  return guard([&] { write_struct(capi::info_of(required(model, "model").loaded->model->info()), out, "out"); });
}

sluice_status sluice_model_encode(const sluice_model* model, const char* text, size_t bytes, int32_t* ids,
                                  size_t capacity, size_t* count) {
  return guard(
      [&] { return capi::encode(required(model, "model").loaded->tokenizer, text, bytes, ids, capacity, count); });
}

sluice_status sluice_model_decode(const sluice_model* model, const int32_t* ids, size_t count, int skip_special_tokens,
                                  char* buffer, size_t size, size_t* needed) {
  return guard([&] {
    return capi::decode(required(model, "model").loaded->tokenizer, ids, count, skip_special_tokens, buffer, size,
                        needed);
  });
}

sluice_status sluice_model_generate(const sluice_model* model, const int32_t* ids, size_t count,
                                    const sluice_generate_options* given, sluice_token_fn on_token, void* user,
                                    sluice_generated* result) {
  return guard([&] {
    const auto kept = required(model, "model").loaded;  // on_token may destroy the model
    const LoadedModel& loaded = *kept;
    const auto o = read_struct(given, "options", offsetof(sluice_generate_options, speculative_fixed_steps));
    const auto prompt = ids_of(ids, count);
    if (result != nullptr) check_struct_out(result, "result");
    model::GenerateOptions options;
    options.max_new_tokens = o.max_new_tokens;
    options.sampling = {o.temperature, o.top_k, o.top_p == 0 ? 1.0 : o.top_p, o.seed};
    if (o.ignore_eos == 0) options.stop_tokens = loaded.model->info().stop_tokens;
    check(o.max_new_tokens > 0, "options.max_new_tokens is {}; it must be positive", o.max_new_tokens);
    const int64_t longest = loaded.model->info().max_positions, length = static_cast<int64_t>(count);
    check(count < static_cast<size_t>(longest),
          "ids has {} tokens; the model's longest sequence is {}, and leaves no room for an answer", count, longest);
    check(o.max_new_tokens <= longest - length,
          "options.max_new_tokens is {}; accepted: at most {}, what {} ids leave of the model's longest sequence, {}",
          o.max_new_tokens, longest - length, count, longest);

    text::Detokenizer detokenizer(loaded.tokenizer, true);
    model::Generated made;
    loaded.shared->use([&](Context& ctx) {
      model::Generator generator(ctx, *loaded.model,
                                 {.max_tokens = length + o.max_new_tokens,
                                  .speculative_steps = o.speculative_steps,
                                  .adaptive_drafts = o.speculative_fixed_steps == 0});
      made = generator.run(prompt, options, [&](int32_t id) {
        return on_token == nullptr || on_token(user, id, detokenizer.push(id).c_str()) == 0;
      });
    });
    if (result == nullptr) return;
    write_struct(
        {0, static_cast<int64_t>(made.ids.size()), made.reason == model::FinishReason::stop,
         made.reason == model::FinishReason::cancelled, made.prefill_seconds, made.decode_seconds, made.accept_rate()},
        result, "result");
  });
}

sluice_status sluice_session_create(const sluice_model* model, int64_t max_tokens, sluice_session** out) {
  return guard([&] {
    required(out, "out") = nullptr;
    *out = new sluice_session(required(model, "model").loaded, max_tokens);
  });
}

void sluice_session_destroy(sluice_session* session) { delete session; }

sluice_status sluice_session_append(sluice_session* session, const int32_t* ids, size_t count, float* logits) {
  return guard([&] { required(session, "session").append(ids_of(ids, count), logits); });
}

int64_t sluice_session_length(const sluice_session* session) { return session == nullptr ? 0 : session->length; }

void sluice_session_reset(sluice_session* session) {
  if (session == nullptr) return;
  session->length = 0;
  session->state_lost = false;
}
}
