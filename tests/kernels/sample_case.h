#pragma once
// Shared by the tests of sampling on CPU and GPU.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>

#include "kernels/variants.h"

namespace tandem::test {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Memory of a workspace: exactly the promised bytes, 64-byte aligned.
inline std::unique_ptr<void, void (*)(void*)> aligned_bytes(size_t bytes) {
  return {std::aligned_alloc(64, (bytes + 63) / 64 * 64), std::free};
}

/// The CPU's workspace of top_n and sample.
class WorkspaceBytes {
 public:
  explicit WorkspaceBytes(int vocab) : data_(aligned_bytes(sample_workspace_bytes(vocab))) {}
  void* get() const { return data_.get(); }

 private:
  std::unique_ptr<void, void (*)(void*)> data_;
};

/// Logit rows of several natures, so that ties, flat and steep rows all occur.
enum class Nature { normal, flat, ties, steep, masked };
constexpr Nature kNatures[] = {Nature::normal, Nature::flat, Nature::ties, Nature::steep,
                               Nature::masked};

inline std::vector<float> random_logits(Nature nature, int vocab, uint32_t seed) {
  PhiloxStream stream(seed, static_cast<uint32_t>(nature));
  std::vector<float> x(static_cast<size_t>(vocab));
  for (float& v : x) {
    double normal = -6;  // sum of 12 uniforms
    for (int i = 0; i < 12; ++i) normal += stream.uniform();
    switch (nature) {
      case Nature::normal:
        v = static_cast<float>(3 * normal);
        break;
      case Nature::flat:
        v = static_cast<float>(20 + 0.01 * normal);
        break;
      case Nature::ties:
        v = static_cast<float>(std::round(normal)) * (stream.below(2) ? 1.0f : -0.0f);
        break;
      case Nature::steep:
        v = static_cast<float>(30 * normal);
        break;
      case Nature::masked:
        v = stream.below(3) ? -kInf : static_cast<float>(normal);
        break;
    }
  }
  x[x.size() / 2] = std::max(x[x.size() / 2], -1.0f);  // at least one finite
  return x;
}

struct Settings {
  float temperature = 1;
  int top_k = 0;
  double top_p = 1, min_p = 0;
  float penalty = 1;
};

inline KeepRule keep_rule(const Settings& s) {
  return {.repetition_penalty = s.penalty,
          .temperature = s.temperature,
          .top_k = s.top_k,
          .top_p = s.top_p,
          .min_p = s.min_p};
}

inline const Settings kSettings[] = {
    {},
    {.temperature = 0},
    {.temperature = 0.7f},
    {.temperature = 1.5f, .top_k = 1},
    {.temperature = 0.6f, .top_k = 5},
    {.top_k = 50, .top_p = 0.9},
    {.temperature = 1.3f, .top_p = 0.95},
    {.top_p = 0.3, .min_p = 0.05},
    {.min_p = 0.1},
    {.temperature = 0.8f, .top_k = 200, .top_p = 0.8, .min_p = 0.02, .penalty = 1.3f},
    {.temperature = 0, .penalty = 2.0f},
    {.top_p = 0.0},
    {.min_p = 1.0},
};

}  // namespace tandem::test
