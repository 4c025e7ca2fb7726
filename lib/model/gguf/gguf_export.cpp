#include "model/gguf/gguf_export.h"

#include <algorithm>
#include <cstring>

#include "base/convert.h"
#include "base/error.h"
#include "io/quote.h"
#include "model/adapters/each_piece.h"
#include "model/gguf/gguf_arch.h"

namespace tandem::model {
namespace {

constexpr int64_t kGgufBlock = 32;  // numbers

/// Values of key `general.file_type`.
enum FileType : int64_t { kAllF32 = 0, kMostlyQ4_0 = 2, kMostlyQ8_0 = 7, kMostlyBf16 = 32 };

[[noreturn]] void refuse_export(const std::string& where, const std::string& what) {
  throw input_error(where, "{}, which is not supported in a new GGUF file", what)
      .hint("write a model folder, or convert this one with llama.cpp");
}

/// Name of the architecture in GGUF files.
std::string arch_of(const ModelConfig& c, const std::string& where) {
  if (c.architecture == "LlamaForCausalLM" || c.architecture == "MistralForCausalLM")
    return "llama";
  if (c.architecture == "Qwen2ForCausalLM") return "qwen2";
  if (c.architecture == "Qwen3ForCausalLM") return "qwen3";
  throw input_error(where,
                    "{} cannot be written as a GGUF file: only Llama, Mistral, Qwen2 and "
                    "Qwen3 are supported, whose metadata tandem writes",
                    c.architecture)
      .hint("write a model folder, or convert this one with llama.cpp");
}

/// errors   kind input at `where`: the configuration has a part that no key says
void check_keys(const ModelConfig& c, const std::string& arch, const std::string& where) {
  const auto [window, from] = c.sliding();
  if (window > 0 && (arch != "llama" || from > 0 || c.kinds.size() > 1))
    refuse_export(where, "has sliding windows in some layers");
  if (c.ropes.size() != 1 || ops::rotated_dims(c.ropes.front(), c.head_dim) != c.head_dim ||
      std::ranges::any_of(c.kinds, [](const LayerSpec& k) { return k.attention.rope != 0; }))
    refuse_export(where, "rotates some layers or dimensions otherwise");
  const RopeScaling& s = c.ropes.front().scaling;
  if (s.kind == RopeScalingKind::longrope) refuse_export(where, "scales RoPE by 'longrope'");
  if (s.kind == RopeScalingKind::yarn &&
      (!s.whole_dims ||
       std::abs(s.attention_factor / ops::yarn_attention_factor(s.factor) - 1) > 1e-6))
    refuse_export(where, "scales RoPE by YaRN with another attention factor");
  if (std::ranges::any_of(c.kinds, [](const LayerSpec& k) { return k.ffn.gate != Gate::silu; }))
    refuse_export(where, "has another activation than SiLU");
}

/// Divisors of the rotary frequencies, in the f32 steps of the model.
std::vector<float> rope_divisors(const ModelConfig& c) {
  ops::RopeSpec plain = c.ropes.front();
  plain.scaling = {};
  std::vector<float> quotients = ops::rope_inverse_frequencies(plain, c.head_dim);
  const std::vector<float> scaled = ops::rope_inverse_frequencies(c.ropes.front(), c.head_dim);
  for (size_t i = 0; i < quotients.size(); ++i) quotients[i] /= scaled[i];
  return quotients;
}

io::GgufType gguf_type_of(const WeightFormat& format, int64_t in) {
  if (!is_coded(format)) return format == DType::f32 ? io::GgufType::f32 : io::GgufType::bf16;
  if (in % kGgufBlock != 0) return io::GgufType::f16;
  return format.code == Code::i4 ? io::GgufType::q4_0 : io::GgufType::q8_0;
}

}  // namespace

GgufExport::GgufExport(const ModelConfig& config, const WeightSource& source,
                       const std::function<WeightFormat(MatrixId)>& format_of,
                       const std::string& where)
    : config_(config), source_(source), arch_(arch_of(config, where)) {
  check_keys(config, arch_, where);
  pairs_ = find_gguf_arch(arch_)->pairs;
  for (const MatrixId& id : all_matrices(config))
    add(id, shape_of(id.role, config).size() == 1 ? WeightFormat(DType::f32) : format_of(id));
  if (config.ropes.front().scaling.kind == RopeScalingKind::llama3) {
    std::vector<float> table = rope_divisors(config);
    const auto n = std::ssize(table);
    tensors_.push_back({.name = "rope_freqs.weight",
                        .type = io::GgufType::f32,
                        .shape = {n},
                        .id = {},
                        .format = DType::f32,
                        .in_pairs = 0,
                        .numbers = std::move(table)});
  }
}

void GgufExport::add(MatrixId id, const WeightFormat& format) {
  const io::Shape shape = shape_of(id.role, config_);
  const io::GgufType type =
      shape.size() == 1 ? io::GgufType::f32 : gguf_type_of(format, shape.back());
  const bool turns = info(id.role).stack == Role::qkv && !is_norm(id.role) && id.role != Role::v &&
                     id.role != Role::v_bias;
  tensors_.push_back({.name = gguf_part(id, *find_gguf_arch(arch_), config_).tensor,
                      .type = type,
                      .shape = shape,
                      .id = id,
                      .format = type == io::GgufType::f16 ? WeightFormat(DType::f32) : format,
                      .in_pairs = pairs_ && turns ? config_.head_dim : 0,
                      .numbers = {}});
}

void GgufExport::add_keys(io::GgufWriter& to) const {
  const ModelConfig& c = config_;
  const auto key = [&](std::string_view name) { return fmt::format("{}.{}", arch_, name); };
  to.text("general.architecture", arch_);
  to.text("general.type", "model");
  to.text("general.name", c.name);
  const io::GgufType main =
      std::ranges::find(tensors_, Role::q, [](const Tensor& t) { return t.id.role; })->type;
  to.number("general.file_type", main == io::GgufType::q4_0   ? kMostlyQ4_0
                                 : main == io::GgufType::q8_0 ? kMostlyQ8_0
                                 : main == io::GgufType::f32  ? kAllF32
                                                              : kMostlyBf16);
  to.number("general.quantization_version", 2);
  to.number(key("vocab_size"), c.vocab_size);
  to.number(key("block_count"), c.n_layers);
  to.number(key("context_length"), c.stated_context);
  to.number(key("embedding_length"), c.dim);
  to.number(key("feed_forward_length"), c.ffn_dim);
  to.number(key("attention.head_count"), c.n_heads);
  to.number(key("attention.head_count_kv"), c.n_kv_heads);
  to.number(key("attention.key_length"), c.head_dim);
  to.number(key("attention.value_length"), c.head_dim);
  to.real(key("attention.layer_norm_rms_epsilon"), c.rms_eps);
  if (const int window = c.sliding().window; window > 0)
    to.number(key("attention.sliding_window"), window);
  to.number(key("rope.dimension_count"), c.head_dim);
  to.real(key("rope.freq_base"), c.ropes.front().theta);
  const RopeScaling& s = c.ropes.front().scaling;
  if (s.kind != RopeScalingKind::linear && s.kind != RopeScalingKind::yarn) return;
  to.text(key("rope.scaling.type"), s.kind == RopeScalingKind::linear ? "linear" : "yarn");
  to.real(key("rope.scaling.factor"), s.factor);
  if (s.kind != RopeScalingKind::yarn) return;
  to.number(key("rope.scaling.original_context_length"), s.original_context);
  to.real(key("rope.scaling.yarn_beta_fast"), s.beta_fast);
  to.real(key("rope.scaling.yarn_beta_slow"), s.beta_slow);
}

void GgufExport::describe(io::GgufWriter& to) const {
  add_keys(to);
  for (const Tensor& t : tensors_) to.tensor(t.name, t.type, t.shape);
}

void GgufExport::write(size_t i, const io::ByteSink& sink) const {
  const Tensor& t = tensors_[i];
  if (t.shape.size() == 1) {
    const std::vector<float> stored = t.numbers.empty() ? source_.vector(t.id) : t.numbers;
    std::vector<float> numbers = stored;
    if (t.in_pairs > 0)
      for (size_t row = 0; row < stored.size(); ++row)
        numbers[static_cast<size_t>(paired_row(static_cast<int64_t>(row), t.in_pairs))] =
            stored[row];
    return sink(std::as_bytes(std::span(numbers)));
  }
  const int64_t rows = t.shape[0], in = t.shape[1], unit = std::max(1, t.in_pairs),
                each = std::max(unit, kWeightPiece / in / unit * unit);
  const size_t from_bytes = row_bytes(t.format, in), to_bytes = io::gguf_bytes(t.type, in);
  std::vector<std::byte> read, written;
  for (int64_t begin = 0; begin < rows; begin += each) {
    const int64_t n = std::min(each, rows - begin);
    read.resize(static_cast<size_t>(n) * from_bytes);
    written.resize(static_cast<size_t>(n) * to_bytes);
    source_.rows(t.id, begin, begin + n, t.format, read.data());
    for (int64_t row = 0; row < n; ++row) {
      const int64_t at = t.in_pairs > 0 ? paired_row(row, t.in_pairs) : row;
      const std::byte* from = read.data() + static_cast<size_t>(row) * from_bytes;
      std::byte* out = written.data() + static_cast<size_t>(at) * to_bytes;
      if (is_coded(t.format)) {
        io::gguf_blocks(t.type, from, in, out);
      } else if (t.type == io::GgufType::f16) {
        for (int64_t k = 0; k < in; ++k) {
          float x = 0;
          std::memcpy(&x, from + static_cast<size_t>(k) * sizeof(x), sizeof(x));
          const f16 half = to_f16(x);
          std::memcpy(out + static_cast<size_t>(k) * sizeof(half), &half, sizeof(half));
        }
      } else {
        std::memcpy(out, from, to_bytes);
      }
    }
    sink(written);
  }
}

}  // namespace tandem::model
