#include "eval/gate_quantiles.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "base/check.h"
#include "kernels/ffn/gate_ref.h"
#include "kv/scoped_slots.h"
#include "ops/loading.h"

namespace tandem::eval {
namespace {

// Of a forward, whose gates of all layers are held.
constexpr int kRows = 64;
// Bins of |act(g)|: its exponent and the first bits of its mantissa.
constexpr int kMantissaBits = 10, kDropped = 23 - kMantissaBits, kBins = 1 << (8 + kMantissaBits);

constexpr const char *kGates = "calibration/gates", *kWide = "calibration/gates in f32",
                     *kHistograms = "calibration/histograms";

size_t gate_bytes(const model::ModelConfig& c, DType dtype) {
  return size_t{kRows} * 2 * static_cast<size_t>(c.ffn_dim) * dtype_bytes(dtype);
}

/// Counts of one layer.
class Histogram {
 public:
  explicit Histogram(int64_t* bins) : bins_(bins) {}

  void add(float activation) {
    const float size = std::abs(activation);
    if (!std::isfinite(size))
      throw Error(ErrorKind::numeric, "channels", "the model's gates have non-finite values");
    ++bins_[std::bit_cast<uint32_t>(size) >> kDropped];
    ++n_;
  }
  /// The lower edge of the bin with which, from above, a share `keep` is reached.
  float threshold(double keep) const { return edge(find(keep)); }
  int64_t reaching(double keep) const {
    int64_t n = 0;
    for (int bin = find(keep); bin < kBins; ++bin) n += bins_[bin];
    return n;
  }
  int64_t n() const { return n_; }

 private:
  static float edge(int bin) {
    return std::bit_cast<float>(static_cast<uint32_t>(bin) << kDropped);
  }
  int find(double keep) const {
    const double wanted = keep * static_cast<double>(n_);
    int64_t above = 0;
    int bin = kBins;
    while (bin > 0 && static_cast<double>(above) < wanted) above += bins_[--bin];
    return std::min(bin, kBins - 1);
  }

  int64_t* bins_;
  int64_t n_ = 0;
};

}  // namespace

decode::EngineSpec gates_engine_spec(DType compute, int context) {
  decode::EngineSpec spec;
  spec.compute = compute;
  spec.prefill_chunk = kRows;
  spec.max_tokens = context;
  spec.total_tokens = context;
  spec.caches = {{}};
  return spec;
}

void plan_thresholds(const model::ModelConfig& c, const decode::EngineSpec& spec,
                     MemoryPlan& plan) {
  const auto layers = static_cast<size_t>(c.n_layers);
  plan.add(kGates, layers * gate_bytes(c, spec.compute), spec.device);
  plan.add(kWide, gate_bytes(c, DType::f32), spec.device);
  plan.add(kHistograms, layers * kBins * sizeof(int64_t));
}

MeasuredThresholds measure_thresholds(decode::Engine& engine, std::span<const Window> windows,
                                      double keep,
                                      const std::function<bool(int64_t done)>& progress) {
  const model::ModelConfig& c = engine.config();
  const DType dtype = engine.model().options().dtype;
  MemoryPlan plan;
  plan_thresholds(c, engine.spec(), plan);
  Arena arena(plan);
  auto* const gates = static_cast<std::byte*>(arena.take(kGates));
  void* const wide = arena.take(kWide);
  auto* const bins = static_cast<int64_t*>(arena.take(kHistograms));
  std::vector<model::LayerActivations> kept(static_cast<size_t>(c.n_layers));
  std::vector<Histogram> histograms;
  for (size_t i = 0; i < kept.size(); ++i) {
    kept[i].gate_up = gates + i * gate_bytes(c, dtype);
    histograms.emplace_back(bins + i * kBins);
  }
  MeasuredThresholds measured;
  for (const Window& window : windows) {
    kv::ScopedSlots slots(engine.cache());
    slots.create();
    const std::span<const int32_t> ids = window.ids;
    for (size_t begin = 0, n = 0; begin < ids.size(); begin += n) {
      n = std::min<size_t>(kRows, ids.size() - begin);
      const kv::SeqRows rows[] = {{slots[0], static_cast<int>(n), begin + n == ids.size()}};
      const kv::Step step = engine.cache().begin({.phase = kv::Phase::prefill, .rows = rows});
      engine.model().forward(ids.subspan(begin, n), step, engine.cache(), kept);
      engine.cache().commit(step);
      const auto n_rows = static_cast<int64_t>(n), width = 2 * int64_t{c.ffn_dim};
      const Tensor f32(wide, DType::f32, {n_rows, width}, engine.exec().device());
      for (size_t layer = 0; layer < kept.size(); ++layer) {
        ops::convert(wide, DType::f32, kept[layer].gate_up, dtype, n_rows * width,
                     engine.exec().stream());
        const Tensor host = engine.on_host(f32);
        for (int64_t r = 0; r < n_rows; ++r)
          for (int64_t j = 0; j < c.ffn_dim; ++j)
            histograms[layer].add(gate_value(c.layer(static_cast<int>(layer)).ffn.gate,
                                             host.as<float>()[r * width + j]));
      }
      measured.n_tokens += n_rows;
      if (!progress(measured.n_tokens)) return measured;
    }
  }
  ffn::Thresholds& t = measured.thresholds;
  t.model = engine.files().name;
  t.fingerprint = engine.files().fingerprint;
  int64_t reaching = 0, all = 0;
  for (const Histogram& h : histograms) {
    t.values.push_back(h.threshold(keep));
    reaching += h.reaching(keep);
    all += h.n();
  }
  t.keep = static_cast<double>(reaching) / static_cast<double>(all);
  return measured;
}

}  // namespace tandem::eval
