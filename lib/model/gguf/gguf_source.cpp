#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/parallel.h"
#include "io/quote.h"
#include "model/gguf/gguf_arch.h"
#include "model/gguf/gguf_model.h"

namespace tandem::model {
namespace {

constexpr std::array kArchs = {GgufArch{"llama", "LlamaForCausalLM", true},
                               GgufArch{"qwen2", "Qwen2ForCausalLM"},
                               GgufArch{"qwen3", "Qwen3ForCausalLM"},
                               GgufArch{"gemma3", "Gemma3ForCausalLM"},
                               GgufArch{"phi3", "Phi3ForCausalLM", false, true},
                               GgufArch{"granite", "GraniteForCausalLM", true},
                               GgufArch{"smollm3", "SmolLM3ForCausalLM", true},
                               GgufArch{"olmo2", "Olmo2ForCausalLM"}};

struct RoleName {
  Role role;
  std::string_view name;  // after "blk.N."
};

constexpr std::array kOuterNames = {RoleName{Role::embedding, "token_embd.weight"},
                                    RoleName{Role::out_norm, "output_norm.weight"},
                                    RoleName{Role::head, "output.weight"}};
constexpr std::array kLayerNames = {RoleName{Role::attn_pre, "attn_norm.weight"},
                                    RoleName{Role::q, "attn_q.weight"},
                                    RoleName{Role::k, "attn_k.weight"},
                                    RoleName{Role::v, "attn_v.weight"},
                                    RoleName{Role::o, "attn_output.weight"},
                                    RoleName{Role::q_bias, "attn_q.bias"},
                                    RoleName{Role::k_bias, "attn_k.bias"},
                                    RoleName{Role::v_bias, "attn_v.bias"},
                                    RoleName{Role::o_bias, "attn_output.bias"},
                                    RoleName{Role::q_norm, "attn_q_norm.weight"},
                                    RoleName{Role::k_norm, "attn_k_norm.weight"},
                                    RoleName{Role::q_row_norm, "attn_q_norm.weight"},
                                    RoleName{Role::k_row_norm, "attn_k_norm.weight"},
                                    RoleName{Role::attn_post, "post_attention_norm.weight"},
                                    RoleName{Role::ffn_pre, "ffn_norm.weight"},
                                    RoleName{Role::gate, "ffn_gate.weight"},
                                    RoleName{Role::up, "ffn_up.weight"},
                                    RoleName{Role::down, "ffn_down.weight"},
                                    RoleName{Role::gate_bias, "ffn_gate.bias"},
                                    RoleName{Role::up_bias, "ffn_up.bias"},
                                    RoleName{Role::down_bias, "ffn_down.bias"},
                                    RoleName{Role::ffn_post, "post_ffw_norm.weight"}};

std::string_view name_in(std::span<const RoleName> names, Role role) {
  return std::ranges::find(names, role, &RoleName::role)->name;
}

class GgufSource final : public WeightSource {
 public:
  GgufSource(const ModelConfig& config, io::Gguf file)
      : config_(config),
        file_(std::move(file)),
        arch_(*find_gguf_arch(*file_.find_string("general.architecture"))) {
    check();
  }

  WeightFormat native(MatrixId id) const override { return io::gguf_format(tensor(id).type); }

  void rows(MatrixId id, int64_t begin, int64_t end, WeightFormat to, void* out) const override {
    constexpr int64_t kLeast = int64_t{1} << 16;  // numbers that a thread converts
    const bool as_numbers = to == DType::f32 || to == DType::bf16;
    const StoredWeights stored = as_numbers ? numbers_of(id) : stored_of(id);
    const auto least = static_cast<int>(std::max<int64_t>(1, kLeast / stored.in));
    parallel_ranges(static_cast<int>(end - begin), least, [&](int i, int j) {
      stored.read(begin + i, begin + j, to,
                  static_cast<std::byte*>(out) + static_cast<size_t>(i) * row_bytes(to, stored.in));
    });
  }

