#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/arena.h"
#include "tensor/exec.h"

namespace tandem::ops {

enum class RopeScalingKind : uint8_t { none, linear, llama3, yarn, longrope };

/// How rotary frequencies are stretched beyond the context of the first training.
struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::none;
  double factor = 1.0;            // of all but none: >= 1
  double low_freq_factor = 1.0;   // llama3, as the next
  double high_freq_factor = 4.0;  // > low_freq_factor
  int original_context = 8192;    // llama3, yarn and longrope: tokens
  double beta_fast = 32;          // yarn, as the rest: turns over the original context, above which
                                  // a frequency is kept
  double beta_slow = 1;           // and below which it is stretched by the whole factor
  double attention_factor = 1;    // of cos and sin, > 0
  bool whole_dims = true;         // bounds of the blend are whole numbers of dimensions
  // longrope: each pair's divisor of its frequency, in sequences up to the original context, and in
  // longer ones.
  std::vector<float> short_factors = {}, long_factors = {};
  bool operator==(const RopeScaling&) const = default;
};

/// Rotary position embedding of a model.
struct RopeSpec {
  double theta = 10000.0;  // base of the frequencies
  RopeScaling scaling = {};
  int dims = -1;  // the first dimensions of a head, which turn, even; -1: all
  bool operator==(const RopeSpec&) const = default;
};

/// Dimensions of a head that turn.
inline int rotated_dims(const RopeSpec& spec, int head_dim) {
  return spec.dims < 0 ? head_dim : spec.dims;
}

/// Radians per position of each of the pairs that turn, in the f32 steps of Hugging Face
/// transformers. A table built in double would differ from it by 1e-3 rad at position 10^5.
/// longest  tokens of the longest sequence, by which longrope takes its factors
/// source   transformers, modeling_rope_utils.py: default, linear, llama3, yarn, longrope
std::vector<float> rope_inverse_frequencies(const RopeSpec& spec, int head_dim,
                                            int64_t longest = 0);

/// True if sequences of up to that many tokens have the long factors of longrope.
inline bool is_long(const RopeSpec& spec, int64_t longest) {
  return spec.scaling.kind == RopeScalingKind::longrope && longest > spec.scaling.original_context;
}

/// YaRN's factor of cos and sin where a model gives none: .1 ln(factor) + 1.
double yarn_attention_factor(double factor);

/// cos and sin of position * frequency: the angle rounded to f32 as transformers does it, then the
/// function of that angle correctly rounded; times the attention factor of YaRN or longrope.
class RopeTable {
 public:
  /// A table by which nothing turns.
  RopeTable() = default;
  /// dims     rotated_dims
  /// id       of the table among those of a model
  static void plan(int max_position, int dims, MemoryPlan& plan, Device device = {}, int id = 0);
  /// Takes the planned memory and fills it, on all threads of the CPU.
  /// exec     the device of the plan
  /// longest  as of rope_inverse_frequencies; 0: max_position
  RopeTable(const RopeSpec& spec, int max_position, int head_dim, Arena& arena,
            const Exec& exec = {}, int id = 0, int64_t longest = 0);

  const float* cos() const { return cos_; }  // [max_position, dims / 2]
  const float* sin() const { return sin_; }  // [max_position, dims / 2]
  int dims() const { return dims_; }
  /// What both are multiplied by.
  float scale() const { return scale_; }

 private:
  float* cos_ = nullptr;
  float* sin_ = nullptr;
  int dims_ = 0;
  float scale_ = 1;
};

/// The table of a layer; of id -1 one by which nothing turns.
const RopeTable& rope_at(std::span<const RopeTable> tables, int id);

}  // namespace tandem::ops
