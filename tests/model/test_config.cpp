#include <doctest/doctest.h>

#include "error_text.h"
#include "io/json.h"
#include "model/families/family.h"
#include "model/spec/config.h"
#include "model/spec/context.h"
#include "model/spec/roles.h"
#include "model/spec/work.h"
#include "source_dir.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::model;
using io::Json;
using test::input_error_text;

namespace {

Json minimal(const char* architecture = "LlamaForCausalLM") {
  return {{"architectures", {architecture}}, {"hidden_size", 64},        {"num_hidden_layers", 4},
          {"num_attention_heads", 8},        {"intermediate_size", 172}, {"vocab_size", 512},
          {"max_position_embeddings", 256}};
}

Json with(Json j, const Json& changes) {
  j.update(changes);
  return j;
}

ModelConfig parse(const Json& j) { return parse_config(j.dump(), "config.json"); }

std::string error_of(const Json& j) {
  return input_error_text([&] { parse(j); });
}

std::string llama_error(const Json& changes) { return error_of(with(minimal(), changes)); }

}  // namespace

TEST_SUITE("model/config") {
  TEST_CASE("parts of layers that no code serves are named") {
    using Change = void (*)(ModelConfig&);
    const std::pair<std::string_view, Change> cases[] = {
        {"", [](ModelConfig&) {}},
        {"attention sinks", [](ModelConfig& c) { c.kinds[0].attention.sink = true; }},
        {"mixtures of experts",
         [](ModelConfig& c) { c.kinds[0].ffn.kind = FfnSpec::Kind::experts; }},
        {"clamped gates", [](ModelConfig& c) { c.kinds[0].ffn.clamp = 7; }},
        {"layers with different biases or norms",
         [](ModelConfig& c) {
           c.slide(8, c.layers_from(1));
           c.kinds[1].ffn.bias = true;
         }},
        {"layers with different biases or norms",
         [](ModelConfig& c) {
           c.slide(8, c.layers_from(1));
           c.kinds[1].norms.post = true;
         }},
        {"capped logits", [](ModelConfig& c) { c.head.softcap = 30; }},
    };
    for (const auto& [part, change] : cases) {
      ModelConfig c = parse(minimal());
      change(c);
      CHECK(first_unserved(c) == part);
    }
  }

  TEST_CASE("what may be left out, and what it then is") {
    const ModelConfig c = parse(minimal());
    CHECK(c.architecture == "LlamaForCausalLM");
    CHECK(c.n_kv_heads == 8);
    CHECK(c.head_dim == 8);
    CHECK(c.group_size() == 1);
    CHECK(c.rms_eps == 1e-6);
    CHECK(c.ropes[0].theta == 10000.0);
    CHECK(c.ropes[0].scaling == RopeScaling{});
    CHECK_FALSE(c.head.tied);
    CHECK_FALSE(c.bos_id);
    CHECK(c.eos_ids.empty());
    CHECK(c.dtype == DType::f32);
    CHECK(c.layer(3).attention.window == 0);
    Json j = minimal();
    j.erase("architectures");
    j["model_type"] = "mistral";
    CHECK(parse(j).architecture == "MistralForCausalLM");
  }

  TEST_CASE("Llama in both spellings is one configuration") {
    const Json common = {{"num_key_value_heads", 2},  {"head_dim", 16},
                         {"rms_norm_eps", 1e-5},      {"bos_token_id", 5},
                         {"eos_token_id", {1, 2, 1}}, {"tie_word_embeddings", true},
                         {"attention_bias", true},    {"mlp_bias", true}};
    const Json scaling = {{"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4},
                          {"original_max_position_embeddings", 8192}};
    const Json old_form =
        with(with(minimal(), common), {{"rope_theta", 500000},
                                       {"torch_dtype", "bfloat16"},
                                       {"rope_scaling", with(scaling, {{"rope_type", "llama3"}})}});
    const Json new_form = with(
        with(minimal(), common),
        {{"dtype", "bfloat16"},
         {"rope_parameters", with(scaling, {{"rope_type", "llama3"}, {"rope_theta", 500000.0}})}});
    for (const Json& j : {old_form, new_form, with(old_form, new_form)}) {
      const ModelConfig c = parse(j);
      CHECK(c.ropes[0].theta == 500000.0);
      CHECK(c.ropes[0].scaling == RopeScaling{RopeScalingKind::llama3, 8.0, 1.0, 4.0, 8192});
      CHECK(c.dtype == DType::bf16);
      CHECK(c.n_kv_heads == 2);
      CHECK(c.group_size() == 4);
      CHECK(c.q_dim() == 128);
      CHECK(c.kv_dim() == 32);
      CHECK(c.bos_id == 5);
      CHECK(c.eos_ids == std::vector<int>{1, 2});
      CHECK(c.head.tied);
      CHECK((c.qkv_bias() && c.o_bias() && c.mlp_bias()));
    }
  }

  TEST_CASE("RoPE scaling kinds") {
    const RopeScaling linear{RopeScalingKind::linear, 4.0, 1.0, 4.0, 8192};
    CHECK(parse(with(minimal(), {{"rope_scaling", {{"type", "linear"}, {"factor", 4}}}}))
              .ropes[0]
              .scaling == linear);
    CHECK(
        parse(with(minimal(), {{"rope_parameters",
                                {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 1e4}}}}))
            .ropes[0]
            .scaling == linear);
    CHECK(parse(with(minimal(), {{"rope_scaling", nullptr}})).ropes[0].scaling == RopeScaling{});
    // As folders of Yarn-Llama-2 have it.
    const Json yarn = {{"factor", 32.0},
                       {"original_max_position_embeddings", 4096},
                       {"type", "yarn"},
                       {"finetuned", true}};
    const RopeScaling of_yarn = parse(with(minimal(), {{"rope_scaling", yarn}})).ropes[0].scaling;
    CHECK(of_yarn == synthetic_config("llama-2-7b-128k").ropes[0].scaling);
    CHECK(of_yarn.attention_factor == doctest::Approx(1.3465735902799727).epsilon(1e-15));
    CHECK((of_yarn.beta_fast == 32 && of_yarn.beta_slow == 1 && of_yarn.whole_dims));
    const RopeScaling given =
        parse(with(minimal(), {{"rope_scaling", with(yarn, {{"beta_fast", 16},
                                                            {"beta_slow", 2},
                                                            {"mscale", 2.0},
                                                            {"mscale_all_dim", 1.0},
                                                            {"truncate", false}})}}))
            .ropes[0]
            .scaling;
    CHECK((given.beta_fast == 16 && given.beta_slow == 2 && !given.whole_dims));
    CHECK(given.attention_factor == doctest::Approx(1.6931471805599454 / 1.3465735902799727));
    CHECK(parse(with(minimal(), {{"rope_scaling", with(yarn, {{"attention_factor", 1.5}})}}))
              .ropes[0]
              .scaling.attention_factor == 1.5);
    CHECK(llama_error({{"rope_scaling", with(yarn, {{"beta_slow", 40}})}}) ==
          "config.json: rope_scaling: 'beta_fast' 32 must exceed 'beta_slow' 40");
    CHECK(parse(with(minimal(), {{"rope_parameters", {{"rope_theta", 7.0}}}})).ropes[0].theta ==
          7.0);
    CHECK(
        parse(with(minimal(), {{"rope_parameters", {{"rope_type", "default"}}}})).ropes[0].theta ==
        1e4);
    CHECK(llama_error({{"rope_scaling", {{"type", "xpos"}, {"factor", 4}}}}) ==
          "config.json: rope_scaling: RoPE type 'xpos' is not supported");
    // Up to max_position_embeddings, which no run exceeds, dynamic scaling changes nothing.
    const ModelConfig dynamic =
        parse(with(minimal(), {{"rope_scaling", {{"type", "dynamic"}, {"factor", 4}}}}));
    CHECK(dynamic.ropes[0].scaling == RopeScaling{});
    CHECK(dynamic.max_context == 256);
    CHECK(llama_error({{"rope_scaling", {{"factor", 4}}}}) ==
          "config.json: rope_scaling: key 'rope_type' is missing, expected a string");
    CHECK(llama_error({{"rope_scaling", {{"type", "linear"}}}}) ==
          "config.json: rope_scaling: key 'factor' is missing, expected a number");
    CHECK(
        llama_error({{"rope_scaling", {{"type", "linear"}, {"factor", 0.5}}}}) ==
        "config.json: rope_scaling: key 'factor': expected a number from 1 to 1000000, found 0.5");
    CHECK(llama_error({{"rope_parameters",
                        {{"rope_type", "llama3"},
                         {"factor", 8},
                         {"low_freq_factor", 4},
                         {"high_freq_factor", 4},
                         {"original_max_position_embeddings", 8192}}}}) ==
          "config.json: rope_parameters: 'high_freq_factor' 4 must exceed 'low_freq_factor' 4");
    CHECK(llama_error({{"rope_theta", 1e4},
                       {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}}}) ==
          "config.json: 'rope_theta' 10000 contradicts 500000 in 'rope_parameters'");
    CHECK(llama_error({{"rope_scaling", {{"type", "linear"}, {"factor", 2}}},
                       {"rope_parameters", {{"rope_type", "linear"}, {"factor", 4}}}}) ==
          "config.json: 'rope_scaling' contradicts 'rope_parameters'");
    CHECK(llama_error({{"rope_theta", 0}}) ==
          "config.json: key 'rope_theta': expected a number from 1 to 1000000000000, found 0");
    CHECK(llama_error({{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}) ==
          "config.json: rope_parameters: key 'partial_rotary_factor': only 1.0 is supported, found "
          "the number 0.5");
  }

  TEST_CASE("YaRN's absent keys have the values that transformers gives them") {
    const auto scaling = [](const Json& section, const Json& others = Json::object()) {
      return parse(with(with(minimal(), {{"rope_scaling", section}}), others)).ropes[0].scaling;
    };
    const Json yarn = {{"rope_type", "yarn"}, {"factor", 2.0}};
    const Json original = {{"original_max_position_embeddings", 64}};
    CHECK(scaling(yarn).original_context == 256);
    CHECK(scaling(yarn, original).original_context == 64);
    CHECK(scaling(with(yarn, original)).original_context == 64);
    CHECK(scaling(with(yarn, {{"original_max_position_embeddings", 128}}), original)
              .original_context == 64);
    CHECK(scaling(with(yarn, {{"original_max_position_embeddings", nullptr}})).original_context ==
          256);
    CHECK(scaling(with(with(yarn, original), {{"factor", nullptr}})).factor == 4.0);
    CHECK(scaling(with(yarn, {{"truncate", true}})).whole_dims);
    CHECK_FALSE(scaling(with(yarn, {{"truncate", nullptr}})).whole_dims);
    CHECK(parse(with(minimal(), {{"rope_parameters", yarn}})).ropes[0].scaling.original_context ==
          256);
    CHECK(scaling({{"rope_type", "llama3"},
                   {"factor", 8.0},
                   {"low_freq_factor", 1.0},
                   {"high_freq_factor", 4.0}})
              .original_context == 256);
    CHECK(parse(with(minimal(), {{"rope_scaling", with(yarn, {{"rope_theta", 5e5}})}}))
              .ropes[0]
              .theta == 5e5);
    CHECK(llama_error({{"rope_theta", 1e4}, {"rope_scaling", with(yarn, {{"rope_theta", 5e5}})}}) ==
          "config.json: 'rope_theta' 10000 contradicts 500000 in 'rope_scaling'");
    CHECK(llama_error({{"rope_scaling", {{"rope_type", "yarn"}}}}) ==
          "config.json: rope_scaling: key 'factor' is missing, expected a number");
  }

  TEST_CASE("the context under YaRN and linear scaling is that of vLLM") {
    const auto context = [](const Json& changes) {
      return parse(with(minimal(), changes)).max_context;
    };
    const auto yarn = [](double factor, int original) {
      return Json{{"rope_scaling",
                   {{"rope_type", "yarn"},
                    {"factor", factor},
                    {"original_max_position_embeddings", original}}}};
    };
    CHECK(context(yarn(4, 256)) == 1024);  // as the model cards of Qwen2.5 have it
    CHECK(context(yarn(2, 128)) == 256);   // max_position_embeddings is the length after scaling
    CHECK(context(yarn(2, 200)) == 400);   // as Qwen3 has it: between the two
    CHECK(context(yarn(1, 128)) == 256);
    CHECK(context({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.5}}}}) == 640);
    CHECK(context({{"rope_scaling", {{"type", "linear"}, {"factor", 4}}}}) == 1024);
    CHECK(context({{"rope_scaling",
                    {{"rope_type", "llama3"},
                     {"factor", 8.0},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0},
                     {"original_max_position_embeddings", 64}}}}) == 256);
    CHECK(context({{"rope_scaling", {{"type", "linear"}, {"factor", 1e6}}},
                   {"max_position_embeddings", 1 << 20}}) == kMaxContext);
    Json silent = minimal();
    silent.erase("max_position_embeddings");
    CHECK(parse(silent).max_context == 2048);
    silent.update({{"architectures", {"Qwen2ForCausalLM"}}, {"num_key_value_heads", 8}});
    CHECK(parse(silent).max_context == 32768);

    ModelConfig c = parse(with(minimal(), yarn(4, 256)));
    c.name = "m";
    CHECK(context_note(c) == "context  1024 = 4 x 256 by YaRN (max_position_embeddings of m: 256)");
    CHECK(context_note(parse(with(minimal(), yarn(2, 128)))).empty());
    CHECK(context_note(parse(minimal())).empty());
    recipe::Run run;
    CHECK(context_of(run, c) == 1024);
    run.context = {1024};
    CHECK(context_of(run, c) == 1024);
    run.context = {1025};
    CHECK_THROWS_AS(context_of(run, c), Error);
    CHECK(test::hint_text([&] {
            context_of(run, c);
          }).find("max_position_embeddings in config.json") != std::string::npos);
  }

  TEST_CASE("what is not supported is named, and the file is not called damaged") {
    const Json unsupported[] = {
        {{"partial_rotary_factor", 0.5}},
        {{"rope_scaling", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}}},
        {{"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}}},
        {{"rope_scaling", {{"type", "xpos"}, {"factor", 2}}}},
        {{"rope_scaling", {{"type", "longrope"}, {"short_factor", {1}}, {"long_factor", {1}}}}},
        {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
        {{"hidden_act", "relu2"}},
        {{"vocab_size", nullptr}}};
    for (const Json& changes : unsupported) {
      CAPTURE(changes.dump());
      const std::string hint = test::hint_text([&] { parse(with(minimal(), changes)); });
      CHECK(hint != "");
      CHECK(hint.find("damaged") == std::string::npos);
    }
    CHECK(llama_error({{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}}) ==
          "config.json: rope_parameters: different RoPE parameters for kinds of layers "
          "('full_attention') are not supported");
    CHECK_NOTHROW(parse(with(minimal(), {{"hidden_act", "swish"}})));  // another name of silu
  }

  TEST_CASE("Mistral's window") {
    const Json base = with(minimal("MistralForCausalLM"), {{"num_key_value_heads", 2}});
    CHECK(parse(with(base, {{"sliding_window", 128}})).layer(0).attention.window == 128);
    CHECK(parse(with(base, {{"sliding_window", nullptr}})).layer(0).attention.window == 0);
    CHECK(parse(base).layer(3).attention.window == 4096);
    CHECK_FALSE(parse(base).qkv_bias());
    CHECK(parse(with(base, {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}},
                            {"dtype", "float16"}}))
              .dtype == DType::f16);
    CHECK(error_of(with(base, {{"sliding_window", 0}})) ==
          "config.json: key 'sliding_window': expected an integer from 1 to 1073741824, found the "
          "number 0");
    CHECK(parse(with(minimal(), {{"sliding_window", 128}})).layer(0).attention.window ==
          0);  // Llama has none
  }

  TEST_CASE("Qwen2: biases, and a window only if it is switched on") {
    const Json base =
        with(minimal("Qwen2ForCausalLM"), {{"num_key_value_heads", 2}, {"sliding_window", 32}});
    const Json on = with(base, {{"use_sliding_window", true}, {"max_window_layers", 3}});
    CHECK(parse(base).qkv_bias());
    CHECK_FALSE(parse(base).o_bias());
    CHECK(parse(base).layer(3).attention.window == 0);
    CHECK(parse(with(on, {{"use_sliding_window", false}})).layer(3).attention.window == 0);
    CHECK(parse(on).layer(2).attention.window == 0);
    CHECK(parse(on).layer(3).attention.window == 32);
    CHECK(parse(with(on, {{"max_window_layers", 4}})).sliding().window == 0);
    const char *full = "full_attention", *sliding = "sliding_attention";
    const ModelConfig c = parse(with(on, {{"layer_types", {full, sliding, sliding, sliding}}}));
    CHECK(c.layer(0).attention.window == 0);
    CHECK(c.layer(1).attention.window == 32);
    CHECK(parse(with(on, {{"layer_types", {full, full, full, full}}})).sliding().window == 0);
    const ModelConfig mixed = parse(with(on, {{"layer_types", {sliding, full, sliding, full}}}));
    for (int layer = 0; layer < 4; ++layer)
      CHECK(mixed.layer(layer).attention.window == (layer % 2 == 0 ? 32 : 0));
    CHECK(parse(with(on, {{"layer_types", {sliding, sliding, sliding, sliding}}})).kinds.size() ==
          1);
    // Families and files without windows pass over no type either.
    for (Json off : {with(on, {{"sliding_window", nullptr}}), base, minimal()}) {
      off["layer_types"] = {full, "chunked_attention", full, full};
      CHECK(error_of(off).find("found 'chunked_attention' for layer 1") != std::string::npos);
    }
    CHECK(error_of(with(on, {{"layer_types", {full}}})) ==
          "config.json: key 'layer_types': expected 4 items, one for each layer, found 1");
    CHECK(error_of(with(on, {{"layer_types", {full, "linear_attention", full, full}}})) ==
          "config.json: key 'layer_types': expected 'full_attention' or 'sliding_attention', found "
          "'linear_attention' for layer 1");
  }

  TEST_CASE("Qwen3: norms of heads, biases by a flag, and a window as Qwen2 has it") {
    const Json base = with(minimal("Qwen3ForCausalLM"), {{"num_key_value_heads", 2},
                                                         {"head_dim", 16},
                                                         {"sliding_window", 32},
                                                         {"use_sliding_window", false},
                                                         {"max_window_layers", 3}});
    const ModelConfig c = parse(base);
    CHECK(c.architecture == "Qwen3ForCausalLM");
    CHECK(c.qk_norm() == QkNorm::head);
    CHECK(c.head_dim == 16);
    CHECK_FALSE((c.qkv_bias() || c.o_bias() || c.mlp_bias()));
    CHECK(c.layer(3).attention.window == 0);
    const ModelConfig biased =
        parse(with(base, {{"attention_bias", true}, {"use_sliding_window", true}}));
    CHECK((biased.qkv_bias() && biased.o_bias()));
    CHECK_FALSE(biased.mlp_bias());
    CHECK(biased.layer(2).attention.window == 0);
    CHECK(biased.layer(3).attention.window == 32);
    CHECK(parse(minimal()).qk_norm() == QkNorm::none);
    CHECK(parse(with(minimal("Qwen2ForCausalLM"), {{"num_key_value_heads", 2}})).qk_norm() ==
          QkNorm::none);
    CHECK(error_of(with(base, {{"rope_scaling", {{"rope_type", "xpos"}, {"factor", 4}}}})) ==
          "config.json: rope_scaling: RoPE type 'xpos' is not supported");
    Json by_type = base;
    by_type.erase("architectures");
    CHECK(parse(with(by_type, {{"model_type", "qwen3"}})).qk_norm() == QkNorm::head);
  }

  TEST_CASE("Qwen3 without head_dim has heads of 128, whatever hidden_size is") {
    const Json j = with(minimal("Qwen3ForCausalLM"), {{"num_key_value_heads", 8}});
    CHECK(parse(j).head_dim == 128);
    CHECK(parse(j).q_dim() == 8 * 128);
    CHECK(parse(with(j, {{"head_dim", nullptr}, {"hidden_size", 60}})).head_dim == 128);
    CHECK(error_of(with(j, {{"num_attention_heads", 16384}})) ==
          "config.json: key 'head_dim' is missing, and 'num_attention_heads' 16384 times 128 "
          "exceeds 1048576");
    CHECK(error_of(with(j, {{"head_dim", 7}})) ==
          "config.json: head dimension 7 is odd, expected an even number for RoPE");
  }

  TEST_CASE("Granite's four multipliers are read, 1 where the file has none") {
    const ModelConfig plain = parse(minimal("GraniteForCausalLM"));
    CHECK(plain.layer(0).attention.scale == ops::ScoreScale{.times = 1});
    CHECK(plain.layer(0).residual == 1.0f);
    CHECK(plain.embedding.scale == 1.0f);
    CHECK(plain.head.scale == 1.0f);
    const ModelConfig c = parse(with(minimal("GraniteForCausalLM"), {{"attention_multiplier", .25},
                                                                     {"residual_multiplier", .22},
                                                                     {"embedding_multiplier", 12},
                                                                     {"logits_scaling", 8}}));
    CHECK(c.layer(3).attention.scale.f32() == .25f);
    CHECK(c.layer(3).residual == .22f);
    CHECK(c.embedding.scale == 12.0f);
    CHECK(c.head.scale == .125f);
    CHECK(error_of(with(minimal("GraniteForCausalLM"), {{"logits_scaling", 0}})) ==
          "config.json: key 'logits_scaling': expected a number from 1e-06 to 1e+06, found 0");
  }

  TEST_CASE("SmolLM3 names layers without RoPE, or leaves it to an interval") {
    const Json smol = minimal("SmolLM3ForCausalLM");
    const auto unturned = [](const ModelConfig& c) {
      std::vector<int> layers;
      for (int i = 0; i < c.n_layers; ++i)
        if (c.layer(i).attention.rope < 0) layers.push_back(i);
      return layers;
    };
    const ModelConfig c = parse(smol);
    CHECK(unturned(c) == std::vector<int>{3});
    CHECK(c.n_kv_heads == 4);
    CHECK(c.head.tied);
    CHECK(c.ropes[0].theta == 2e6);
    CHECK(unturned(parse(with(smol, {{"no_rope_layer_interval", 2}}))) == std::vector<int>{1, 3});
    CHECK(unturned(parse(with(smol, {{"no_rope_layers", {0, 1, 1, 0}}}))) ==
          std::vector<int>{0, 3});
    CHECK(error_of(with(smol, {{"no_rope_layers", {1, 1, 0}}})) ==
          "config.json: key 'no_rope_layers': expected 4 items, one for each layer, found 3");
  }

  TEST_CASE("OLMo 2 has norms of whole rows, and norms after attention and FFN only") {
    const ModelConfig c = parse(minimal("Olmo2ForCausalLM"));
    CHECK(c.qk_norm() == QkNorm::row);
    CHECK(c.norms() == NormSpec{.pre = false, .post = true});
    CHECK(c.rms_eps == 1e-5);
    CHECK_FALSE(present(Role::attn_pre, c));
    CHECK_FALSE(present(Role::q_norm, c));
    CHECK(shape_of(Role::q_row_norm, c) == io::Shape{64});
    CHECK(canonical_name({Role::attn_post, 1}) == "model.layers.1.post_attention_layernorm.weight");
    CHECK(norm_elements(c) == 4 * (64 + 64 + 64 + 64) + 64);
  }

  TEST_CASE("Mistral 3 is its text_config, a Mistral") {
    Json text = minimal("MistralForCausalLM");
    text.erase("architectures");
    text.update({{"head_dim", 16}, {"sliding_window", nullptr}, {"rope_theta", 1e9}});
    const Json whole = {{"architectures", {"Mistral3ForConditionalGeneration"}},
                        {"model_type", "mistral3"},
                        {"text_config", text},
                        {"torch_dtype", "bfloat16"},
                        {"vision_config", {{"hidden_size", 32}}}};
    const ModelConfig c = parse(whole);
    CHECK(c.architecture == "MistralForCausalLM");
    CHECK(c.q_dim() == 128);
    CHECK(c.dim == 64);
    CHECK(c.ropes[0].theta == 1e9);
    CHECK(c.dtype == DType::bf16);
    CHECK(c.layer(0).attention.window == 0);
    Json nothing = whole;
    nothing.erase("text_config");
    CHECK(error_of(nothing).find("text_config") != std::string::npos);
    text["num_key_value_heads"] = 3;
    CHECK(error_of(with(whole, {{"text_config", text}})) ==
          "config.json: text_config: 'num_attention_heads' 8 is not a multiple of "
          "'num_key_value_heads' 3");
  }

  TEST_CASE("Phi-3 turns a part of each head, by short and long factors") {
    const Json factors = {
        {"type", "longrope"}, {"short_factor", {1, 1.5}}, {"long_factor", {2, 4}}};
    const auto phi = [&](const Json& changes) {
      return with(with(minimal("Phi3ForCausalLM"), {{"partial_rotary_factor", .5},
                                                    {"original_max_position_embeddings", 64},
                                                    {"rope_scaling", factors}}),
                  changes);
    };
    const ModelConfig c = parse(phi(Json::object()));
    CHECK(c.ropes[0].dims == 4);
    CHECK(c.ropes[0].scaling.kind == RopeScalingKind::longrope);
    CHECK(c.ropes[0].scaling.long_factors == std::vector<float>{2, 4});
    CHECK(c.ropes[0].scaling.attention_factor == doctest::Approx(std::sqrt(1 + 1.0 / 3)));
    CHECK(c.max_context == 256);
    CHECK(ops::is_long(c.ropes[0], 65));
    CHECK_FALSE(ops::is_long(c.ropes[0], 64));
    for (const char* other : {"su", "yarn"}) {
      Json renamed = factors;
      renamed["type"] = other;
      CHECK(parse(phi({{"rope_scaling", renamed}})).ropes == c.ropes);
    }
    Json given = factors;
    given["attention_factor"] = 1.25;
    CHECK(parse(phi({{"rope_scaling", given}})).ropes[0].scaling.attention_factor == 1.25);
    given["long_factor"] = {2, 4, 8};
    CHECK(
        error_of(phi({{"rope_scaling", given}})) ==
        "config.json: rope_scaling: key 'long_factor': expected 2 factors, one for each pair that "
        "turns, found 3");
    given.erase("long_factor");
    CHECK(error_of(phi({{"rope_scaling", given}})) ==
          "config.json: rope_scaling: key 'long_factor' is missing: longrope needs 2 factors, one "
          "for each pair");
    CHECK(error_of(phi({{"partial_rotary_factor", .4}})) ==
          "config.json: key 'partial_rotary_factor': 0.4 of a head of 8 is no even number of "
          "dimensions");
    const ModelConfig plain = parse(minimal("Phi3ForCausalLM"));
    CHECK(plain.ropes[0].dims == -1);
    CHECK(plain.rms_eps == 1e-5);
  }

  TEST_CASE("other models and features are refused by name") {
    for (const char* name : {"Qwen3NextForCausalLM", "Gemma2ForCausalLM", "PhiForCausalLM",
                             "LlamaForSequenceClassification"})
      CHECK(error_of(minimal(name)) ==
            std::string("config.json: architecture '") + name + "' is not supported");
    for (const char* name : {"Qwen3MoeForCausalLM", "Qwen2MoeForCausalLM", "MixtralForCausalLM"})
      CHECK(error_of(minimal(name)) ==
            std::string("config.json: architecture '") + name +
                "' is a mixture of experts (MoE), which is not supported");
    CHECK(test::hint_text([] { parse(minimal("GPT2LMHeadModel")); }) ==
          "supported: Gemma3ForCausalLM (text of Gemma 3), Gemma3ForConditionalGeneration, "
          "GraniteForCausalLM (the dense models of Granite 3), "
          "LlamaForCausalLM (Llama 2, 3, 3.1, 3.2), MistralForCausalLM, "
          "Mistral3ForConditionalGeneration (text of Mistral Small 3.1), "
          "Olmo2ForCausalLM (OLMo 2), Phi3ForCausalLM (Phi-3, Phi-3.5, Phi-4, Phi-4-mini), "
          "Qwen2ForCausalLM (Qwen2, Qwen2.5), Qwen3ForCausalLM (the dense models of Qwen3), "
          "SmolLM3ForCausalLM (SmolLM3)");
    CHECK(error_of({{"model_type", "qwen3_moe"}}) ==
          "config.json: architecture 'qwen3_moe' is a mixture of experts (MoE), which is not "
          "supported");
    CHECK(error_of({{"model_type", "gpt2"}}) ==
          "config.json: architecture 'gpt2' is not supported");
    CHECK(error_of(Json::object()) ==
          "config.json: keys 'architectures' and 'model_type' are missing: the architecture is "
          "unknown");
    CHECK(error_of(Json::array()) == "config.json: expected an object, found an array of 0 items");
    CHECK(llama_error({{"quantization_config", {{"quant_method", "bitsandbytes"}}}}) ==
          "config.json: the weights are quantized by 'bitsandbytes', which is not supported");
    CHECK(llama_error({{"hidden_act", "quick_gelu"}}) ==
          "config.json: key 'hidden_act': expected 'silu', 'gelu', 'gelu_pytorch_tanh', 'gelu_new' "
          "or "
          "'relu', found 'quick_gelu'");
    const auto gate = [](const char* name) {
      return parse(with(minimal(), {{"hidden_act", name}})).layer(0).ffn.gate;
    };
    CHECK(gate("swish") == Gate::silu);
    CHECK(gate("gelu") == Gate::gelu);
    CHECK(gate("gelu_new") == Gate::gelu_tanh);
    CHECK(gate("gelu_pytorch_tanh") == Gate::gelu_tanh);
    CHECK(gate("relu") == Gate::relu);
    CHECK(llama_error({{"partial_rotary_factor", 0.25}}) ==
          "config.json: key 'partial_rotary_factor': only 1.0 is supported, found the number 0.25");
    CHECK(llama_error({{"torch_dtype", "float8_e4m3fn"}}) ==
          "config.json: key 'torch_dtype': expected 'bfloat16', 'float16' or 'float32', found "
          "'float8_e4m3fn'");
  }

  TEST_CASE("sizes out of range are named") {
    CHECK(llama_error({{"hidden_size", 0}}) ==
          "config.json: key 'hidden_size': expected an integer from 1 to 1048576, found the number "
          "0");
    CHECK(llama_error({{"num_hidden_layers", 5000}}) ==
          "config.json: key 'num_hidden_layers': expected an integer from 1 to 4096, found the "
          "number 5000");
    CHECK(llama_error({{"vocab_size", "512"}}) ==
          "config.json: key 'vocab_size': expected an integer from 1 to 16777216, found the string "
          "'512'");
    CHECK(llama_error({{"intermediate_size", 172.5}}) ==
          "config.json: key 'intermediate_size': expected an integer from 1 to 1048576, found the "
          "number 172.5");
    CHECK(llama_error({{"num_key_value_heads", 3}}) ==
          "config.json: 'num_attention_heads' 8 is not a multiple of 'num_key_value_heads' 3");
    CHECK(llama_error({{"num_key_value_heads", 16}}) ==
          "config.json: key 'num_key_value_heads': expected an integer from 1 to 8, found the "
          "number 16");
    CHECK(llama_error({{"hidden_size", 60}}) ==
          "config.json: key 'head_dim' is missing, and 'hidden_size' 60 is not a multiple of "
          "'num_attention_heads' 8");
    CHECK(llama_error({{"head_dim", 7}}) ==
          "config.json: head dimension 7 is odd, expected an even number for RoPE");
    CHECK(llama_error({{"rms_norm_eps", -1e-5}}) ==
          "config.json: key 'rms_norm_eps': expected a number from 0 to 1, found -1e-05");
    CHECK(llama_error({{"eos_token_id", -2}}) ==
          "config.json: key 'eos_token_id': expected an integer from -1 to 16777215, found the "
          "number -2");
    // Added tokens beyond the embedding never occur.
    CHECK(parse(with(minimal(), {{"eos_token_id", {512, 3}}, {"bos_token_id", 512}})).eos_ids ==
          std::vector<int>{3});
    CHECK_FALSE(parse(with(minimal(), {{"bos_token_id", 512}})).bos_id);
    CHECK(parse(with(minimal(), {{"bos_token_id", -1}, {"eos_token_id", nullptr}})).bos_id ==
          std::nullopt);
    Json j = minimal();
    j.erase("hidden_size");
    CHECK(error_of(j) ==
          "config.json: key 'hidden_size' is missing, expected an integer from 1 to 1048576");
  }

  TEST_CASE("generation_config.json replaces the end-of-text ids") {
    const test::TemporaryFolder folder;
    std::filesystem::create_directory(folder / "my-model");
    folder.write("my-model/config.json", with(minimal(), {{"eos_token_id", 2}}).dump());
    CHECK(load_config(folder / "my-model").eos_ids == std::vector<int>{2});
    CHECK(load_config(folder / "my-model/").name == "my-model");
    folder.write("my-model/generation_config.json", R"({"eos_token_id": [3, 4], "top_p": 0.9})");
    CHECK(load_config(folder / "my-model").eos_ids == std::vector<int>{3, 4});
    folder.write("my-model/generation_config.json", R"({"top_p": 0.9})");
    CHECK(load_config(folder / "my-model").eos_ids == std::vector<int>{2});
  }

  TEST_CASE("folders that are none") {
    const test::TemporaryFolder folder;
    const std::string path = folder.path().string();
    const auto load_error = [](const std::filesystem::path& p) {
      return input_error_text([&] { load_config(p); });
    };
    CHECK(load_error(folder / "none") == path + "/none: no such model folder");
    CHECK(load_error(folder.path()) ==
          path + ": config.json is missing: not a Hugging Face model folder");
    CHECK(load_error(folder.write("m.gguf", "GGUF")) ==
          path + "/m.gguf: is a GGUF file, expected a folder with safetensors files");
    CHECK(load_error(folder.path()) ==
          path + "/m.gguf: is a GGUF file, expected a folder with safetensors files");
    CHECK(load_error(folder.write("m.txt", "")) ==
          path + "/m.txt: is a file, expected a model folder");
  }

  TEST_CASE("the embedded models") {
    const std::filesystem::path models = test::source_dir() / "recipes/models";
    const ModelConfig big = load_config(models / "tiny-16m");
    CHECK(big.name == "tiny-16m");
    CHECK(big.dim == 384);
    CHECK(big.n_layers == 8);
    CHECK(big.n_heads == 6);
    CHECK(big.n_kv_heads == 2);
    CHECK(big.head_dim == 64);
    CHECK(big.ropes[0].theta == 500000.0);
    CHECK(big.max_context == 16384);
    CHECK(big.head.tied);
    CHECK(big.bos_id == 0);
    CHECK(big.eos_ids == std::vector<int>{1, 4});
    CHECK(big.dtype == DType::bf16);
    CHECK(n_params(big) == 15735168);
    CHECK(load_config(models / "tiny-2m").dim == 192);
  }

  TEST_CASE("a shared model of another maker") {
    const std::filesystem::path model = test::source_dir() / "../shared/models/stories260K/hf";
    if (!std::filesystem::exists(model)) {
      MESSAGE("skipped: ../shared is not there");
      return;
    }
    const ModelConfig c = load_config(model);
    CHECK(c.head_dim == 8);
    CHECK(c.n_kv_heads == 4);
    CHECK(c.head.tied);
    CHECK(c.dtype == DType::f32);
  }
}