  std::vector<float> vector(MatrixId id) const override {
    const io::GgufTensor& t = tensor(id);
    const int64_t n = shape_of(id.role, config_).front();
    std::vector<float> stored(static_cast<size_t>(t.shape.front())), own;
    decode(t, 0, t.shape.front(), stored.data());
    const int64_t first = part(id).first;
    for (int64_t row = 0; row < n; ++row)
      own.push_back(stored[static_cast<size_t>(first + stored_row(id.role, row))]);
    return own;
  }

  void embed(std::span<const int32_t> ids, float* out) const override {
    constexpr int kRows = 16;  // a thread reads no less
    const StoredWeights stored = numbers_of({Role::embedding});
    parallel_ranges(static_cast<int>(ids.size()), kRows, [&](int from, int to) {
      for (int i = from; i < to; ++i) {
        const int64_t id = ids[static_cast<size_t>(i)];
        stored.read(id, id + 1, DType::f32, out + i * int64_t{config_.dim});
      }
    });
  }

 private:
  StoredPart part(MatrixId id) const {
    if (id.role == Role::head && config_.head.tied) id.role = Role::embedding;
    return gguf_part(id, arch_, config_);
  }
  const io::GgufTensor& tensor(MatrixId id) const { return *file_.find(part(id).tensor); }

  bool in_pairs(Role role) const {
    const bool turns = info(role).stack == Role::qkv && role != Role::v && role != Role::v_bias;
    return arch_.pairs && turns;
  }
  /// The row of a tensor that holds row `row` of Hugging Face's matrix.
  int64_t stored_row(Role role, int64_t row) const {
    return in_pairs(role) ? paired_row(row, config_.head_dim) : row;
  }

  /// Writes numbers [begin, begin + n) of a tensor as f32.
  void decode(const io::GgufTensor& t, int64_t begin, int64_t n, float* out) const {
    std::vector<std::byte> blocks(io::gguf_bytes(t.type, n));
    file_.read(t, io::gguf_bytes(t.type, begin), blocks);
    io::decode_gguf(t.type, blocks.data(), n, out);
    if (io::gguf_block(t.type) > 1)
      check_scales(t, std::all_of(out, out + n, [](float x) { return std::isfinite(x); }));
  }
  void check_scales(const io::GgufTensor& t, bool finite) const {
    if (!finite)
      throw input_error(file_.where(), "tensor {}: a scale in {} is infinite or NaN",
                        io::quote(t.name), io::gguf_type_name(static_cast<uint32_t>(t.type)))
          .hint("fetch the file again");
  }

  /// Writes the numbers [begin, begin + n) of a tensor, or their codes.
  void read_as(const WeightFormat& format, const io::GgufTensor& t, int64_t begin, int64_t n,
               std::byte* out) const {
    if (io::gguf_block(t.type) == 1)
      return file_.read(t, io::gguf_bytes(t.type, begin), {out, io::gguf_bytes(t.type, n)});
    if (!is_coded(format)) return decode(t, begin, n, reinterpret_cast<float*>(out));
    std::vector<std::byte> blocks(io::gguf_bytes(t.type, n));
    file_.read(t, io::gguf_bytes(t.type, begin), blocks);
    check_scales(t, io::gguf_codes(t.type, blocks.data(), n, out));
  }

  /// Rows as the file stores them: numbers, or codes of blocks.
  StoredWeights stored_of(MatrixId id) const { return rows_as(native(id), id); }
  /// Rows of numbers; blocks are decoded to f32 without rounding their scales.
  StoredWeights numbers_of(MatrixId id) const {
    const WeightFormat format = native(id);
    return rows_as(is_coded(format) ? WeightFormat(DType::f32) : format, id);
  }

