// Model folders that other programs quantized.
#include <doctest/doctest.h>

#include <cstring>

#include "base/convert.h"
#include "error_text.h"
#include "model/families/family.h"
#include "model/spec/quantization.h"
#include "model/weights/shard.h"
#include "model/weights/weight_source.h"
#include "ops/quantizing.h"
#include "quantized_folder.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::model;
using io::Json;
using test::from_hex;
using test::QuantizedFolder;

namespace {

constexpr MatrixId kHead{Role::head};

/// A folder whose head is a golden matrix, [out, in].
QuantizedFolder folder_of(const std::string& method, int64_t out, int64_t in, const Json& section) {
  QuantizedFolder f{{{"architectures", {"LlamaForCausalLM"}},
                     {"hidden_size", in},
                     {"num_hidden_layers", 1},
                     {"num_attention_heads", 1},
                     {"head_dim", 4},
                     {"intermediate_size", 8},
                     {"vocab_size", out},
                     {"quantization_config", section}}};
  f.config["quantization_config"]["quant_method"] = method;
  ModelConfig c = parse_config(f.config.dump(), "config.json");
  for (const MatrixId& id : all_matrices(c)) {
    if (id == kHead) continue;
    const io::Shape shape = shape_of(id.role, c);
    const int64_t n = shape[0] * (shape.size() > 1 ? shape[1] : 1);
    f.tensors[canonical_name(id)] = {"F32", shape, std::string(static_cast<size_t>(n) * 4, '\0')};
  }
  return f;
}

Json compressed(const char* format, const Json& weights) {
  return {{"format", format},
          {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", {{"targets", {"lm_head"}}, {"weights", weights}}}}},
          {"ignore", Json::array()}};
}

/// The golden matrices as folders, each with the format of its codes in memory.
struct Case {
  std::string name, format;
  QuantizedFolder folder;
  std::string want;  // f32
};

QuantizedFolder awq() {
  const Json& j = test::golden_folders()["awq_gemm"];
  QuantizedFolder f = folder_of(
      "awq", 16, 64, {{"bits", 4}, {"group_size", 32}, {"zero_point", true}, {"version", "gemm"}});
  f.tensors["lm_head.qweight"] = {"I32", j["qweight_shape"], from_hex(j["qweight_i32_le_hex"])};
  f.tensors["lm_head.qzeros"] = {"I32", j["qzeros_shape"], from_hex(j["qzeros_i32_le_hex"])};
  f.tensors["lm_head.scales"] = {"F16", j["scales_shape"], from_hex(j["scales_f16_hex"])};
  return f;
}

QuantizedFolder gptq(const std::string& name, bool v2) {
  const Json& j = test::golden_folders()[name];
  QuantizedFolder f = folder_of("gptq", 16, 64,
                                {{"bits", j["bits"]},
                                 {"group_size", j["group_size"]},
                                 {"desc_act", j["desc_act"]},
                                 {"sym", j["sym"]},
                                 {"checkpoint_format", v2 ? "gptq_v2" : "gptq"}});
  const std::vector<int32_t> order = j["g_idx"];
  f.tensors["lm_head.qweight"] = {"I32", j["qweight_shape"], from_hex(j["qweight_i32_le_hex"])};
  f.tensors["lm_head.qzeros"] = {"I32", j["qzeros_shape"],
                                 from_hex(j[v2 ? "qzeros_v2_i32_le_hex" : "qzeros_v1_i32_le_hex"])};
  f.tensors["lm_head.scales"] = {"F16", j["scales_shape"], from_hex(j["scales_f16_hex"])};
  f.tensors["lm_head.g_idx"] = {"I32", {64}, test::bytes_of(order)};
  return f;
}

QuantizedFolder packed(const std::string& name) {
  const Json& j = test::golden_folders()[name];
  const std::vector<int64_t> shape = j["weight_shape"];
  QuantizedFolder f = folder_of("compressed-tensors", shape[0], shape[1],
                                compressed("pack-quantized", {{"num_bits", j["bits"]},
                                                              {"type", "int"},
                                                              {"symmetric", j["symmetric"]},
                                                              {"strategy", j["strategy"]},
                                                              {"group_size", j["group_size"]}}));
  f.tensors["lm_head.weight_packed"] = {"I32", j["weight_packed_shape"],
                                        from_hex(j["weight_packed_i32_le_hex"])};
  f.tensors["lm_head.weight_scale"] = {"BF16", j["weight_scale_shape"],
                                       from_hex(j["weight_scale_bf16_hex"])};
  f.tensors["lm_head.weight_shape"] = {"I64", {2}, test::bytes_of(shape)};
  if (j.contains("weight_zero_point_shape"))
    f.tensors["lm_head.weight_zero_point"] = {"I32", j["weight_zero_point_shape"],
                                              from_hex(j["weight_zero_point_i32_le_hex"])};
  return f;
}

QuantizedFolder fp8(const std::string& name, const std::string& method, const Json& section,
                    const char* scale, const char* scale_type) {
  const Json& j = test::golden_folders()[name];
  const std::vector<int64_t> shape = j["weight_shape"];
  QuantizedFolder f = folder_of(method, shape[0], shape[1], section);
  const std::string key = name == "fp8_block" ? "weight_scale_inv" : "weight_scale";
  f.tensors["lm_head.weight"] = {"F8_E4M3", shape, from_hex(j["weight_hex"])};
  f.tensors[std::string("lm_head.") + scale] = {
      scale_type, j[key + "_shape"],
      from_hex(j[key + (scale_type == std::string("F32") ? "_f32_hex" : "_bf16_hex")])};
  return f;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const std::string& name, const char* format, QuantizedFolder f) {
    all.push_back({name, format, std::move(f),
                   from_hex(test::golden_folders()[name]["weight_out_in_f32_hex"])});
  };
  add("awq_gemm", "i4 g32 f16 integer", awq());
  for (const bool v2 : {false, true}) {
    add("gptq_4_sym", "i4 g32 f16", gptq("gptq_4_sym", v2));
    add("gptq_4_asym", "i4 g32 f16 integer", gptq("gptq_4_asym", v2));
    add("gptq_4_asym_desc_act", "f32", gptq("gptq_4_asym_desc_act", v2));
    add("gptq_8_sym", "i8 g32 f16", gptq("gptq_8_sym", v2));
  }
  const std::pair<const char*, const char*> words[] = {
      {"ct_pack_4_sym_g32", "i4 g32 bf16"},      {"ct_pack_4_asym_g32", "i4 g32 bf16 integer"},
      {"ct_pack_8_sym_channel_in36", "i8 bf16"}, {"ct_pack_4_sym_channel_in40", "i4 bf16"},
      {"ct_pack_4_sym_channel_in36", "i4 bf16"}, {"ct_pack_8_asym_g32", "i8 g32 bf16 integer"}};
  for (const auto& [name, format] : words) add(name, format, packed(name));
  const auto floats = [](const char* strategy) {
    return compressed("float-quantized",
                      {{"num_bits", 8}, {"type", "float"}, {"strategy", strategy}});
  };
  add("fp8_per_channel", "fp8 f32",
      fp8("fp8_per_channel", "compressed-tensors", floats("channel"), "weight_scale", "BF16"));
  add("fp8_per_tensor", "fp8 f32",
      fp8("fp8_per_tensor", "compressed-tensors", floats("tensor"), "weight_scale", "F32"));
  add("fp8_per_tensor", "fp8 f32",
      fp8("fp8_per_tensor", "fp8", {{"activation_scheme", "static"}}, "weight_scale", "F32"));
  add("fp8_block", "f32",
      fp8("fp8_block", "fp8", {{"weight_block_size", {4, 8}}, {"fmt", "e4m3"}}, "weight_scale_inv",
          "F32"));
  return all;
}

struct Opened {
  ModelConfig config;
  std::unique_ptr<WeightSource> source;
  std::vector<std::string> notes;
};

Opened open(const QuantizedFolder& f, const std::filesystem::path& folder) {
  f.write(folder);
  Opened m;
  m.config = load_config(folder);
  m.source = checkpoint_source(m.config, Checkpoint::open(folder), &m.notes);
  return m;
}

std::string error_of(const QuantizedFolder& f) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path().string() + "/";
  std::string text = test::input_error_text([&] { open(f, folder.path()); });
  for (size_t at = 0; (at = text.find(path)) != std::string::npos;) text.erase(at, path.size());
  return text;
}

