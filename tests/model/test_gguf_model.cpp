#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <optional>

#include "error_text.h"
#include "gguf_bytes.h"
#include "io/gguf.h"
#include "io/json.h"
#include "model/gguf/gguf_arch.h"
#include "model/gguf/gguf_model.h"
#include "model/spec/context.h"
#include "safetensors_text.h"

using namespace tandem;
using namespace tandem::model;
using io::Json;
using test::GgufBytes;

namespace {

ModelConfig config_of(const GgufBytes& file) {
  const std::string image = file.bytes();
  return gguf_config(io::Gguf::parse(test::as_bytes(image), "m.gguf"));
}

std::string error_of(const GgufBytes& file) {
  return test::input_error_text([&] { config_of(file); });
}

/// Values of keys, after the architecture's name but for the tokenizer's; nullopt: the key is
/// absent.
using Numbers = std::map<std::string, std::optional<uint32_t>>;
using Reals = std::map<std::string, float>;

/// Keys of a small model, without tensors but for the embedding.
GgufBytes keys(const std::string& arch, int layers = 6, Numbers numbers = {}, Reals reals = {}) {
  GgufBytes file;
  file.text("general.architecture", arch);
  numbers.insert({{"embedding_length", 64},
                  {"feed_forward_length", 96},
                  {"attention.head_count", 4},
                  {"attention.head_count_kv", 2},
                  {"attention.key_length", 16},
                  {"block_count", static_cast<uint32_t>(layers)},
                  {"context_length", 4096}});
  reals.insert({"attention.layer_norm_rms_epsilon", 1e-6f});
  for (const auto& [key, value] : numbers)
    if (value) file.number(key.starts_with("tokenizer.") ? key : arch + "." + key, *value);
  for (const auto& [key, value] : reals) file.real(arch + "." + key, value);
  file.tensor("token_embd.weight", {64, 10}, 0, std::string(64 * 10 * 4, '\0'));
  return file;
}

/// Blocks of a type with numbers of common sizes: those of the golden file, with other codes.
std::string blocks_of(io::GgufType type, int64_t n, uint32_t seed) {
  std::string golden, all;
  for (const Json& block : test::golden_gguf().at("blocks"))
    if (block.at("id") == static_cast<uint32_t>(type) && golden.empty())
      golden =
          test::from_hex(block.at("hex")).substr(0, io::gguf_bytes(type, io::gguf_block(type)));
  // Bytes of codes in a block.
  const auto [first, last] = type == io::GgufType::q4_k   ? std::pair{16u, 144u}
                             : type == io::GgufType::q6_k ? std::pair{0u, 192u}
                             : type == io::GgufType::q5_0 ? std::pair{2u, 22u}
                             : type == io::GgufType::q5_1 ? std::pair{4u, 24u}
                                                          : std::pair{2u, 18u};
  for (int64_t i = 0; i < n; i += io::gguf_block(type)) {
    std::string block = golden;
    for (size_t at = first; at < last; ++at) {
      seed = seed * 1664525u + 1013904223u;
      block[at] = static_cast<char>(seed >> 24);
    }
    all += block;
  }
  return all;
}

/// A tied Llama of one layer with matrices in several encodings.
GgufBytes mixed_blocks() {
  GgufBytes file;
  file.text("general.architecture", "llama");
  for (const auto& [key, value] : {std::pair{"embedding_length", 256u},
                                   {"feed_forward_length", 256u},
                                   {"attention.head_count", 4u},
                                   {"attention.head_count_kv", 1u},
                                   {"attention.key_length", 64u},
                                   {"block_count", 1u},
                                   {"context_length", 64u}})
    file.number(std::string("llama.") + key, value);
  file.real("llama.attention.layer_norm_rms_epsilon", 1e-6f);
  uint32_t seed = 1;
  const auto add = [&](const std::string& name, uint64_t rows, io::GgufType type) {
    const std::string bytes = type == io::GgufType::f32
                                  ? std::string(rows * 256 * sizeof(float), '\0')
                                  : blocks_of(type, static_cast<int64_t>(rows) * 256, seed++);
    file.tensor(name, {256, rows}, static_cast<uint32_t>(type), bytes);
  };
  add("token_embd.weight", 10, io::GgufType::q6_k);
  for (const char* name : {"output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"})
    file.tensor(std::string(name) + ".weight", {256}, 0, std::string(1024, '\0'));
  add("blk.0.attn_q.weight", 256, io::GgufType::q4_k);
  add("blk.0.attn_k.weight", 64, io::GgufType::q4_0);
  add("blk.0.attn_v.weight", 64, io::GgufType::q6_k);
  add("blk.0.attn_output.weight", 256, io::GgufType::q5_0);
  add("blk.0.ffn_gate.weight", 256, io::GgufType::q5_1);
  add("blk.0.ffn_up.weight", 256, io::GgufType::q4_k);
  add("blk.0.ffn_down.weight", 256, io::GgufType::f32);
  return file;
}

}  // namespace