  StoredWeights rows_as(const WeightFormat& format, MatrixId id) const {
    const io::GgufTensor& t = tensor(id);
    const int64_t in = t.shape.back(), first = part(id).first;
    const auto fetch = [this, &t, in, first, format, role = id.role](int64_t begin, int64_t end,
                                                                     void* out) {
      auto* to = static_cast<std::byte*>(out);
      const int64_t n = in_pairs(role) ? 1 : end - begin;
      for (int64_t row = begin; row < end; row += n) {
        read_as(format, t, (first + stored_row(role, row)) * in, n * in, to);
        to += matrix_bytes(format, n, in);
      }
    };
    // Blocks of codes are read into a buffer that stays small.
    constexpr size_t kAtOnce = size_t{256} << 10;
    const int64_t at_once =
        is_coded(format)
            ? std::max<int64_t>(1, static_cast<int64_t>(kAtOnce / row_bytes(format, in)))
            : 0;
    return {.name = t.name, .format = format, .in = in, .at_once = at_once, .fetch = fetch};
  }

  void check() const {
    constexpr size_t kMostListed = 20;
    std::vector<std::string> problems;
    std::set<std::string> used;
    for (const MatrixId& id : all_matrices(config_)) {
      const StoredPart p = gguf_part(id, arch_, config_);
      if (!used.insert(p.tensor).second) continue;
      const io::GgufTensor* const t = file_.find(p.tensor);
      if (t == nullptr)
        problems.push_back(
            fmt::format("{}: missing, expected shape {}", p.tensor, io::shape_text(p.shape)));
      else if (t->shape != p.shape)
        problems.push_back(fmt::format("{}: expected shape {}, found {}", p.tensor,
                                       io::shape_text(p.shape), io::shape_text(t->shape)));
    }
    // Other tensors are passed over, but leaving these out would change the result.
    for (const io::GgufTensor& t : file_.tensors())
      if (!used.contains(t.name) && (t.name.ends_with(".bias") || t.name.ends_with("_norm.weight")))
        problems.push_back(
            fmt::format("{}: unexpected in a model of this architecture", io::quote(t.name)));
    if (problems.empty()) return;
    const size_t n = problems.size();
    problems.resize(std::min(n, kMostListed));
    throw input_error(file_.where(), "{} tensor{} not as its metadata require: {}", n,
                      n == 1 ? " is" : "s are", fmt::join(problems, "; "))
        .hint("fetch the file again, or convert the model again with a current llama.cpp");
  }

  ModelConfig config_;
  io::Gguf file_;
  const GgufArch& arch_;
};

}  // namespace

std::span<const GgufArch> gguf_archs() { return kArchs; }

const GgufArch* find_gguf_arch(std::string_view name) {
  const auto* const at = std::ranges::find(kArchs, name, &GgufArch::name);
  return at == kArchs.end() ? nullptr : at;
}

int64_t paired_row(int64_t row, int head_dim) {
  const int64_t half = head_dim / 2, in_head = row % head_dim;
  return row - in_head + 2 * (in_head % half) + in_head / half;
}

StoredPart gguf_part(MatrixId id, const GgufArch& arch, const ModelConfig& c) {
  if (!in_layers(id.role))
    return {std::string(name_in(kOuterNames, id.role)), 0, shape_of(id.role, c)};
  const auto of_layer = [&](std::string_view name) {
    return fmt::format("blk.{}.{}", id.layer, name);
  };
  const Role stack = info(id.role).stack;
  if (arch.fused && !is_bias(id.role) && (stack == Role::qkv || stack == Role::gate_up))
    return {of_layer(stack == Role::qkv ? "attn_qkv.weight" : "ffn_up.weight"),
            first_row(id.role, c), shape_of(stack, c)};
  return {of_layer(name_in(kLayerNames, id.role)), 0, shape_of(id.role, c)};
}

std::unique_ptr<WeightSource> gguf_source(const ModelConfig& config, io::Gguf file) {
  return std::make_unique<GgufSource>(config, std::move(file));
}

}  // namespace tandem::model