/// The only problem with the tensors of a folder.
std::string problem_of(const QuantizedFolder& f) {
  const std::string text = error_of(f),
                    start = "model.safetensors: 1 tensor is not as config.json requires it:\n  ";
  return text.starts_with(start) ? text.substr(start.size()) : text;
}

std::string section_error(const std::string& method, Json section) {
  section["quant_method"] = method;
  std::string text = test::input_error_text([&] { parse_quantization(section, "c"); });
  const std::string start = "c: quantization_config: ";
  return text.starts_with(start) ? text.substr(start.size()) : text;
}

}  // namespace

TEST_SUITE("model/quantized-folders") {
  TEST_CASE("every format decodes to the golden numbers, bit for bit, as numbers and as codes") {
    for (const Case& c : cases()) {
      CAPTURE(c.name);
      const test::TemporaryFolder folder;
      const Opened m = open(c.folder, folder.path());
      const int64_t out = m.config.vocab_size, in = m.config.dim;
      REQUIRE(c.want.size() == static_cast<size_t>(out * in * 4));
      CHECK(format_name(m.source->native(kHead)) == c.format);
      std::vector<float> found(static_cast<size_t>(out * in));
      m.source->rows(kHead, 0, out, DType::f32, found.data());
      CHECK(std::memcmp(found.data(), c.want.data(), c.want.size()) == 0);
      // Rows from any row on, as ranks read them.
      for (int64_t begin = out - 1; begin >= 0; --begin) {
        std::vector<float> row(static_cast<size_t>(in));
        m.source->rows(kHead, begin, begin + 1, DType::f32, row.data());
        CHECK(std::memcmp(row.data(), c.want.data() + begin * in * 4,
                          static_cast<size_t>(in) * 4) == 0);
      }
      std::vector<bf16> rounded(found.size());
      m.source->rows(kHead, 0, out, DType::bf16, rounded.data());
      int wrong = 0;
      for (size_t i = 0; i < found.size(); ++i)
        wrong += rounded[i].bits == to_bf16(found[i]).bits ? 0 : 1;
      CHECK(wrong == 0);
      const WeightFormat format = m.source->native(kHead);
      if (!is_coded(format)) continue;
      std::vector<std::byte> codes(matrix_bytes(format, out, in));
      m.source->rows(kHead, 0, out, format, codes.data());
      std::vector<float> decoded(found.size());
      ops::dequantize(decoded.data(), DType::f32, codes.data(), format, out, in);
      CHECK(std::memcmp(decoded.data(), c.want.data(), c.want.size()) == 0);
    }
  }

  TEST_CASE("every E4M3 code has its golden value, and NaN is refused") {
    const Json& table = test::golden_folders()["fp8_e4m3fn_table"];
    const std::string want = from_hex(table["values_f32_hex"]);
    const Json section = {{"weight_block_size", {128, 128}}};
    QuantizedFolder f = folder_of("fp8", 2, 256, section);
    std::string codes(512, '\0');
    for (int i = 0; i < 256; ++i)
      codes[static_cast<size_t>(i)] = static_cast<char>(i % 128 == 127 ? 0 : i);
    f.tensors["lm_head.weight"] = {"F8_E4M3", {2, 256}, codes};
    f.tensors["lm_head.weight_scale_inv"] = {"F32", {1, 2}, test::bytes_of<float>({1, 1})};
    const test::TemporaryFolder folder;
    std::vector<float> found(256);
    const Opened m = open(f, folder.path());
    m.source->rows(kHead, 0, 1, DType::f32, found.data());
    for (size_t i = 0; i < 256; ++i) {
      if (i % 128 != 127) CHECK(std::memcmp(&found[i], want.data() + 4 * i, 4) == 0);
    }
    f.tensors["lm_head.weight"].bytes[256 + 7] = '\x7f';
    const Opened bad = open(f, folder.path());
    CHECK(test::input_error_text([&] {
            bad.source->rows(kHead, 1, 2, DType::f32, found.data());
          }) == (folder / "model.safetensors").string() +
                    ": tensor 'lm_head.weight': weight 7 of row 1 is NaN");
  }

  TEST_CASE("zeros of GPTQ v1 wrap around: a stored 15 is 0") {
    std::vector<float> found[2];
    for (const bool v2 : {false, true}) {
      QuantizedFolder f = gptq("gptq_4_asym", v2);
      std::ranges::fill(f.tensors["lm_head.qzeros"].bytes, v2 ? '\0' : '\xff');
      const test::TemporaryFolder folder;
      const Opened m = open(f, folder.path());
      found[v2].resize(16 * 64);
      m.source->rows(kHead, 0, 16, DType::f32, found[v2].data());
    }
    CHECK(found[0] == found[1]);
    CHECK(*std::ranges::min_element(found[0]) == 0);
  }

  TEST_CASE("zeros of compressed-tensors may be bytes, as old versions store them") {
    const Json& j = test::golden_folders()["ct_pack_4_asym_g32"];
    const std::string words = from_hex(j["weight_zero_point_i32_le_hex"]),
                      want = from_hex(j["weight_out_in_f32_hex"]);
    std::vector<int8_t> zeros;
    for (size_t o = 0; o < 12; ++o)
      for (size_t g = 0; g < 2; ++g) {
        uint32_t word = 0;
        std::memcpy(&word, words.data() + 4 * (o / 8 * 2 + g), 4);
        zeros.push_back(static_cast<int8_t>(static_cast<int>(word >> 4 * (o % 8) & 15) - 8));
      }
    QuantizedFolder f = packed("ct_pack_4_asym_g32");
    f.tensors["lm_head.weight_zero_point"] = {"I8", {12, 2}, test::bytes_of(zeros)};
    const test::TemporaryFolder folder;
    const Opened m = open(f, folder.path());
    std::vector<float> found(12 * 64);
    m.source->rows(kHead, 0, 12, DType::f32, found.data());
    CHECK(std::memcmp(found.data(), want.data(), want.size()) == 0);
  }

  TEST_CASE("int8 of compressed-tensors has codes of rows, and its zeros count") {
    const auto weights = [](bool symmetric) {
      return compressed(
          "int-quantized",
          {{"num_bits", 8}, {"type", "int"}, {"symmetric", symmetric}, {"strategy", "channel"}});
    };
    for (const bool symmetric : {true, false}) {
      QuantizedFolder f = folder_of("compressed-tensors", 2, 6, weights(symmetric));
      f.tensors["lm_head.weight"] = {
          "I8", {2, 6}, test::bytes_of<int8_t>({-128, -1, 0, 1, 2, 127, 5, 6, 7, 8, 9, -10})};
      f.tensors["lm_head.weight_scale"] = {"F32", {2, 1}, test::bytes_of<float>({0.5f, 0.25f})};
      if (!symmetric)
        f.tensors["lm_head.weight_zero_point"] = {"I8", {2, 1}, test::bytes_of<int8_t>({3, -4})};
      const test::TemporaryFolder folder;
      const Opened m = open(f, folder.path());
      const WeightFormat format = m.source->native(kHead);
      CHECK(format_name(format) == (symmetric ? "i8 bf16" : "i8 bf16 integer"));
      std::vector<std::byte> codes(matrix_bytes(format, 2, 6));
      m.source->rows(kHead, 0, 2, format, codes.data());
      std::vector<float> found(12);
      ops::dequantize(found.data(), DType::f32, codes.data(), format, 2, 6);
      CHECK(found[0] == (symmetric ? -64 : -65.5f));
      CHECK(found[5] == (symmetric ? 63.5f : 62));
      CHECK(found[11] == (symmetric ? -2.5f : -1.5f));
    }
  }

  TEST_CASE("scales in f32 are kept, in bf16 or f16 where these hold all of them") {
    const auto open_with = [](float scale) {
      QuantizedFolder f =
          folder_of("compressed-tensors", 1, 32,
                    compressed("int-quantized",
                               {{"num_bits", 8}, {"strategy", "group"}, {"group_size", 16}}));
      f.tensors["lm_head.weight"] = {"I8", {1, 32}, std::string(32, '\3')};
      f.tensors["lm_head.weight_scale"] = {"F32", {1, 2}, test::bytes_of<float>({1, scale})};
      const test::TemporaryFolder folder;
      const Opened m = open(f, folder.path());
      const WeightFormat format = m.source->native(kHead);
      std::vector<std::byte> codes(matrix_bytes(format, 1, 32));
      m.source->rows(kHead, 0, 1, format, codes.data());
      std::vector<float> found(32);
      ops::dequantize(found.data(), DType::f32, codes.data(), format, 1, 32);
      CHECK(found[31] == 3 * scale);
      return format_name(format);
    };
    CHECK(open_with(0x1p-40f) == "i8 g16 bf16");
    CHECK(open_with(1 + 0x1p-10f) == "i8 g16 f16");
    CHECK(open_with(1 + 0x1p-20f) == "i8 g16 f32");
    CHECK(open_with(0x1.001p-30f) == "i8 g16 f32");
  }

  TEST_CASE("rows of a fused matrix are those of its parts") {
    const std::string want = from_hex(test::golden_folders()["awq_gemm"]["weight_out_in_f32_hex"]);
    QuantizedFolder f = awq();
    std::map<std::string, QuantizedFolder::Tensor> codes;
    for (const char* end : {"qweight", "qzeros", "scales"})
      codes["model.layers.0.mlp.gate_up_proj." + std::string(end)] =
          f.tensors["lm_head." + std::string(end)];
    f.tensors = codes;
    f.config["architectures"] = {"Phi3ForCausalLM"};
    const ModelConfig c = parse_config(f.config.dump(), "config.json");
    for (const MatrixId& id : all_matrices(c)) {
      const auto [name, first, shape] = stored_part(id, c);
      if (id.role == Role::gate || id.role == Role::up) continue;
      const int64_t n = shape[0] * (shape.size() > 1 ? shape[1] : 1);
      f.tensors[name] = {"F32", shape, std::string(static_cast<size_t>(n) * 4, '\0')};
    }
    const test::TemporaryFolder folder;
    const Opened m = open(f, folder.path());
    const size_t half = want.size() / 2;
    std::vector<float> found(half / 4);
    for (const Role role : {Role::gate, Role::up}) {
      const WeightFormat format = m.source->native({role});
      CHECK(format_name(format) == "i4 g32 f16 integer");
      std::vector<std::byte> rows(matrix_bytes(format, 8, 64));
      m.source->rows({role}, 0, 8, format, rows.data());
      ops::dequantize(found.data(), DType::f32, rows.data(), format, 8, 64);
      CHECK(std::memcmp(found.data(), want.data() + (role == Role::up ? half : 0), half) == 0);
    }
  }

  TEST_CASE("columns that are read in several strips") {
    constexpr int64_t kOut = 1040, kIn = 16384;  // a strip has 1024 outputs
    const auto nibble = [](int64_t o, int64_t k) { return (o * 7 + k * 5 + k / 64) % 16; };
    QuantizedFolder f = folder_of("awq", kOut, kIn, {{"bits", 4}, {"group_size", -1}});
    constexpr int kShifts[] = {0, 16, 4, 20, 8, 24, 12, 28};
    std::vector<uint32_t> words;
    for (int64_t k = 0; k < kIn; ++k)
      for (int64_t o = 0; o < kOut; o += 8) {
        uint32_t word = 0;
        for (int lane = 0; lane < 8; ++lane)
          word |= static_cast<uint32_t>(nibble(o + lane, k)) << kShifts[lane];
        words.push_back(word);
      }
    f.tensors["lm_head.qweight"] = {"I32", {kIn, kOut / 8}, test::bytes_of(words)};
    f.tensors["lm_head.qzeros"] = {"I32", {1, kOut / 8}, std::string(kOut / 2, '\0')};
    const std::vector<uint16_t> ones(kOut, 0x3c00);
    f.tensors["lm_head.scales"] = {"F16", {1, kOut}, test::bytes_of(ones)};
    const test::TemporaryFolder folder;
    const Opened m = open(f, folder.path());
    std::vector<float> found(16 * kIn);
    for (const auto& [begin, end] : {std::pair{1016, 1032}, {0, 8}, {1023, 1024}, {1027, 1040}}) {
      m.source->rows(kHead, begin, end, DType::f32, found.data());
      int wrong = 0;
      for (int64_t o = begin; o < end; ++o)
        for (int64_t k = 0; k < kIn; ++k)
          wrong +=
              found[static_cast<size_t>((o - begin) * kIn + k)] == static_cast<float>(nibble(o, k))
                  ? 0
                  : 1;
      CHECK(wrong == 0);
    }
  }

  TEST_CASE("a quantized head is used even where config.json ties it") {
    QuantizedFolder f = awq();
    f.config["tie_word_embeddings"] = true;
    const test::TemporaryFolder folder;
    f.write(folder.path());
    ModelConfig c = load_config(folder.path());
    CHECK(c.head.tied);
    CHECK(settle_head(c, Checkpoint::open(folder.path())).find("quantized head") !=
          std::string::npos);
    CHECK_FALSE(c.head.tied);
  }

  TEST_CASE("notes say what the file has and what is decoded") {
    const auto notes = [](const QuantizedFolder& f) {
      const test::TemporaryFolder folder;
      return open(f, folder.path()).notes;
    };
    CHECK(notes(awq()) ==
          std::vector<std::string>{"file     matrices: 1 in AWQ int4 g32, 8 not quantized"});
    CHECK(
        notes(gptq("gptq_4_asym_desc_act", false)) ==
        std::vector<std::string>{
            "file     matrices: 1 in GPTQ int4 g32, 8 not quantized",
            "file     decoded in memory: 1 (act-order: the inputs of a group are not neighbours)"});
    const Json blocks = {{"weight_block_size", {4, 8}}};
    CHECK(notes(fp8("fp8_block", "fp8", blocks, "weight_scale_inv", "F32")) ==
          std::vector<std::string>{
              "file     matrices: 1 in fp8 in blocks of 4x8, 8 not quantized",
              "file     decoded in memory: 1 (no product takes blocks of this size)",
              "file     config.json also quantizes activations (fp8): model.activations decides"});
  }

  TEST_CASE("damaged values are refused: scales, orders, zeros") {
    const std::string file = "model.safetensors: tensor 'lm_head.";
    for (const uint16_t bad : {uint16_t{0x7c00}, uint16_t{0x7e00}}) {
      QuantizedFolder f = awq();
      std::memcpy(f.tensors["lm_head.scales"].bytes.data() + 6, &bad, 2);
      CHECK(error_of(f) == file + "scales': scale 3 is " + (bad == 0x7c00 ? "inf" : "nan") +
                               ", expected a finite number");
    }
    QuantizedFolder f = awq();
    std::ranges::fill(f.tensors["lm_head.scales"].bytes, '\0');
    CHECK(error_of(f) == file + "scales': all 32 scales are 0");

    const auto order = [](int at, int32_t group) {
      QuantizedFolder g = gptq("gptq_4_asym_desc_act", false);
      std::memcpy(g.tensors["lm_head.g_idx"].bytes.data() + 4 * at, &group, 4);
      return error_of(g);
    };
    CHECK(order(5, 2) == file + "g_idx': input 5 has group 2, expected 0 to 1");
    CHECK(order(5, -1) == file + "g_idx': input 5 has group -1, expected 0 to 1");
    CHECK(order(0, 1) == file + "g_idx': group 0 has 31 inputs, expected 32 (group_size 32)");

    f = gptq("gptq_4_sym", true);
    f.config["quantization_config"]["checkpoint_format"] = "gptq";
    CHECK(error_of(f) == file +
                             "qzeros': config.json says sym, so that zeros are 8, but found 9; "
                             "these are the zeros of checkpoint_format 'gptq_v2'");
    f = gptq("gptq_4_asym", true);
    f.config["quantization_config"]["sym"] = true;
    CHECK(error_of(f).starts_with(
        file + "qzeros': config.json says sym, so that zeros are 8, but found "));
  }

  TEST_CASE("tensors that are not as config.json says are refused by name") {
    QuantizedFolder f = awq();
    f.tensors["lm_head.qweight"].shape = {32, 4};
    CHECK(problem_of(f) ==
          "lm_head.qweight: expected shape [64,2], found [32,4]; the tensors are "
          "those of GPTQ, but config.json says AWQ");
    f = awq();
    f.config["quantization_config"]["group_size"] = 64;
    CHECK(problem_of(f) == "lm_head.qzeros: expected shape [1,2], found [2,2]");
    f = packed("ct_pack_4_asym_g32");
    f.tensors.erase("lm_head.weight_zero_point");
    CHECK(problem_of(f) == "lm_head.weight_zero_point: missing, expected shape [2,2]");
    f = packed("ct_pack_4_asym_g32");
    f.tensors["lm_head.weight_shape"].bytes = test::bytes_of<int64_t>({12, 60});
    CHECK(problem_of(f) == "lm_head.weight_shape: says [12,60], but config.json requires [12,64]");
    f = packed("ct_pack_4_sym_g32");
    f.tensors["lm_head.weight_g_idx"] = {"I32", {64}, std::string(256, '\0')};
    CHECK(problem_of(f) ==
          "lm_head.weight_g_idx: act-order is not supported in compressed-tensors folders");

    const QuantizedFolder other = gptq("gptq_4_asym", false);
    f = packed("ct_pack_4_sym_g32");
    f.config["vocab_size"] = 16;
    f.tensors = other.tensors;
    CHECK(problem_of(f) ==
          "lm_head.weight_packed: missing, expected shape [16,8]; the tensors are those of GPTQ, "
          "but config.json says compressed-tensors, packed");
    f = other;
    f.config.erase("quantization_config");
    CHECK(problem_of(f) ==
          "lm_head: quantized by GPTQ, but config.json has no "
          "quantization_config");
    f = folder_of("fp8", 2, 256, Json::object());
    f.config.erase("quantization_config");
    f.tensors["lm_head.weight"] = {"F8_E4M3", {2, 256}, std::string(512, '\0')};
    f.tensors["lm_head.weight_scale"] = {"F32", {1}, test::bytes_of<float>({1})};
    CHECK(problem_of(f) ==
          "lm_head: quantized by compressed-tensors, fp8, but config.json has no "
          "quantization_config");
    f = packed("ct_pack_4_sym_g32");
    f.config["quantization_config"]["ignore"] = {"re:.*head"};
    CHECK(problem_of(f) ==
          "lm_head: quantized by compressed-tensors, packed, but quantization_config exempts it");
    f.tensors["lm_head.weight"] = {"F32", {6, 64}, std::string(6 * 64 * 4, '\0')};
    CHECK(problem_of(f) == "nothing thrown");
    f.config["quantization_config"]["ignore"] = Json::array();
    CHECK(problem_of(f) ==
          "lm_head.weight: found F32, but quantization_config lists it as quantized");
  }

  TEST_CASE("targets: names before patterns before classes; ignore wins") {
    const Json section = Json::parse(R"({"format":"pack-quantized","config_groups":{
      "a":{"targets":["Linear"],"weights":{"num_bits":4,"group_size":32}},
      "b":{"targets":["re:.*down_proj$"],"weights":{"num_bits":8,"group_size":64}},
      "c":{"targets":["model.layers.1.mlp.down_proj"],"weights":{"num_bits":8,"group_size":128}}},
      "ignore":["lm_head","re:.*layers.0[.].*v_proj"],"quant_method":"compressed-tensors"})");
    const Quantization q = parse_quantization(section, "c");
    const auto group = [&](const char* name) {
      const QuantScheme* s = q.scheme_of(name, name);
      return s == nullptr ? -1 : s->inputs;
    };
    CHECK(group("model.layers.0.self_attn.q_proj") == 32);
    CHECK(group("model.layers.0.self_attn.v_proj") == -1);
    CHECK(group("model.layers.1.self_attn.v_proj") == 32);
    CHECK(group("model.layers.0.mlp.down_proj") == 64);
    CHECK(group("model.layers.1.mlp.down_proj") == 128);
    CHECK(group("lm_head") == -1);
  }

  TEST_CASE("exempt modules are whole words of a name") {
    Quantization q{
        .method = QuantMethod::awq, .schemes = {{}}, .plain = {"model.layers.1", "v_proj"}};
    const auto exempt = [&](const char* name) { return q.scheme_of(name, name) == nullptr; };
    CHECK(exempt("model.layers.1.mlp.up_proj"));
    CHECK(exempt("model.layers.10.self_attn.v_proj"));
    CHECK_FALSE(exempt("model.layers.10.mlp.up_proj"));
    CHECK_FALSE(exempt("model.layers.0.self_attn.qkv_proj"));
    q.plain = {"layers.0.mlp", "lm_head"};
    CHECK(exempt("model.layers.0.mlp.up_proj"));
    CHECK(exempt("lm_head"));
  }

  TEST_CASE("methods and options without support are refused by name") {
    for (const char* method : {"bitsandbytes", "hqq", "aqlm", "quip", "eetq", "torchao", "quanto",
                               "vptq", "spqr", "fp_quant", "modelopt", "fbgemm_fp8", "marlin"})
      CHECK(section_error(method, Json::object()) ==
            fmt::format("c: the weights are quantized by '{}', which is not supported", method));
    CHECK(section_error("", Json::object()) == "c: quantization_config has no key 'quant_method'");
    CHECK(section_error("mxfp4", Json::object()) ==
          "c: the weights are quantized by 'mxfp4', which is not supported (mixture of experts)");
    CHECK(section_error("gptq", {{"bits", 3}, {"group_size", 128}}) ==
          "weights have 3 bits, expected 4 or 8, which is not supported");
    CHECK(section_error("gptq", {{"bits", 4}}) == "key 'group_size' is missing");
    CHECK(section_error("gptq", {{"bits", 4}, {"group_size", 24}}) ==
          "key 'group_size' is 24, expected -1, 16 or a multiple of 32, which is not supported");
    CHECK(section_error("gptq", {{"bits", 4}, {"group_size", 128}, {"is_marlin_format", true}}) ==
          "GPTQ weights are in the format 'marlin', which is not supported");
    CHECK(section_error("gptq", {{"bits", 4}, {"group_size", 128}, {"dynamic", {{"a", 1}}}}) ==
          "GPTQ has other settings for some modules ('dynamic'), which is not supported");
    CHECK(section_error("awq", {{"bits", 4}, {"group_size", 128}, {"version", "gemv"}}) ==
          "AWQ is of version 'gemv', which is not supported");
    CHECK(section_error("awq", {{"bits", 4}, {"group_size", 128}, {"zero_point", false}}) ==
          "AWQ weights have no zeros ('zero_point' is false), which is not supported");
    CHECK(section_error("fp8", {{"scale_fmt", "ue8m0"}}) ==
          "key 'scale_fmt' is 'ue8m0', expected 'float', which is not supported");
    CHECK(section_error("fp8", {{"weight_block_size", {128}}}) ==
          "the sizes of a block: expected two positive numbers, found an array of 1 item");
    const auto ct = [](const char* format, const Json& weights, const Json& more = Json::object()) {
      Json section = compressed(format, weights);
      section.update(more);
      return section_error("compressed-tensors", section);
    };
    const Json int4 = {{"num_bits", 4}, {"group_size", 32}};
    CHECK(ct("marlin-24", int4) ==
          "group_0: weights of type 'int' are in format 'marlin-24', which is not supported");
    CHECK(ct("nvfp4-pack-quantized", {{"num_bits", 4}, {"type", "float"}}) ==
          "group_0: weights of type 'float' are in format 'nvfp4-pack-quantized', which is not "
          "supported");
    CHECK(ct("pack-quantized", {{"num_bits", 6}}) ==
          "group_0: weights have 6 bits, expected 4 or 8, which is not supported");
    CHECK(ct("pack-quantized", {{"num_bits", 4}, {"strategy", "tensor_group"}}) ==
          "group_0: weights have scales by the strategy 'tensor_group', which is not supported");
    CHECK(ct("pack-quantized", {{"num_bits", 4}, {"group_size", 32}, {"actorder", "group"}}) ==
          "group_0: weights are in act-order ('actorder' is the string 'group'), which is not "
          "supported");
    CHECK(ct("pack-quantized", int4, {{"kv_cache_scheme", {{"num_bits", 8}}}}) ==
          "key 'kv_cache_scheme' is set, which is not supported");
    CHECK(ct("pack-quantized", int4, {{"sparsity_config", {{"format", "sparse-24"}}}}) ==
          "key 'sparsity_config' is set, which is not supported");
    CHECK(ct("pack-quantized", int4, {{"quantization_status", "calibration"}}) ==
          "key 'quantization_status' is 'calibration', expected 'compressed' or 'frozen', which is "
          "not "
          "supported");
    CHECK(ct("pack-quantized", int4, {{"quantization_status", "frozen"}}) == "nothing thrown");
    CHECK(ct("pack-quantized", int4, {{"ignore", {"re:("}}}) ==
          "'re:(' is no regular expression that is supported");
  }

  TEST_CASE("old folders say how they are quantized in another file") {
    const test::TemporaryFolder folder;
    folder.write("config.json", "{}");
    CHECK_FALSE(load_quantization(folder.path()));
    folder.write("quant_config.json",
                 R"({"zero_point":true,"q_group_size":128,"w_bit":4,"version":"GEMM"})");
    CHECK(load_quantization(folder.path())->method == QuantMethod::awq);
    folder.write("quantize_config.json", R"({"bits":4,"group_size":-1,"desc_act":false})");
    const auto q = load_quantization(folder.path());
    CHECK(q->method == QuantMethod::gptq);
    CHECK(q->schemes.front().inputs == 0);
    CHECK(q->zeros_less_one);
  }
}
