#include "ops/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "base/parallel.h"

namespace tandem::ops {
namespace {

constexpr const char* kCosName = "weights/rope_cos";
constexpr const char* kStagingName = "load/rope";
constexpr const char* kSinName = "weights/rope_sin";

/// The first table of a model has the plain name.
std::string name_of(const char* name, int id) { return id == 0 ? name : name + std::to_string(id); }

size_t table_bytes(int max_position, int dims) {
  return static_cast<size_t>(max_position) * static_cast<size_t>(dims / 2) * sizeof(float);
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

/// Where a frequency lies between kept and stretched: dimensions that turn more than beta_fast
/// times over the original context are kept, those that turn less than beta_slow times stretched by
/// the whole factor, those between blended by their place in the order of dimensions. f32 from
/// there on, as in PyTorch.
class YarnBlend {
 public:
  YarnBlend(const RopeSpec& spec, int head_dim) : factor_(static_cast<float>(spec.scaling.factor)) {
    const RopeScaling& s = spec.scaling;
    const auto dim_of = [&](double turns) {
      const double positions = s.original_context / (turns * 2 * std::numbers::pi);
      return head_dim * std::log(positions) / (2 * std::log(spec.theta));
    };
    double low = dim_of(s.beta_fast), high = dim_of(s.beta_slow);
    if (s.whole_dims) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low_ = std::max(low, 0.0);
    high_ = std::min(high, head_dim - 1.0);
    if (high_ == low_) high_ += 0.001;
  }

  /// wave     theta ^ (2 i / head_dim) of dimension i
  float frequency(int i, float wave) const {
    const float place =
        (static_cast<float>(i) - static_cast<float>(low_)) / static_cast<float>(high_ - low_);
    const float kept = 1.0f - std::clamp(place, 0.0f, 1.0f);
    return 1.0f / (factor_ * wave) * (1.0f - kept) + 1.0f / wave * kept;
  }

 private:
  float factor_;
  double low_, high_;
};

}  // namespace

double yarn_attention_factor(double factor) { return 0.1 * std::log(factor) + 1.0; }

std::vector<float> rope_inverse_frequencies(const RopeSpec& spec, int head_dim, int64_t longest) {
  std::vector<float> frequencies;
  const RopeScaling& s = spec.scaling;
  const std::vector<float>& factors = is_long(spec, longest) ? s.long_factors : s.short_factors;
  const int dims = rotated_dims(spec, head_dim);
  const YarnBlend yarn(spec, dims);
  for (int i = 0; i < dims; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(dims);
    const auto wave = static_cast<float>(std::pow(spec.theta, double{exponent}));
    float f = 1.0f / wave;
    if (s.kind == RopeScalingKind::yarn) f = yarn.frequency(i / 2, wave);
    if (s.kind == RopeScalingKind::linear) f /= static_cast<float>(s.factor);
    if (s.kind == RopeScalingKind::llama3) f = stretch_llama3(s, f);
    if (s.kind == RopeScalingKind::longrope)
      f = 1.0f / (factors[static_cast<size_t>(i / 2)] * wave);
    frequencies.push_back(f);
  }
  return frequencies;
}

const RopeTable& rope_at(std::span<const RopeTable> tables, int id) {
  static const RopeTable none;
  return id < 0 ? none : tables[static_cast<size_t>(id)];
}

void RopeTable::plan(int max_position, int dims, MemoryPlan& plan, Device device, int id) {
  plan.add(name_of(kCosName, id), table_bytes(max_position, dims), device);
  plan.add(name_of(kSinName, id), table_bytes(max_position, dims), device);
  if (device.kind == Device::Kind::cuda)
    plan.add(name_of(kStagingName, id), 2 * table_bytes(max_position, dims), {}, Lifetime::load);
}

RopeTable::RopeTable(const RopeSpec& spec, int max_position, int head_dim, Arena& arena,
                     const Exec& exec, int id, int64_t longest)
    : cos_(static_cast<float*>(arena.take(name_of(kCosName, id)))),
      sin_(static_cast<float*>(arena.take(name_of(kSinName, id)))),
      dims_(rotated_dims(spec, head_dim)),
      scale_(static_cast<float>(spec.scaling.attention_factor)) {
  float *cos = cos_, *sin = sin_;
  if (exec.on_gpu()) {
    cos = static_cast<float*>(arena.take(name_of(kStagingName, id)));
    sin = cos + table_bytes(max_position, dims_) / sizeof(float);
  }
  const std::vector<float> frequencies =
      rope_inverse_frequencies(spec, head_dim, longest > 0 ? longest : max_position);
  parallel_ranges(max_position, 256, [&](int begin, int end) {
    size_t at = static_cast<size_t>(begin) * frequencies.size();
    for (int position = begin; position < end; ++position)
      for (const float frequency : frequencies) {
        const double angle = static_cast<float>(position) * frequency;  // rounded to f32
        cos[at] = static_cast<float>(std::cos(angle)) * scale_;
        sin[at++] = static_cast<float>(std::sin(angle)) * scale_;
      }
  });
  if (!exec.on_gpu()) return;
  exec.queue->copy_in(cos_, cos, table_bytes(max_position, dims_));
  exec.queue->copy_in(sin_, sin, table_bytes(max_position, dims_));
  exec.queue->wait();
  arena.give_back(name_of(kStagingName, id));
}

}  // namespace tandem::ops