TEST_SUITE("model/synthetic_config") {
  TEST_CASE("named shapes have the published parameter counts") {
    CHECK(n_params(synthetic_config("llama-2-7b")) == 6738415616);
    CHECK(n_params(synthetic_config("llama-2-13b")) == 13015864320);
    CHECK(n_params(synthetic_config("codellama-34b")) == 33743970304);
    CHECK(n_params(synthetic_config("llama-3.1-8b")) == 8030261248);
    CHECK(n_params(synthetic_config("llama-3.1-70b")) == 70553706496);
    CHECK(n_params(synthetic_config("llama-3.2-1b")) == 1235814400);
    CHECK(n_params(synthetic_config("llama-68m")) == 68030208);
    CHECK(n_params(synthetic_config("smollm2-135m")) == 134515008);
    const ModelConfig c = synthetic_config("llama-3.2-1b");
    CHECK(c.head_dim == 64);
    CHECK(c.ropes[0].scaling == RopeScaling{RopeScalingKind::llama3, 32.0, 1.0, 4.0, 8192});
    CHECK(n_params(synthetic_config("phi-4")) == 14659507200);
    CHECK(n_params(synthetic_config("qwen3-0.6b")) == 596049920);
    CHECK(n_params(synthetic_config("qwen3-1.7b")) == 1720574976);
    CHECK(n_params(synthetic_config("qwen3-4b")) == 4022468096);
    CHECK(n_params(synthetic_config("qwen3-8b")) == 8190735360);
    CHECK(n_params(synthetic_config("qwen3-14b")) == 14768307200);
    CHECK(n_params(synthetic_config("qwen3-32b")) == 32762123264);
    const ModelConfig q = synthetic_config("qwen3-8b");
    CHECK(q.architecture == "Qwen3ForCausalLM");
    CHECK(q.qk_norm() == QkNorm::head);
    CHECK(q.head_dim == 128);
    CHECK(q.ropes[0].theta == 1e6);
    CHECK_FALSE(q.head.tied);
    CHECK(synthetic_config("qwen3-4b").head.tied);
    CHECK(n_params(synthetic_config("gemma-3-270m")) == 268098176);
    CHECK(n_params(synthetic_config("gemma-3-1b")) == 999885952);
    CHECK(n_params(synthetic_config("gemma-3-4b")) == 3880263168);
    CHECK(n_params(synthetic_config("gemma-3-12b")) == 11766034176);
    CHECK(n_params(synthetic_config("gemma-3-27b")) == 27009346304);
    CHECK(synthetic_names().size() == 21);
  }

  TEST_CASE("bytes of weights are those of the matrices' format, and of numbers for norms") {
    const WeightFormat groups(Code::i4, 64, ScaleType::f16, Zero::integer);
    for (const char* name : {"llama-2-7b", "llama-3.2-1b", "qwen3-4b"}) {
      CAPTURE(name);
      const ModelConfig c = synthetic_config(name);
      for (const auto& [type, bytes] : {std::pair{DType::bf16, 2}, {DType::f32, 4}}) {
        CHECK(weight_bytes(c, type) == n_params(c) * bytes);
        CHECK(step_bytes(c, type) == step_params(c) * bytes);
      }
      const int64_t ends = int64_t{c.vocab_size} * c.dim,
                    matrices =
                        static_cast<int64_t>(layer_flops(c)) / 2 + (c.head.tied ? ends : 2 * ends),
                    all = matrices / 64 * (32 + 3) + (n_params(c) - matrices) * 2;
      CHECK(weight_bytes(c, groups) == all);
      CHECK(step_bytes(c, groups) == double(all - (c.head.tied ? 0 : ends / 64 * (32 + 3))));
    }
  }

  TEST_CASE("a config.json or its folder serves as well") {
    const std::string folder = test::source_dir() / "recipes/models/tiny-2m";
    CHECK(synthetic_config(folder).dim == 192);
    CHECK(synthetic_config(folder + "/config.json").dim == 192);
  }

  TEST_CASE("any context may be asked of random weights, and none beyond that of trained ones") {
    recipe::Run run;
    run.context = {262144};
    CHECK(context_of(run, synthetic_config("llama-3.2-1b"), 16) == 262144);
    CHECK(context_of(run, synthetic_config(test::source_dir() / "recipes/models/tiny-2m")) ==
          262144);
    CHECK_THROWS_AS(context_of(run, load_config(test::source_dir() / "recipes/models/tiny-2m")),
                    Error);
    run.context = {0};
    CHECK(context_of(run, synthetic_config("llama-3.2-1b"), 16) == 131072 - 16);
  }

  TEST_CASE("an unknown name lists the known ones") {
    CHECK(input_error_text([] { synthetic_config("llama-9b"); }) ==
          "synthetic:llama-9b: 'llama-9b' is not a known shape or file");
    CHECK(test::hint_text([] { synthetic_config("llama-9b"); }) ==
          "known shapes: llama-2-7b, llama-2-7b-128k, llama-2-13b, codellama-34b, llama-3.1-8b, "
          "llama-3.1-70b, "
          "llama-3.2-1b, "
          "llama-68m, smollm2-135m, phi-4, gemma-3-270m, gemma-3-1b, gemma-3-4b, gemma-3-12b, "
          "gemma-3-27b, "
          "qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b, qwen3-14b, "
          "qwen3-32b; or give the "
          "path of a config.json");
  }
}
