#pragma once
#include <algorithm>
#include <numeric>

#include "base/convert.h"
#include "base/rng.h"
#include "model/spec/config.h"
#include "model/spec/roles.h"
#include "quantized_folder.h"

namespace tandem::test {

/// Ways in which QuantizedModel stores its layers.
enum class Stored : uint8_t {
  awq,
  gptq4,
  gptq8,
  gptq_act_order,
  words4,
  words8,
  int8,
  fp8,
  decoded
};

/// Codes of a matrix [out, in] that a test draws, packed bit by bit.
struct RandomCodes {
  int64_t out, in, group, n_groups;
  int bits;
  std::vector<int> codes, zeros;  // [out, in], [out, groups]
  std::vector<float> scales;      // [out, groups], f16
  std::vector<int32_t> group_of;  // [in]

  RandomCodes(int64_t o, int64_t i, int64_t g, int b, bool has_zeros, bool ordered,
              PhiloxStream& draw)
      : out(o), in(i), group(g), n_groups(in / group), bits(b) {
    const auto levels = 1u << bits;
    for (int64_t k = 0; k < out * in; ++k) codes.push_back(static_cast<int>(draw.below(levels)));
    for (int64_t k = 0; k < out * n_groups; ++k) {
      const auto middle = static_cast<int>(levels / 2);
      zeros.push_back(has_zeros ? 1 + static_cast<int>(draw.below(levels - 1)) : middle);
      scales.push_back(to_float(to_f16((1 + 0.001f * static_cast<float>(draw.below(1000))) * 0.3f /
                                       static_cast<float>(levels))));
    }
    for (int64_t k = 0; k < in; ++k) group_of.push_back(static_cast<int32_t>(k / group));
    if (ordered)
      for (size_t k = group_of.size() - 1; k > 0; --k)
        std::swap(group_of[k], group_of[draw.below(static_cast<uint32_t>(k + 1))]);
  }

  int code(int64_t o, int64_t k) const { return codes[static_cast<size_t>(o * in + k)]; }
  int zero(int64_t o, int64_t g) const { return zeros[static_cast<size_t>(o * n_groups + g)]; }
  float scale(int64_t o, int64_t g) const { return scales[static_cast<size_t>(o * n_groups + g)]; }
  std::vector<float> values() const {
    std::vector<float> all;
    for (int64_t o = 0; o < out; ++o)
      for (int64_t k = 0; k < in; ++k) {
        const int64_t g = group_of[static_cast<size_t>(k)];
        all.push_back(scale(o, g) * static_cast<float>(code(o, k) - zero(o, g)));
      }
    return all;
  }

  /// Words [rows, columns] of codes that at(row, column, lane) gives.
  template <class At>
  std::string words(int64_t rows, int64_t columns, const At& at,
                    const std::vector<int>& shifts = {}) const {
    std::vector<uint32_t> all;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) {
        uint32_t word = 0;
        for (int lane = 0; lane < 32 / bits; ++lane)
          word |= static_cast<uint32_t>(at(r, c, lane))
                  << (shifts.empty() ? lane * bits : shifts[static_cast<size_t>(lane)]);
        all.push_back(word);
      }
    return bytes_of(all);
  }
  /// Scales [out, groups], or [groups, out].
  std::string f16_scales(bool by_output) const {
    std::vector<uint16_t> all;
    for (int64_t i = 0; i < (by_output ? out : n_groups); ++i)
      for (int64_t j = 0; j < (by_output ? n_groups : out); ++j)
        all.push_back(to_f16(by_output ? scale(i, j) : scale(j, i)).bits);
    return bytes_of(all);
  }

  void put_awq(QuantizedFolder& f, const std::string& module) const {
    const std::vector<int> shifts = {0, 16, 4, 20, 8, 24, 12, 28};
    f.tensors[module + ".qweight"] = {
        "I32",
        {in, out / 8},
        words(
            in, out / 8, [&](int64_t k, int64_t w, int lane) { return code(8 * w + lane, k); },
            shifts)};
    f.tensors[module + ".qzeros"] = {
        "I32",
        {n_groups, out / 8},
        words(
            n_groups, out / 8,
            [&](int64_t g, int64_t w, int lane) { return zero(8 * w + lane, g); }, shifts)};
    f.tensors[module + ".scales"] = {"F16", {n_groups, out}, f16_scales(false)};
  }
  void put_gptq(QuantizedFolder& f, const std::string& module) const {
    const int n = 32 / bits;
    f.tensors[module + ".qweight"] = {
        "I32", {in / n, out}, words(in / n, out, [&](int64_t w, int64_t o, int lane) {
          return code(o, n * w + lane);
        })};
    f.tensors[module + ".qzeros"] = {
        "I32", {n_groups, out / n}, words(n_groups, out / n, [&](int64_t g, int64_t w, int lane) {
          return zero(n * w + lane, g) - 1;
        })};
    f.tensors[module + ".scales"] = {"F16", {n_groups, out}, f16_scales(false)};
    f.tensors[module + ".g_idx"] = {"I32", {in}, bytes_of(group_of)};
    f.tensors[module + ".bias"] = {"F16", {out}, std::string(static_cast<size_t>(out) * 2, '\0')};
  }
  void put_words(QuantizedFolder& f, const std::string& module) const {
    const int n = 32 / bits;
    f.tensors[module + ".weight_packed"] = {
        "I32", {out, in / n}, words(out, in / n, [&](int64_t o, int64_t w, int lane) {
          return code(o, n * w + lane);
        })};
    f.tensors[module + ".weight_zero_point"] = {
        "I32", {out / n, n_groups}, words(out / n, n_groups, [&](int64_t w, int64_t g, int lane) {
          return zero(n * w + lane, g);
        })};
    f.tensors[module + ".weight_scale"] = {"F16", {out, n_groups}, f16_scales(true)};
    f.tensors[module + ".weight_shape"] = {"I64", {2}, bytes_of<int64_t>({out, in})};
  }
  void put_int8(QuantizedFolder& f, const std::string& module) const {
    std::vector<int8_t> all;
    for (const int c : codes) all.push_back(static_cast<int8_t>(c - 128));
    f.tensors[module + ".weight"] = {"I8", {out, in}, bytes_of(all)};
    f.tensors[module + ".weight_scale"] = {"F16", {out, 1}, f16_scales(true)};
  }
  void put_numbers(QuantizedFolder& f, const std::string& module) const {
    f.tensors[module + ".weight"] = {"F32", {out, in}, bytes_of(values())};
  }
};

