// SPDX-License-Identifier: Apache-2.0
// Configurations that are wrong in themselves or contradict the tensors (docs/robustness.md, M11): one sentence
// that names file, key and value; nothing crashes and nothing is divided by zero.
#include <cmath>
#include <functional>
#include <map>

#include "io/safetensors_writer.h"
#include "model/config.h"
#include "tests/io/expect_error.h"
#include "tests/io/temp_dir.h"
#include "tests/model/fixture.h"

namespace sluice::model {
namespace {

using nlohmann::json;

std::string fixture(const std::string& name) { return std::string(SLUICE_SOURCE_DIR) + "/tests/fixtures/" + name; }

// Loads the fixture's tensors under an edited config.json. Returns the warnings.
std::vector<std::string> load_edited(const std::string& name, const std::function<void(json&)>& edit) {
  const io::TempDir folder;
  json config = json::parse(io::slurp(fixture(name) + "/config.json"));
  edit(config);
  folder.put("config.json", config.dump());
  std::filesystem::create_symlink(fixture(name) + "/model.safetensors", folder / "model.safetensors");
  std::vector<std::string> warnings;
  Context ctx = test_context();
  ctx.log = [&](LogLevel level, std::string_view text) {
    if (level == LogLevel::warning) warnings.emplace_back(text);
  };
  LoadOptions o;
  o.path = folder.path();
  load_model(ctx, o);
  return warnings;
}

struct Wrong {
  const char* key;
  json value;  // null: the key is removed
  std::vector<std::string> words;
  ErrorCode code = ErrorCode::bad_file;
};

void expect_all(const std::string& name, const std::vector<Wrong>& cases) {
  for (const Wrong& w : cases) {
    SCOPED_TRACE(name + ": " + w.key + " = " + w.value.dump());
    std::vector<std::string> words = w.words;
    words.push_back("config.json");
    io::expect_error(w.code, words, [&] {
      load_edited(name, [&](json& c) {
        if (w.value.is_null())
          c.erase(w.key);
        else
          c[w.key] = w.value;
      });
    });
  }
}

TEST(Config, UneditedLoads) {
  for (const char* name : {"qwen3-moe", "nemotron-h", "deepseek-v3"})
    EXPECT_TRUE(load_edited(name, [](json&) {}).empty()) << name;
}

TEST(Config, Qwen3Moe) {
  const int64_t huge = int64_t{1} << 31;
  expect_all("qwen3-moe",
             {{"hidden_size", 0, {"hidden_size", "0"}},
              {"hidden_size", 57, {"hidden_size", "[331, 57]"}},
              {"hidden_size", "many", {"hidden_size"}},
              {"vocab_size", 330, {"vocab_size", "embed_tokens", "[331, 56]"}},
              {"vocab_size", huge, {"vocab_size", "2147483648"}},
              {"num_hidden_layers", 6, {"model.layers.5"}, ErrorCode::bad_file},
              {"num_hidden_layers", nullptr, {"num_hidden_layers"}},
              {"num_attention_heads", 5, {"num_key_value_heads", "must divide"}},
              {"num_attention_heads", 4, {"q_proj", "num_attention_heads * head_dim"}},
              {"num_key_value_heads", 0, {"num_key_value_heads", "0"}},
              {"num_key_value_heads", 3, {"k_proj", "num_key_value_heads"}},
              {"head_dim", 0, {"head_dim", "0"}},
              {"head_dim", 17, {"head_dim", "17", "even"}},
              {"num_local_experts", 0, {"num_local_experts", "0"}},
              {"num_local_experts", huge, {"num_local_experts", "2147483648"}},
              {"num_local_experts", 7, {"num_experts", "[6, 56]"}},
              {"num_local_experts", -1, {"num_local_experts", "-1"}},
              {"num_experts_per_tok", 7, {"num_experts_per_tok", "7", "num_experts = 6"}},
              {"num_experts_per_tok", 0, {"num_experts_per_tok", "0"}},
              {"moe_intermediate_size", 41, {"moe_intermediate_size", "[6, 80, 56]"}},
              {"intermediate_size", 103, {"intermediate_size", "[104, 56]"}},
              {"decoder_sparse_step", 0, {"decoder_sparse_step", "0"}},
              {"mlp_only_layers", {5}, {"mlp_only_layers", "5"}},
              {"rms_norm_eps", 0, {"rms_norm_eps", "0"}},
              {"rms_norm_eps", 1e300, {"rms_norm_eps"}},
              {"max_position_embeddings", 0, {"max_position_embeddings", "0"}},
              {"tie_word_embeddings", "yes", {"tie_word_embeddings"}},
              {"attention_bias", false, {"q_proj.bias", "no bias"}},
              {"rope_parameters", {{"rope_theta", 0}, {"rope_type", "default"}}, {"rope_theta", "0"}},
              {"rope_parameters", {{"rope_theta", 1e4}, {"rope_type", "spiral"}}, {"spiral"}, ErrorCode::unsupported},
              {"rope_parameters", {{"rope_theta", 1e4}, {"rope_type", "linear"}}, {"factor"}},
              {"rope_theta", 7.0, {"rope_theta", "7", "5000"}},
              {"hidden_act", "tanh", {"hidden_act", "tanh", "silu"}, ErrorCode::unsupported},
              {"use_sliding_window", true, {"use_sliding_window"}, ErrorCode::unsupported},
              {"architectures",
               {"LlamaForCausalLM"},
               {"LlamaForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM"},
               ErrorCode::unsupported},
              {"architectures", json::array(), {"architectures"}},
              {"eos_token_id", -5, {"eos_token_id", "-5"}}});
}

// generation_config.json, where it names the end of a text, hides what config.json says of it.
TEST(Config, EndTokensAreInTheVocabulary) {
  const auto load_with = [](const char* generation, int64_t configured) {
    const io::TempDir folder;
    json config = json::parse(io::slurp(fixture("qwen3-moe") + "/config.json"));
    config["eos_token_id"] = configured;
    folder.put("config.json", config.dump());
    folder.put("generation_config.json", generation);
    std::filesystem::create_symlink(fixture("qwen3-moe") + "/model.safetensors", folder / "model.safetensors");
    return load(folder.path(), DType::bf16)->info().stop_tokens;
  };
  EXPECT_EQ(load_with(R"({"eos_token_id": [330, 0]})", 999), (std::vector<int32_t>{330, 0}));
  EXPECT_EQ(load_with(R"({"eos_token_id": null})", 5), std::vector<int32_t>{5});
  io::expect_error(ErrorCode::bad_file, {"generation_config.json", "eos_token_id", "331", "vocab_size"},
                   [&] { load_with(R"({"eos_token_id": [5, 331]})", 5); });
  expect_all("qwen3-moe", {{"eos_token_id", 331, {"eos_token_id", "331", "vocab_size is 331"}},
                           {"eos_token_id", {7, 999999}, {"eos_token_id", "999999"}}});
}

// transformers 5 writes rope_parameters, published checkpoints have rope_scaling, and a file may have both.
TEST(Config, RopeParametersBesideRopeScaling) {
  const json yarn{{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
  const auto read = [](json c) {
    c["rope_theta"] = 5000.0;
    return read_rope(io::Config::parse(c.dump(), "config.json"), 16);
  };
  const ops::RopeConfig expected = read({{"rope_scaling", yarn}});
  EXPECT_EQ(expected.type, ops::RopeType::yarn);
  json typed = yarn;
  typed["rope_theta"] = 5000.0;
  const auto expect_same = [&](const ops::RopeConfig& rope) {
    const ops::RopeFrequencies a = ops::rope_frequencies(rope), b = ops::rope_frequencies(expected);
    EXPECT_EQ(a.inv_freq, b.inv_freq);
    EXPECT_EQ(a.attention_factor, b.attention_factor);
  };
  for (const json& c : {json{{"rope_parameters", {{"rope_theta", 5000.0}}}, {"rope_scaling", yarn}},
                        json{{"rope_parameters", typed}, {"rope_scaling", yarn}},
                        json{{"rope_parameters", typed}, {"rope_scaling", nullptr}},
                        json{{"rope_parameters", typed}, {"rope_scaling", {{"rope_theta", 5000.0}}}}})
    expect_same(read(c));

  json other = yarn;
  other["factor"] = 8.0;
  io::expect_error(ErrorCode::bad_file, {"rope_scaling", "rope_parameters", "agree"}, [&] {
    read({{"rope_parameters", typed}, {"rope_scaling", other}});
  });
  io::expect_error(ErrorCode::bad_file, {"rope_scaling", "(yarn)", "rope_parameters (default)"}, [&] {
    read({{"rope_parameters", {{"rope_type", "default"}}}, {"rope_scaling", yarn}});
  });
  io::expect_error(ErrorCode::bad_file, {"rope_scaling.rope_theta is 7", "rope_theta is 5000"}, [&] {
    read({{"rope_scaling", {{"rope_theta", 7.0}}}});
  });
  io::expect_error(ErrorCode::unsupported, {"rope_scaling.type is", "longrope", "yarn"}, [&] {
    read({{"rope_parameters", {{"rope_theta", 5000.0}}}, {"rope_scaling", {{"type", "longrope"}, {"factor", 4.0}}}});
  });
}

TEST(Config, NemotronH) {
  expect_all("nemotron-h",
             {{"layers_block_type", {"moe", "dance"}, {"dance", "linear_attention"}, ErrorCode::unsupported},
              {"hybrid_override_pattern", "MX", {"hybrid_override_pattern", "\"X\""}, ErrorCode::unsupported},
              {"layers_block_type", json::array(), {"layers_block_type"}},
              {"hybrid_override_pattern", "MM", {"hybrid_override_pattern", "different layers"}},
              {"num_hidden_layers", 9, {"num_hidden_layers", "9", "8 layers"}},
              {"mamba_num_heads", 0, {"mamba_num_heads", "0"}},
              {"mamba_num_heads", 5, {"in_proj"}},
              {"n_groups", 4, {"n_groups", "must divide"}},
              {"n_groups", 0, {"n_groups", "0"}},
              {"ssm_state_size", 25, {"in_proj"}},
              {"conv_kernel", 4, {"conv1d.weight", "conv_kernel"}},
              {"conv_kernel", 17, {"conv_kernel", "17"}},
              {"use_conv_bias", true, {"conv1d.bias", "missing"}},
              {"use_bias", false, {"in_proj.bias", "no bias"}},
              {"moe_latent_size", 41, {"experts.up_proj", "moe_latent_size"}},
              {"n_routed_experts", 0, {"n_routed_experts", "0"}},
              {"n_group", 3, {"n_group", "must divide"}},
              {"topk_group", 3, {"topk_group", "n_group = 2"}},
              {"num_experts_per_tok", 6, {"num_experts_per_tok", "6"}},
              {"routed_scaling_factor", 0, {"routed_scaling_factor"}},
              {"norm_topk_prob", false, {"norm_topk_prob"}, ErrorCode::unsupported},
              {"mlp_hidden_act", "gelu", {"mlp_hidden_act", "relu2"}, ErrorCode::unsupported},
              {"moe_shared_expert_intermediate_size", 49, {"shared_experts", "[50]"}}});
}

// The scan has no clamp of its time steps. The fixture's own limit is (0, infinity).
TEST(Config, LimitsOfTimeSteps) {
  expect_all("nemotron-h",
             {{"time_step_limit", {0.001, 0.1}, {"[0.001, 0.1]", "[0, Infinity]"}, ErrorCode::unsupported},
              {"time_step_limit", {0.0, 1e30}, {"[0, 1e+30]"}, ErrorCode::unsupported},
              {"time_step_limit", 0.0, {"time_step_limit", "2"}},
              {"time_step_limit", {0.0, "no"}, {"time_step_limit", "no", "a number"}},
              {"mamba_dt_limit", {0.0, 1.0}, {"mamba_dt_limit", "time_step_limit", "agree"}}});
  for (const char* limit : {"null", "[0, Infinity]", "[0.0, {\"__float__\": \"Infinity\"}]"}) {
    SCOPED_TRACE(limit);
    const io::TempDir folder;
    json config = json::parse(io::slurp(fixture("nemotron-h") + "/config.json"));
    config["time_step_limit"] = "LIMIT";  // JSON itself has no infinity
    config["time_step_floor"] = 0.5;      // of new weights alone
    std::string text = config.dump();
    text.replace(text.find("\"LIMIT\""), 7, limit);
    folder.put("config.json", text);
    std::filesystem::create_symlink(fixture("nemotron-h") + "/model.safetensors", folder / "model.safetensors");
    load(folder.path(), DType::bf16);
  }
}

TEST(Config, SharedExpertsThatTheConfigurationDenies) {
  for (const char* name : {"nemotron-h", "deepseek-v3"})
    expect_all(name, {{"n_shared_experts", 0, {"shared_experts.up_proj", "none", "n_shared_experts"}}});
}

TEST(Config, AHeadBesideATiedEmbedding) {
  for (const char* name : {"qwen3-moe", "nemotron-h", "deepseek-v3"})
    expect_all(name, {{"tie_word_embeddings", true, {"lm_head.weight", "is not that of", "accepted: false"}}});
}

TEST(Config, ARoutersBiasThatIsNotFinite) {
  for (const char* name : {"nemotron-h", "deepseek-v3"})
    for (const float bad : {NAN, INFINITY}) {
      const io::TempDir folder;
      folder.put("config.json", io::slurp(fixture(name) + "/config.json"));
      const io::Checkpoint checkpoint = io::Checkpoint::open(fixture(name));
      std::map<std::string, Tensor> tensors;
      for (const std::string& tensor : checkpoint.names()) {
        tensors[tensor] = checkpoint.tensor(tensor).clone();
        if (tensor.ends_with("e_score_correction_bias")) tensors[tensor].as<float>()[2] = bad;
      }
      io::SafetensorsWriter(folder / "model.safetensors").write_all({tensors.begin(), tensors.end()});
      LoadOptions o;
      o.path = folder.path();
      Context ctx = test_context();
      io::expect_error(ErrorCode::bad_file, {"e_score_correction_bias holds", "accepted: finite values"},
                       [&] { load_model(ctx, o); });
    }
}

TEST(Config, DeepseekV3) {
  expect_all("deepseek-v3", {{"num_key_value_heads", 1, {"num_key_value_heads", "1"}},
                             {"kv_lora_rank", 0, {"kv_lora_rank", "0"}},
                             {"kv_lora_rank", 37, {"kv_a_proj_with_mqa", "kv_lora_rank"}},
                             {"q_lora_rank", 16, {"q_a_proj"}},
                             {"qk_rope_head_dim", 13, {"qk_rope_head_dim", "even"}},
                             {"qk_nope_head_dim", 21, {"q_proj", "qk_nope_head_dim"}},
                             {"v_head_dim", 27, {"kv_b_proj", "v_head_dim"}},
                             {"n_group", 2, {"n_group", "7"}},
                             {"n_group", 7, {"n_group", "7"}},
                             {"topk_group", 2, {"topk_group", "n_group = 1"}},
                             {"n_group", nullptr, {"n_group", "is 8"}},  // transformers' defaults
                             {"topk_group", nullptr, {"topk_group", "is 4"}},
                             {"n_routed_experts", 8, {"n_routed_experts"}},
                             {"num_experts_per_tok", 8, {"num_experts_per_tok", "8"}},
                             {"first_k_dense_replace", 1, {"model.layers.1.mlp"}},
                             {"n_shared_experts", 3, {"n_shared_experts"}},
                             {"moe_layer_freq", 2, {"moe_layer_freq", "2"}, ErrorCode::unsupported},
                             {"scoring_func", "softmax", {"scoring_func", "sigmoid"}, ErrorCode::unsupported},
                             {"topk_method", "greedy", {"topk_method", "noaux_tc"}, ErrorCode::unsupported},
                             {"rope_scaling", {{"type", "yarn"}, {"factor", 4}}, {"original_max_position_embeddings"}},
                             {"rope_scaling",
                              {{"type", "yarn"}, {"factor", 0.5}, {"original_max_position_embeddings", 64}},
                              {"factor", "0.5"}}});
}

// Every whole number of a configuration, one after another, is what nobody means, with the keys that others are derived
// from when they are absent and without them. The weights are dummies, so no tensor contradicts the configuration:
// it is refused with a sentence, or the model runs.
TEST(Config, UnusualNumbersAreRefusedOrRun) {
  for (const char* name : {"qwen3-moe", "nemotron-h", "deepseek-v3"}) {
    const json original = json::parse(io::slurp(fixture(name) + "/config.json"));
    int refused = 0, ran = 0;
    for (const bool derived : {false, true}) {
      json base = original;
      base["eos_token_id"] = 0;  // in the smallest vocabulary too
      if (derived)
        for (const char* key : {"head_dim", "num_key_value_heads", "moe_latent_size", "n_shared_experts",
                                "moe_shared_expert_intermediate_size"})
          base.erase(key);
      for (const auto& member : base.items()) {
        if (!member.value().is_number_integer()) continue;
        for (const int64_t value : {-1, 0, 1, 2, 7, 60, 1000}) {
          SCOPED_TRACE(fmt::format("{}: {} = {}{}", name, member.key(), value, derived ? ", derived sizes" : ""));
          json config = base;
          config[member.key()] = value;
          const io::TempDir folder;
          folder.put("config.json", config.dump());
          try {
            Context ctx = test_context();
            LoadOptions o;
            o.path = folder.path();
            o.dummy = true;
            const auto model = load_model(ctx, o);
            for (const float x : TestRunner(*model, 1, 16, 16).forward({{.tokens = {0}}})) ASSERT_FALSE(std::isnan(x));
            ++ran;
          } catch (const Error& e) {
            EXPECT_TRUE(e.code() == ErrorCode::bad_file || e.code() == ErrorCode::unsupported ||
                        e.code() == ErrorCode::invalid_argument)
                << e.what();
            ++refused;
          }
        }
      }
    }
    EXPECT_GT(refused, 50) << name;
    EXPECT_GT(ran, 50) << name;
  }
}

TEST(Config, MoreHeadsThanColumns) {
  for (const char* name : {"qwen3-moe", "nemotron-h", "deepseek-v3"})
    for (const bool stated : {true, false}) {
      SCOPED_TRACE(fmt::format("{}, head_dim {}", name, stated ? "stated" : "derived"));
      io::expect_error(ErrorCode::bad_file, {"config.json", "num_attention_heads is 73", "hidden_size"}, [&] {
        load_edited(name, [&](json& c) {
          c["num_attention_heads"] = c["num_key_value_heads"] = 73;
          if (!stated) c.erase("head_dim");
        });
      });
    }
  io::expect_error(ErrorCode::bad_file, {"num_attention_heads is 5", "divide hidden_size = 72"}, [&] {
    load_edited("nemotron-h", [](json& c) {
      c["num_attention_heads"] = c["num_key_value_heads"] = 5;
      c.erase("head_dim");
    });
  });
}

// transformers, too, runs what config.json counts and names the tensors that are left.
TEST(Config, LayersBeyondTheConfigurationsAreReported) {
  const auto expect_warning = [](const std::string& name, const std::function<void(json&)>& edit,
                                 const std::vector<std::string>& words) {
    const std::vector<std::string> warnings = load_edited(name, edit);
    ASSERT_EQ(warnings.size(), 1U) << name;
    for (const std::string& word : words)
      EXPECT_NE(warnings.front().find(word), std::string::npos)
          << "\"" << word << "\" is missing in " << warnings.front();
  };
  // Layers 3 and 4 have 15 tensors each.
  expect_warning(
      "qwen3-moe",
      [](json& c) {
        c["num_hidden_layers"] = 3;
        c.erase("mlp_only_layers");
      },
      {"model.safetensors: tensor \"model.layers.3.input_layernorm.weight\" and 29 other tensors are not used",
       "config.json says that there are 3 layers (num_hidden_layers)"});
  expect_warning("nemotron-h", [](json& c) { c["layers_block_type"].erase(7); },
                 {"\"model.layers.7.", "and 4 other tensors are not used", "says that there are 7 layers"});
  // The prediction layer of the file is layer 4 and is not one of three layers.
  expect_warning("deepseek-v3", [](json& c) { c["num_hidden_layers"] = 3; },
                 {"\"model.layers.3.", "and 73 other tensors are not used", "says that there are 3 layers"});
  expect_warning("deepseek-v3", [](json& c) { c["num_nextn_predict_layers"] = 0; },
                 {"\"model.layers.4.", "and 38 other tensors are not used", "says that there are 4 layers"});
  // The file may have fewer prediction layers than the configuration counts.
  EXPECT_TRUE(load_edited("deepseek-v3", [](json& c) { c["num_nextn_predict_layers"] = 3; }).empty());
}

TEST(Config, MissingTensorsAreNamed) {
  // A checkpoint of one tensor.
  const io::TempDir folder;
  folder.put("config.json", io::slurp(fixture("qwen3-moe") + "/config.json"));
  const std::string header = R"({"model.norm.weight":{"dtype":"F32","shape":[56],"data_offsets":[0,224]}})";
  const uint64_t length = header.size();
  folder.put("model.safetensors",
             std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(224, '\0'));
  io::expect_error(ErrorCode::bad_file, {"model.embed_tokens.weight", "missing"},
                   [&] { load(folder.path(), DType::bf16); });
}

}  // namespace
}  // namespace sluice::model
