#include "ops/rope_table.h"

#include <cmath>
#include <numbers>

#include "base/parallel.h"

namespace tandem::ops {
namespace {

constexpr const char* kCosName = "weights/rope_cos";
constexpr const char* kStagingName = "load/rope";
constexpr const char* kSinName = "weights/rope_sin";

size_t table_bytes(int max_position, int head_dim) {
  return static_cast<size_t>(max_position) * static_cast<size_t>(head_dim / 2) * sizeof(float);
}

/// Long waves are stretched by the factor, short ones kept, those between blended by wavelength.
/// Every step is f32, and a number over a tensor is the tensor's reciprocal times the number, since
/// that is how PyTorch evaluates it.
float stretch_llama3(const RopeScaling& spec, float frequency) {
  const auto context = static_cast<float>(spec.original_context);
  const auto factor = static_cast<float>(spec.factor);
  const double low_wave = spec.original_context / spec.low_freq_factor;
  const double high_wave = spec.original_context / spec.high_freq_factor;
  const float wave = 1.0f / frequency * static_cast<float>(2 * std::numbers::pi);
  if (wave > static_cast<float>(low_wave)) return frequency / factor;
  if (wave < static_cast<float>(high_wave)) return frequency;
  const float blend = (1.0f / wave * context - static_cast<float>(spec.low_freq_factor)) /
                      static_cast<float>(spec.high_freq_factor - spec.low_freq_factor);
  return (1.0f - blend) * frequency / factor + blend * frequency;
}

}  // namespace

std::vector<float> rope_inverse_frequencies(const RopeSpec& spec, int head_dim) {
  std::vector<float> frequencies;
  for (int i = 0; i < head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(head_dim);
    float f = 1.0f / static_cast<float>(std::pow(spec.theta, double{exponent}));
    if (spec.scaling.kind == RopeScalingKind::linear) f /= static_cast<float>(spec.scaling.factor);
    if (spec.scaling.kind == RopeScalingKind::llama3) f = stretch_llama3(spec.scaling, f);
    frequencies.push_back(f);
  }
  return frequencies;
}

void RopeTable::plan(int max_position, int head_dim, MemoryPlan& plan, Device device) {
  plan.add(kCosName, table_bytes(max_position, head_dim), device);
  plan.add(kSinName, table_bytes(max_position, head_dim), device);
  if (device.kind == Device::Kind::cuda)
    plan.add(kStagingName, 2 * table_bytes(max_position, head_dim), {}, Lifetime::load);
}

RopeTable::RopeTable(const RopeSpec& spec, int max_position, int head_dim, Arena& arena,
                     const Exec& exec)
    : cos_(static_cast<float*>(arena.take(kCosName))),
      sin_(static_cast<float*>(arena.take(kSinName))) {
  float *cos = cos_, *sin = sin_;
  if (exec.on_gpu()) {
    cos = static_cast<float*>(arena.take(kStagingName));
    sin = cos + table_bytes(max_position, head_dim) / sizeof(float);
  }
  const std::vector<float> frequencies = rope_inverse_frequencies(spec, head_dim);
  parallel_ranges(max_position, 256, [&](int begin, int end) {
    size_t at = static_cast<size_t>(begin) * frequencies.size();
    for (int position = begin; position < end; ++position)
      for (const float frequency : frequencies) {
        const double angle = static_cast<float>(position) * frequency;  // rounded to f32
        cos[at] = static_cast<float>(std::cos(angle));
        sin[at++] = static_cast<float>(std::sin(angle));
      }
  });
  if (!exec.on_gpu()) return;
  exec.queue->copy_in(cos_, cos, table_bytes(max_position, head_dim));
  exec.queue->copy_in(sin_, sin, table_bytes(max_position, head_dim));
  exec.queue->wait();
  arena.give_back(kStagingName);
}

}  // namespace tandem::ops