/// Writes a model of random weights whose layers are quantized, but k_proj is not. The folder
/// `decoded` has the same numbers.
/// like     the way whose codes are drawn
inline void write_quantized_model(const std::filesystem::path& folder, Stored like, bool decoded) {
  using namespace model;
  using io::Json;
  QuantizedFolder f{{{"architectures", {"LlamaForCausalLM"}},
                     {"hidden_size", 64},
                     {"num_hidden_layers", 2},
                     {"num_attention_heads", 4},
                     {"num_key_value_heads", 2},
                     {"head_dim", 32},
                     {"intermediate_size", 128},
                     {"vocab_size", 96},
                     {"max_position_embeddings", 512}}};
  const ModelConfig c = parse_config(f.config.dump(), "config.json");
  const int bits = like == Stored::gptq8 || like == Stored::words8 || like == Stored::int8 ? 8 : 4;
  const bool whole = like == Stored::int8;
  const Json words = {
      {"format", "pack-quantized"},
      {"config_groups",
       {{"a",
         {{"targets", {"Linear"}},
          {"weights", {{"num_bits", bits}, {"symmetric", false}, {"group_size", 32}}}}}}},
      {"ignore", {"re:.*k_proj", "lm_head"}}};
  Json section = {{"bits", bits}, {"group_size", 32}};
  if (like == Stored::words4 || like == Stored::words8) section = words;
  if (whole) {
    section = words;
    section["format"] = "int-quantized";
    section["config_groups"]["a"]["weights"] = {{"num_bits", 8}, {"strategy", "channel"}};
  }
  if (like == Stored::fp8) section = {{"weight_block_size", {32, 96}}};
  const bool gptq =
      like == Stored::gptq4 || like == Stored::gptq8 || like == Stored::gptq_act_order;
  if (gptq) section.update({{"sym", false}, {"desc_act", like == Stored::gptq_act_order}});
  section["quant_method"] = gptq                  ? "gptq"
                            : like == Stored::awq ? "awq"
                            : like == Stored::fp8 ? "fp8"
                                                  : "compressed-tensors";
  PhiloxStream draw(11);
  for (const MatrixId& id : all_matrices(c)) {
    const io::Shape shape = shape_of(id.role, c);
    const std::string name = canonical_name(id), module = name.substr(0, name.size() - 7);
    if (shape.size() == 1) {
      f.tensors[name] = {"F32", shape,
                         bytes_of(std::vector<float>(static_cast<size_t>(shape[0]), 1.0f))};
      continue;
    }
    const bool coded = in_layers(id.role) && id.role != Role::k;
    const RandomCodes codes(shape[0], shape[1], whole ? shape[1] : 32, bits, !whole,
                            like == Stored::gptq_act_order && coded, draw);
    if (like == Stored::fp8 && coded) {
      // Blocks of 32 outputs and 96 inputs, of which the last may have fewer.
      std::string bytes;
      std::vector<float> scales, values;
      const int64_t columns = (shape[1] + 95) / 96;
      for (int64_t i = 0; i < (shape[0] + 31) / 32 * columns; ++i)
        scales.push_back(0.01f + 0.0001f * static_cast<float>(draw.below(100)));
      for (int64_t k = 0; k < shape[0] * shape[1]; ++k) {
        // Sign, an exponent about that of 1, three bits of a fraction.
        const int sign = static_cast<int>(draw.below(2)),
                  exponent = 5 + static_cast<int>(draw.below(4)),
                  fraction = static_cast<int>(draw.below(8));
        bytes += static_cast<char>(sign << 7 | exponent << 3 | fraction);
        const float size = std::ldexp(1 + static_cast<float>(fraction) / 8, exponent - 7);
        values.push_back(
            (sign == 1 ? -size : size) *
            scales[static_cast<size_t>(k / shape[1] / 32 * columns + k % shape[1] / 96)]);
      }
      if (decoded) {
        f.tensors[name] = {"F32", shape, bytes_of(values)};
      } else {
        f.tensors[name] = {"F8_E4M3", shape, bytes};
        f.tensors[name + "_scale_inv"] = {"F32", {(shape[0] + 31) / 32, columns}, bytes_of(scales)};
      }
    } else if (!coded || decoded) {
      codes.put_numbers(f, module);
    } else if (like == Stored::awq) {
      codes.put_awq(f, module);
    } else if (gptq) {
      codes.put_gptq(f, module);
    } else if (whole) {
      codes.put_int8(f, module);
    } else {
      codes.put_words(f, module);
    }
  }
  if (!decoded) f.config["quantization_config"] = section;
  f.write(folder);
}

}  // namespace tandem::test