TEST_SUITE("model/gguf") {
  TEST_CASE("rows of q and k turn in pairs, in the order of llama.cpp's converter") {
    const Json& want = test::golden_gguf().at("qk_permutation");
    const int head_dim = want.at("head_dim");
    const std::vector<int64_t> rows = want.at("gguf_row_of_hf_row");
    for (size_t row = 0; row < rows.size(); ++row)
      CHECK(paired_row(static_cast<int64_t>(row), head_dim) == rows[row]);
  }

  TEST_CASE("factors of RoPE divide frequencies as Llama 3's scaling does") {
    const Json& want = test::golden_gguf().at("rope_freqs");
    const int head_dim = want.at("head_dim");
    ops::RopeSpec by_rule{want.at("theta"),
                          {.kind = RopeScalingKind::llama3,
                           .factor = want.at("factor"),
                           .low_freq_factor = want.at("low_freq_factor"),
                           .high_freq_factor = want.at("high_freq_factor"),
                           .original_context = want.at("original_context")}};
    const std::vector<float> factors = want.at("factors");
    const ops::RopeSpec by_factors{
        want.at("theta"),
        {.kind = RopeScalingKind::longrope, .short_factors = factors, .long_factors = factors}};
    const auto a = ops::rope_inverse_frequencies(by_rule, head_dim),
               b = ops::rope_inverse_frequencies(by_factors, head_dim);
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i) CHECK(a[i] == doctest::Approx(b[i]).epsilon(1e-5));
  }

  TEST_CASE("keys become those of config.json") {
    GgufBytes file = keys("llama");
    file.real("llama.rope.freq_base", 5e5f);
    file.text("llama.rope.scaling.type", "yarn");
    file.real("llama.rope.scaling.factor", 4);
    file.number("llama.rope.scaling.original_context_length", 1024);
    file.number("tokenizer.ggml.eos_token_id", 3);
    file.number("tokenizer.ggml.eot_token_id", 5);
    ModelConfig c = config_of(file);
    CHECK(c.architecture == "LlamaForCausalLM");
    CHECK(c.n_kv_heads == 2);
    CHECK(c.head.tied);
    CHECK(c.ropes[0].theta == 5e5);
    CHECK(c.ropes[0].scaling.kind == RopeScalingKind::yarn);
    CHECK(c.ropes[0].scaling.original_context == 1024);
    CHECK(c.eos_ids == std::vector{3, 5});

    file = keys("llama");
    file.number("llama.attention.sliding_window", 32);
    c = config_of(file);
    CHECK(c.architecture == "MistralForCausalLM");
    CHECK(c.layer(0).attention.window == 32);

    file = keys("gemma3", 62);
    file.number("gemma3.attention.sliding_window", 32);
    file.real("gemma3.rope.scaling.factor", 8);
    c = config_of(file);
    CHECK(c.layer(5).attention.window == 0);
    CHECK(c.layer(6).attention.window == 32);
    CHECK(c.layer(0).attention.scale == ops::ScoreScale{.of = 16});  // 64 / 4, of 27B
    CHECK(c.ropes[0].scaling == RopeScaling{RopeScalingKind::linear, 8});
    CHECK(c.ropes[1].scaling == RopeScaling{});
    CHECK_FALSE(c.norms().unit_offset);

    c = config_of(keys("granite"));
    CHECK(c.layer(0).attention.scale.f64() == 0.25);
    file = keys("phi3");
    file.number("phi3.rope.dimension_count", 14);
    CHECK(config_of(file).ropes[0].dims == 14);
  }

  TEST_CASE("keys that no code serves are refused by name") {
    const auto error = [](const char* arch, const auto& change) {
      GgufBytes file = keys(arch);
      change(file);
      return error_of(file);
    };
    CHECK(error_of(keys("gpt2")) == "m.gguf: architecture 'gpt2' is not supported in GGUF files");
    CHECK(error("llama", [](auto& f) { f.number("llama.expert_count", 8); }) ==
          "m.gguf: holds a mixture of experts (MoE), which is not supported");
    CHECK(error("llama", [](auto& f) { f.text("general.type", "adapter"); }) ==
          "m.gguf: holds 'adapter', expected a model");
    CHECK(error("llama", [](auto& f) { f.number("llama.vocab_size", 11); }) ==
          "m.gguf: key 'llama.vocab_size' is 11, but 'token_embd.weight' has 10 rows");
    CHECK(error("llama", [](auto& f) { f.number("llama.rope.dimension_count", 8); }) ==
          "m.gguf: key 'llama.rope.dimension_count' is 8, but heads have 16 dimensions");
    CHECK(error("llama", [](auto& f) { f.number("llama.attention.value_length", 8); }) ==
          "m.gguf: heads of keys and of values differ: 16 and 8");
    CHECK(error("llama", [](auto& f) { f.text("llama.rope.scaling.type", "longrope"); }) ==
          "m.gguf: RoPE scaling 'longrope' is not supported");
    CHECK(
        error("llama", [](auto& f) {
          f.text("llama.rope.scaling.type", "yarn");
          f.real("llama.rope.scaling.factor", 4);
          f.real("llama.rope.scaling.yarn_ext_factor", 0.25f);
        }) == "m.gguf: key 'llama.rope.scaling.yarn_ext_factor': only 1 is supported, found 0.25");
    CHECK(error("gemma3", [](auto&) {}) ==
          "m.gguf: key 'gemma3.attention.sliding_window' is missing");
    CHECK(error("olmo2", [](auto& f) { f.number("olmo2.attention.sliding_window", 8); }) ==
          "m.gguf: holds OLMo 3, which is not supported");
    GgufBytes file;
    file.text("general.architecture", "llama");
    file.tensor("token_embd.weight", {64, 10}, 0, std::string(64 * 10 * 4, '\0'));
    CHECK(error_of(file) == "m.gguf: key 'llama.embedding_length' is missing");
    file = test::tiny_gguf();
    file.list<uint32_t>("llama.attention.head_count_kv", 4, {1, 2});
    CHECK(error_of(file) ==
          "m.gguf: key 'llama.attention.head_count_kv' differs between layers, which is not "
          "supported");
  }

  TEST_CASE("matrices in blocks come as codes, or as the numbers of their blocks") {
    const std::string image = mixed_blocks().bytes();
    const io::Gguf file = io::Gguf::parse(test::as_bytes(image), "m.gguf");
    const ModelConfig c = gguf_config(file);
    const auto source = gguf_source(c, io::Gguf::parse(test::as_bytes(image), "m.gguf"));
    struct Want {
      MatrixId id;
      const char *tensor, *format;
    };
    for (const Want& want : {Want{{Role::embedding}, "token_embd.weight", "i6 g16 two-level"},
                             Want{{Role::head}, "token_embd.weight", "i6 g16 two-level"},
                             Want{{Role::q}, "blk.0.attn_q.weight", "i4 g32 two-level minimum"},
                             Want{{Role::k}, "blk.0.attn_k.weight", "i4 g32 f16"},
                             Want{{Role::v}, "blk.0.attn_v.weight", "i6 g16 two-level"},
                             Want{{Role::o}, "blk.0.attn_output.weight", "i5 g32 f16"},
                             Want{{Role::gate}, "blk.0.ffn_gate.weight", "i5 g32 f16 minimum"},
                             Want{{Role::up}, "blk.0.ffn_up.weight", "i4 g32 two-level minimum"}}) {
      CAPTURE(canonical_name(want.id));
      const WeightFormat format = source->native(want.id);
      CHECK(format_name(format) == want.format);
      const io::GgufTensor& t = *file.find(want.tensor);
      const int64_t n = t.shape[0], in = t.shape[1];
      const bool turns = want.id.role == Role::q || want.id.role == Role::k;
      std::vector<std::byte> codes(matrix_bytes(format, n, in)), blocks(io::gguf_bytes(t.type, in)),
          row(row_bytes(format, in));
      std::vector<float> numbers(static_cast<size_t>(n * in)), exact(static_cast<size_t>(in));
      source->rows(want.id, 0, n, format, codes.data());
      source->rows(want.id, 0, n, DType::f32, numbers.data());
      for (int64_t r = 0; r < n; ++r) {
        CAPTURE(r);
        file.read(t,
                  io::gguf_bytes(t.type, in) * static_cast<size_t>(turns ? paired_row(r, 64) : r),
                  blocks);
        REQUIRE(io::gguf_codes(t.type, blocks.data(), in, row.data()));
        REQUIRE(std::memcmp(codes.data() + static_cast<size_t>(r) * row.size(), row.data(),
                            row.size()) == 0);
        io::decode_gguf(t.type, blocks.data(), in, exact.data());
        REQUIRE(std::memcmp(numbers.data() + r * in, exact.data(), exact.size() * sizeof(float)) ==
                0);
      }
    }
    CHECK((source->native({Role::down}) == DType::f32));
    std::vector<float> embedded(256), head(256);
    source->embed(std::vector<int32_t>{7}, embedded.data());
    source->rows({Role::head}, 7, 8, DType::f32, head.data());
    CHECK(embedded == head);
    const auto refusal = [&](MatrixId id, const WeightFormat& to) {
      return test::input_error_text([&] { source->rows(id, 0, 1, to, embedded.data()); });
    };
    const WeightFormat other(Code::i4, 128, ScaleType::f16, Zero::none);
    CHECK(refusal({Role::k}, other) ==
          "blk.0.attn_k.weight: is stored as i4 g32 f16, which cannot be converted to i4 g128 f16");
    CHECK(refusal({Role::k}, DType::f16).ends_with("i4 g32 f16, which cannot be converted to f16"));
    CHECK(refusal({Role::down}, other)
              .ends_with("is stored as f32, which cannot be converted to "
                         "i4 g128 f16"));
    std::string damaged = image;
    damaged[file.find("blk.0.attn_output.weight")->begin + 1] = 0x7e;  // the first scale's exponent
    const auto bad = gguf_source(c, io::Gguf::parse(test::as_bytes(damaged), "m.gguf"));
    for (const WeightFormat& to : {bad->native({Role::o}), WeightFormat(DType::f32)})
      CHECK(test::input_error_text([&] { bad->rows({Role::o}, 0, 1, to, embedded.data()); }) ==
            "m.gguf: tensor 'blk.0.attn_output.weight': a scale in Q5_0 is infinite or NaN");
  }

  TEST_CASE("bad values are refused under the names of the GGUF file") {
    struct Case {
      const char* arch;
      Numbers numbers;
      Reals reals;
      const char* message;  // after "m.gguf: "
    };
    const Case cases[] = {
        {"llama",
         {{"block_count", 5000}},
         {},
         "key 'llama.block_count': expected an integer from 1 to 4096, found the number 5000"},
        {"llama",
         {{"embedding_length", 0}},
         {},
         "key 'llama.embedding_length': expected an integer from 1 to 1048576, found the number 0"},
        {"llama",
         {{"feed_forward_length", 0}},
         {},
         "key 'llama.feed_forward_length': expected an integer from 1 to 1048576, found the number "
         "0"},
        {"qwen2",
         {{"attention.head_count", 0}},
         {},
         "key 'qwen2.attention.head_count': expected an integer from 1 to 16384, found the number "
         "0"},
        {"llama",
         {{"attention.head_count_kv", 3}},
         {},
         "'llama.attention.head_count' 4 is not a multiple of 'llama.attention.head_count_kv' 3"},
        {"llama",
         {{"attention.head_count_kv", 8}},
         {},
         "key 'llama.attention.head_count_kv': expected an integer from 1 to 4, found the number "
         "8"},
        {"llama",
         {{"context_length", 0}},
         {},
         "key 'llama.context_length': expected an integer from 1 to 1073741824, found the number "
         "0"},
        {"llama",
         {{"attention.key_length", 0}},
         {},
         "key 'llama.attention.key_length': expected an integer from 2 to 262144, found the number "
         "0"},
        {"llama",
         {{"attention.key_length", 7}},
         {},
         "'llama.attention.key_length' 7 is odd, expected an even number for RoPE"},
        {"llama",
         {{"attention.key_length", {}}, {"embedding_length", 60}},
         {},
         "'llama.embedding_length' / 'llama.attention.head_count' 15 is odd, expected an even "
         "number for RoPE"},
        {"llama",
         {{"attention.key_length", {}}, {"embedding_length", 3}},
         {},
         "'llama.embedding_length' / 'llama.attention.head_count': expected an integer from 2 to "
         "262144, found the number 0"},
        {"llama",
         {{"attention.sliding_window", 1u << 31}},
         {},
         "key 'llama.attention.sliding_window': expected an integer from 1 to 1073741824, found "
         "the number 2147483648"},
        {"gemma3",
         {{"attention.sliding_window", 32}, {"attention.sliding_window_pattern", 0}},
         {},
         "key 'gemma3.attention.sliding_window_pattern': expected an integer from 1 to 4096, found "
         "the number 0"},
        {"phi3",
         {{"rope.dimension_count", 7}},
         {},
         "key 'phi3.rope.dimension_count': expected an even number from 2 to 16, found 7"},
        {"phi3",
         {{"rope.dimension_count", 18}},
         {},
         "key 'phi3.rope.dimension_count': expected an even number from 2 to 16, found 18"},
        {"llama",
         {{"tokenizer.ggml.eos_token_id", 1u << 24}},
         {},
         "key 'tokenizer.ggml.eos_token_id': expected a number from 0 to 16777215, found 16777216"},
        {"llama",
         {{"tokenizer.ggml.bos_token_id", 1u << 24}},
         {},
         "key 'tokenizer.ggml.bos_token_id': expected a number from 0 to 16777215, found 16777216"},
        {"llama",
         {},
         {{"attention.layer_norm_rms_epsilon", 2}},
         "key 'llama.attention.layer_norm_rms_epsilon': expected a number from 0 to 1, found 2"},
        {"llama",
         {},
         {{"rope.freq_base", 0.5f}},
         "key 'llama.rope.freq_base': expected a number from 1 to 1000000000000, found 0.5"},
        {"gemma3",
         {{"attention.sliding_window", 32}},
         {{"rope.freq_base_swa", 0.5f}},
         "key 'gemma3.rope.freq_base_swa': expected a number from 1 to 1000000000000, found 0.5"},
        {"llama",
         {},
         {{"rope.scaling.factor", 0.5f}},
         "key 'llama.rope.scaling.factor': expected a number from 1 to 1000000, found 0.5"},
        {"llama",
         {},
         {{"rope.scale_linear", 0.5f}},
         "key 'llama.rope.scale_linear': expected a number from 1 to 1000000, found 0.5"},
        {"granite",
         {},
         {{"logit_scale", 0}},
         "key 'granite.logit_scale': expected a number from 1e-06 to 1e+06, found 0"},
        {"granite",
         {},
         {{"attention.scale", 0}},
         "key 'granite.attention.scale': expected a number from 1e-06 to 1e+06, found 0"}};
    for (const Case& c : cases) {
      const GgufBytes file = keys(c.arch, 6, c.numbers, c.reals);
      CHECK(error_of(file) == std::string("m.gguf: ") + c.message);
      CHECK(test::hint_text([&] { config_of(file); }).find("config.json") == std::string::npos);
    }
    GgufBytes file = keys("llama");
    file.tensor("rope_freqs.weight", {3}, 0, std::string(12, '\0'));
    CHECK(error_of(file) ==
          "m.gguf: tensor 'rope_freqs.weight': expected 8 factors, one for each pair that turns, "
          "found 3");
    file = keys("llama");
    file.text("llama.rope.scaling.type", "yarn");
    file.real("llama.rope.scaling.factor", 4);
    file.real("llama.rope.scaling.yarn_beta_fast", 1);
    file.real("llama.rope.scaling.yarn_beta_slow", 2);
    CHECK(error_of(file) ==
          "m.gguf: 'llama.rope.scaling.yarn_beta_fast' 1 must exceed "
          "'llama.rope.scaling.yarn_beta_slow' 2");
    recipe::Run run;
    run.context = {5000};
    CHECK(test::hint_text([&] {
            context_of(run, config_of(keys("llama")));
          }).ends_with("or raise llama.context_length if the model was trained for more"));
  }

  TEST_CASE("tensors that are missing, of another shape or unexpected are listed") {
    const auto source_error = [](const GgufBytes& file) {
      const std::string image = file.bytes();
      return test::input_error_text([&] {
        io::Gguf parsed = io::Gguf::parse(test::as_bytes(image), "m.gguf");
        const ModelConfig config = gguf_config(parsed);
        gguf_source(config, std::move(parsed));
      });
    };
    GgufBytes file = test::tiny_gguf();
    file.tensor("blk.0.attn_k_norm.weight", {4}, 0, std::string(16, 'x'));
    CHECK(source_error(file) ==
          "m.gguf: 1 tensor is not as its metadata require: 'blk.0.attn_k_norm.weight': unexpected "
          "in a model of this architecture");
    file = keys("llama", 1);
    CHECK(source_error(file).starts_with(
        "m.gguf: 10 tensors are not as its metadata require: output_norm.weight: missing, "
        "expected shape [64]; "));
  }
}
