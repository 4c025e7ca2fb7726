#pragma once
#include <cstdint>
#include <vector>

#include "tensor/arena.h"
#include "tensor/exec.h"

namespace tandem::ops {

enum class RopeScalingKind : uint8_t { none, linear, llama3 };

/// How rotary frequencies are stretched beyond the context of the first training.
struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::none;
  double factor = 1.0;            // linear and llama3: >= 1
  double low_freq_factor = 1.0;   // llama3 only, as the next two
  double high_freq_factor = 4.0;  // > low_freq_factor
  int original_context = 8192;    // tokens
  bool operator==(const RopeScaling&) const = default;
};

/// Rotary position embedding of a model.
struct RopeSpec {
  double theta = 10000.0;  // base of the frequencies
  RopeScaling scaling = {};
  bool operator==(const RopeSpec&) const = default;
};

/// Radians per position of each of the head_dim / 2 pairs, in the f32 steps of Hugging Face
/// transformers: a table built in double would differ from it by 1e-3 rad at position 10^5.
/// source   transformers, modeling_rope_utils.py: default, linear, llama3
std::vector<float> rope_inverse_frequencies(const RopeSpec& spec, int head_dim);

/// cos and sin of position * frequency: the angle rounded to f32 as transformers does it, then the
/// function of that angle correctly rounded.
class RopeTable {
 public:
  static void plan(int max_position, int head_dim, MemoryPlan& plan, Device device = {});
  /// Takes the planned memory and fills it, on all threads of the CPU.
  /// exec     the device of the plan
  RopeTable(const RopeSpec& spec, int max_position, int head_dim, Arena& arena,
            const Exec& exec = {});

  const float* cos() const { return cos_; }  // [max_position, head_dim / 2]
  const float* sin() const { return sin_; }  // [max_position, head_dim / 2]

 private:
  float* cos_;
  float* sin_;
};

}  // namespace tandem::ops
