// Families whose layers differ: patterns of windows, RoPE tables, and their spellings.
#include <doctest/doctest.h>

#include <cmath>

#include "error_text.h"
#include "io/json.h"
#include "model/spec/config.h"

using namespace tandem;
using namespace tandem::model;
using io::Json;

namespace {

Json with(Json j, const Json& changes) {
  j.update(changes);
  return j;
}

ModelConfig parse(const Json& j) { return parse_config(j.dump(), "config.json"); }

std::string error_of(const Json& j) {
  return test::input_error_text([&] { parse(j); });
}

/// Writes a letter for each layer: s slides, f does not.
std::string slides(const ModelConfig& c) {
  std::string text;
  for (int i = 0; i < c.n_layers; ++i) text += c.layer(i).attention.window > 0 ? 's' : 'f';
  return text;
}

/// Gemma 3 4B's text_config, but smaller.
Json gemma3_text() {
  return {{"architectures", {"Gemma3ForCausalLM"}},
          {"hidden_size", 3072},
          {"intermediate_size", 128},
          {"num_hidden_layers", 8},
          {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}},
          {"sliding_window", 1024}};
}

}  // namespace

TEST_SUITE("model/families") {
  TEST_CASE("keys that a file leaves out have the defaults of transformers") {
    // transformers 5.24 prints them for 64 heads and 4096 features.
    struct Case {
      const char* model_type;
      int n_kv_heads, head_dim;
      double rms_eps, theta;
      bool tied;
      int max_context;
    };
    for (const Case& known : {Case{"gemma3_text", 4, 256, 1e-6, 1e6, true, 131072},
                              {"granite", 64, 64, 1e-6, 1e4, false, 2048},
                              {"llama", 64, 64, 1e-6, 1e4, false, 2048},
                              {"mistral", 8, 64, 1e-6, 1e4, false, 131072},
                              {"olmo2", 64, 64, 1e-5, 1e4, false, 2048},
                              {"phi3", 64, 64, 1e-5, 1e4, false, 4096},
                              {"qwen2", 32, 64, 1e-6, 1e4, false, 32768},
                              {"qwen3", 32, 128, 1e-6, 1e4, false, 32768},
                              {"smollm3", 4, 64, 1e-6, 2e6, true, 32768}}) {
      CAPTURE(known.model_type);
      const Json j = {{"model_type", known.model_type}, {"hidden_size", 4096},
                      {"num_hidden_layers", 2},         {"num_attention_heads", 64},
                      {"intermediate_size", 1024},      {"vocab_size", 1000}};
      const ModelConfig c = parse(j);
      CHECK(c.n_kv_heads == known.n_kv_heads);
      CHECK(c.head_dim == known.head_dim);
      CHECK(c.rms_eps == known.rms_eps);
      CHECK(c.ropes[0].theta == known.theta);
      CHECK(c.head.tied == known.tied);
      CHECK(c.max_context == known.max_context);
      CHECK(parse(with(j, {{"num_key_value_heads", nullptr}})).n_kv_heads == 64);
      CHECK(parse(with(j, {{"num_key_value_heads", 2}})).n_kv_heads == 2);
    }
    const Json few_heads = {{"model_type", "qwen2"},     {"hidden_size", 64},
                            {"num_hidden_layers", 2},    {"num_attention_heads", 8},
                            {"intermediate_size", 1024}, {"vocab_size", 1000}};
    CHECK(error_of(few_heads) ==
          "config.json: key 'num_key_value_heads' is missing, and 'num_attention_heads' 8 is not a "
          "multiple of its default 32");
  }

  TEST_CASE("Gemma 3: what its files leave out") {
    Json text = gemma3_text();
    text.erase("architectures");
    const Json whole = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                        {"text_config", text},
                        {"eos_token_id", {1, 106}},
                        {"torch_dtype", "bfloat16"},
                        {"vision_config", {{"hidden_size", 32}}}};
    const ModelConfig c = parse(whole);
    CHECK(c.architecture == "Gemma3ForCausalLM");
    CHECK(c.n_heads == 8);
    CHECK(c.n_kv_heads == 4);
    CHECK(c.head_dim == 256);
    CHECK(c.vocab_size == 262208);
    CHECK(c.max_context == 131072);  // linear scaling is included
    CHECK(c.head.tied);
    CHECK(c.eos_ids == std::vector{1, 106});
    CHECK(c.qk_norm() == QkNorm::head);
    CHECK(c.norms() == NormSpec{.pre = true, .post = true, .unit_offset = true});
    CHECK(c.layer(0).ffn.gate == Gate::gelu_tanh);
    CHECK(c.layer(0).attention.scale == ops::ScoreScale{.of = 256});
    CHECK(c.ropes ==
          std::vector{ops::RopeSpec{1e6, {RopeScalingKind::linear, 8}}, ops::RopeSpec{1e4, {}}});
    for (int i = 0; i < c.n_layers; ++i) {
      const bool full = i == 5;
      CHECK(c.layer(i).attention.window == (full ? 0 : 1024));
      CHECK(c.layer(i).attention.rope == (full ? 0 : 1));
    }
    // sqrt(3072) = 55.4256, which bf16 rounds.
    CHECK(c.embedding.scale_in(DType::f32) == std::sqrt(3072.0f));
    CHECK(c.embedding.scale_in(DType::bf16) == 55.5f);
    CHECK(c.embedding.scale_in(DType::f16) == 55.4375f);
  }

  TEST_CASE("Gemma 3: spellings of patterns and of two RoPE tables") {
    const Json base = gemma3_text();
    CHECK(slides(parse(base)) == "sssssfss");
    CHECK(slides(parse(with(base, {{"sliding_window_pattern", 3}}))) == "ssfssfss");
    CHECK(slides(parse(with(base, {{"_sliding_window_pattern", 4}}))) == "sssfsssf");
    Json types = Json::array();
    for (int i = 0; i < 8; ++i)
      types.push_back(i % 2 == 0 ? "full_attention" : "sliding_attention");
    CHECK(slides(parse(with(base, {{"layer_types", types}, {"sliding_window_pattern", 3}}))) ==
          "fsfsfsfs");
    types.erase(0);
    CHECK(error_of(with(base, {{"layer_types", types}})) ==
          "config.json: key 'layer_types': expected 8 items, one for each layer, found 7");

    const Json sections = {{"full_attention", {{"rope_type", "linear"}, {"factor", 8}}},
                           {"sliding_attention", {{"rope_type", "default"}}}};
    Json renamed = with(base, {{"rope_parameters", sections}});
    renamed.erase("rope_scaling");
    CHECK(parse(renamed).ropes == parse(base).ropes);
    renamed["rope_parameters"]["sliding_attention"]["rope_theta"] = 5e4;
    CHECK(parse(renamed).ropes[1].theta == 5e4);
    CHECK(parse(with(base, {{"rope_local_base_freq", 5e4}})).ropes[1].theta == 5e4);
    CHECK(parse(with(base, {{"query_pre_attn_scalar", 168.0}})).layer(0).attention.scale ==
          ops::ScoreScale{.of = 168});

    CHECK(error_of(with(base, {{"attn_logit_softcapping", 50.0}})) ==
          "config.json: key 'attn_logit_softcapping': only null is supported");
    CHECK(error_of(with(base, {{"use_bidirectional_attention", true}})) ==
          "config.json: key 'use_bidirectional_attention': only false is supported");
    CHECK(error_of(with(base, {{"query_pre_attn_scalar", 0}})) ==
          "config.json: key 'query_pre_attn_scalar': expected a number from 1 to 1e+06, found 0");
  }

  TEST_CASE("SmolLM3: layers without RoPE slide, unless the file says which") {
    Json base = {{"architectures", {"SmolLM3ForCausalLM"}},
                 {"hidden_size", 64},
                 {"num_hidden_layers", 5},
                 {"num_attention_heads", 8},
                 {"intermediate_size", 172},
                 {"vocab_size", 512},
                 {"sliding_window", 32},
                 {"no_rope_layers", {1, 0, 1, 0, 0}}};
    CHECK(slides(parse(base)) == "fffff");
    base["use_sliding_window"] = true;
    const ModelConfig c = parse(base);
    CHECK(slides(c) == "fsfss");
    CHECK(c.kinds.size() == 2);
    for (int i = 0; i < 5; ++i)
      CHECK(c.layer(i).attention.rope == (c.layer(i).attention.window > 0 ? -1 : 0));
    const char *const full = "full_attention", *const sliding = "sliding_attention";
    base["layer_types"] = {sliding, full, full, sliding, full};
    const ModelConfig listed = parse(base);
    CHECK(slides(listed) == "sffsf");
    CHECK(listed.kinds.size() == 4);
    base["sliding_window"] = nullptr;
    CHECK(slides(parse(base)) == "fffff");
  }
}
