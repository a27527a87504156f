// SPDX-License-Identifier: Apache-2.0
#include "weights/save.h"

#include "save_case.h"
#include "tests/io/expect_error.h"
#include "weights/export_format.h"

namespace sluice::weights {
namespace {

TEST_F(SaveTest, ValuesThatAreNotFiniteAreRefused) {
  Written in;
  put_model(in);
  uint16_t& value = in.tensors.at(kExperts + ".1.down_proj.weight").as<uint16_t>()[kInter + 3];
  const std::vector<std::string> words = {"1.down_proj.weight", "holds a value that is infinite or NaN"};
  for (const uint16_t bad : {0x7f80, 0xff80, 0x7fc1}) {  // both infinities, a NaN
    value = bad;
    for (const char* format : {"fp8", "fp8_block", "mxfp8"}) {
      io::expect_error(ErrorCode::bad_file, words,
                       [&] { save_quantized(ctx, in.open(), folder, save_options(format, "", "", false, false)); });
      LoaderOptions online;
      online.online = parse_online_policy(format, "");
      Loader loader(ctx, in.open(), online);
      io::expect_error(ErrorCode::bad_file, words, [&] { loader.experts(named(kExperts), kShape); });
    }
  }
}

TEST_F(SaveTest, FilesThatAreCopiedAreReadBeforeTheWork) {
  Written in;
  put_model(in);
  std::filesystem::create_symlink("nowhere", in.dir.path() / "LICENSE");
  io::expect_error(ErrorCode::not_found, {"LICENSE"},
                   [&] { check_plan(ctx, in.open(), save_options("mxfp8", "", "", false, false)); });
}

TEST_F(SaveTest, AnotherHeadBesideATiedEmbeddingIsRefused) {
  Written in;
  put_model(in);
  in.config = R"({"tie_word_embeddings": true})";  // a head of its own, as some fine-tuning leaves it
  for (const char* head : {"", "mxfp8"})
    io::expect_error(ErrorCode::bad_file,
                     {"tensor \"lm_head.weight\" is not that of model.embed_tokens, but tie_word_embeddings is true"},
                     [&] { save_quantized(ctx, in.open(), folder, save_options("mxfp8", "", head, false, false)); });
}

TEST_F(SaveTest, ExcludedPatternsAreLookedAtFirst) {
  Written in;
  put_model(in);
  const io::Checkpoint model = in.open();
  SaveOptions options = save_options("mxfp8", "", "", false, false);
  const auto plan = [&](const std::vector<std::string>& exclude) {
    options.exclude = exclude;
    check_plan(ctx, model, options);
  };
  // Modules that stay in BF16 anyway, and the head of a model whose embedding is its matrix, are modules too.
  plan({"lm_head", "mlp.gate", "model.norm", "re:model\\.layers\\.[01]\\."});
  io::expect_error(ErrorCode::invalid_argument, {"exclude \"model.layer.0\"", "no module"}, [&] {
    plan({"lm_head", "model.layer.0"});
  });
  io::expect_error(ErrorCode::invalid_argument, {"exclude \"(\"", "regular expression"}, [&] { plan({"re:("}); });
}

// The loader reads all of a layer's experts in one format.
TEST_F(SaveTest, APartOfALayersExpertsIsNotExcluded) {
  Written in;
  put_model(in);
  const io::Checkpoint model = in.open();
  const std::vector<std::string> parts{kExperts + ".2", "experts.0", kMtp + ".1.down_proj",
                                       "*.gate_proj",   "down_proj", "re:.*experts\\.1\\.up_proj$"};
  const std::vector<std::vector<std::string>> wholes{
      {kExperts}, {"mlp.experts"}, {"experts.1", "experts.0", "re:.*\\.2\\.(up|gate|down)_proj"}};
  for (const char* format : {"mxfp8", "fp8", "nvfp4", "mxfp4"}) {
    // Static inputs are asked for before anything was calibrated.
    SaveOptions options = save_options(format, "", "", std::string(format) == "nvfp4", false);
    for (const std::string& part : parts) {
      SCOPED_TRACE(std::string(format) + " " + part);
      options.exclude = {"lm_head", part};
      io::expect_error(ErrorCode::invalid_argument,
                       {"exclude \"" + part + "\" matches model.layers.", ".mlp.experts.", " but not model.layers.",
                        "accepted: all of a layer's experts, as with \"model.layers.", "or none of them"},
                       [&] { check_plan(ctx, model, options); });
    }
    options.amax = amax();
    for (size_t i = 0; i < wholes.size(); ++i) {
      options.exclude = wholes[i];
      const auto to = out.path() / fmt::format("{}-{}", format, i);
      save_quantized(ctx, model, to, options);
      Loader loader(ctx, io::Checkpoint::open(to));
      EXPECT_EQ(loader.experts(named(kExperts), kShape).format, ModuleFormat{}) << to;
      const bool stays = i > 0 || std::string(format) == "nvfp4";  // the prediction layer is not calibrated
      EXPECT_EQ(loader.experts(named(kMtp), kShape).format == ModuleFormat{}, stays) << to;
    }
  }
  SaveOptions experts_stay = save_options("bf16", "mxfp8", "", false, false);
  experts_stay.exclude = parts;
  check_plan(ctx, model, experts_stay);  // in BF16 anyway
}

TEST_F(SaveTest, Refusals) {
  Written in;
  put_model(in);
  out.put("file", "x");
  EXPECT_NE(error_of([&] {
              save_quantized(ctx, in.open(), out.path(), save_options("fp8", "", "", false, false));
            }).find("exists already; give a new folder"),
            std::string::npos);
  EXPECT_NE(error_of([] { save_options("nvfp4", "", "", false, false); }).find("with a calibration text"),
            std::string::npos);
  EXPECT_EQ(error_of([] { save_options("mxfp8", "", "", true, false); }),
            "calibration is for formats with static input scales, fp8 and nvfp4; mxfp8 has mxfp8 inputs");
  EXPECT_EQ(error_of([] { save_options("fp8", "", "", false, true); }),
            "weight-only is for nvfp4; fp8 has inputs of format fp8_token");
  EXPECT_EQ(save_options("nvfp4", "", "", false, true).formats.experts,
            (ModuleFormat{Format::nvfp4, InputFormat::plain}));
  EXPECT_EQ(
      error_of([] { check_exportable(parse_online_policy("mxfp4", "fp8_block"), false); }),
      "no published checkpoint format holds experts in mxfp4 beside other linears in fp8_block with fp8_group "
      "inputs; accepted beside such experts: fp8_tensor with fp8_token inputs, fp8_channel with fp8_token inputs, "
      "mxfp8 with mxfp8 inputs");
  // MXFP8 goes with either, but no convention has all three.
  EXPECT_NE(
      error_of([] { check_exportable(parse_online_policy("nvfp4", "mxfp8", "mxfp4"), false); })
          .find("holds experts in nvfp4 beside the head in mxfp4 with plain inputs; accepted beside such experts: "
                "fp8_tensor with fp8_static inputs, fp8_channel"),
      std::string::npos);
  EXPECT_NE(error_of([] {
              check_exportable({"", {Format::mxfp8, InputFormat::fp8_static}, {}, {}}, false);
            }).find("no published checkpoint format holds mxfp8 weights with fp8_static inputs; accepted: bf16 with"),
            std::string::npos);
  for (const auto& [name, tensor] : {std::pair{".gate_up_proj", Tensor(DType::f32, {2, 8, 4}).zero()},
                                     {".gate_up_proj_blocks", Tensor(DType::u8, {2, 8, 1, 16}).zero()},
                                     {".gate_up_proj_bias", Tensor(DType::bf16, {2, 8}).zero()}}) {
    in.tensors = {{kExperts + name, tensor}};
    EXPECT_NE(error_of([&] {
                save_quantized(ctx, in.open(), folder, save_options("fp8", "", "", false, false));
              }).find("of tensors that hold all experts only gate_up_proj [E, 2I, H]"),
              std::string::npos)
        << name;
  }
}

}  // namespace
}  // namespace sluice::weights
