#include "model/adapters/fused_source.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "ops/loading.h"

namespace tandem::model {
namespace {

/// Rows that are merged in f32 at once: small compared with any plan.
constexpr int64_t kRows = 256;

class FusedSource final : public WeightSource {
 public:
  FusedSource(std::unique_ptr<WeightSource> base, std::vector<WeightedAdapter> adapters,
              const ModelConfig& config)
      : base_(std::move(base)), adapters_(std::move(adapters)) {
    for (int layer = 0; layer < config.n_layers; ++layer)
      for (const Weight weight : adapter_weights()) add_matrix(weight, layer, config);
    for (const Weight weight : {Weight::tok_emb, Weight::lm_head}) add_matrix(weight, 0, config);
  }

  void rows(Weight weight, int layer, int64_t begin, int64_t end, DType dtype,
            void* out) const override {
    const int at = is_per_layer(weight) ? layer : 0;
    const auto it = matrices_.find({weight, at});
    if (it == matrices_.end()) return base_->rows(weight, layer, begin, end, dtype, out);
    const Matrix& m = it->second;
    if (m.only_replaced) {
      base_->rows(weight, layer, begin, end, dtype, out);
      for (const WeightedAdapter* a : m.adapters)
        std::get<Adapter>(a->adapter).replace(weight, layer, begin, end, dtype, out);
      return;
    }
    std::vector<float> wide;
    for (int64_t first = begin; first < end; first += kRows) {
      const int64_t last = std::min(end, first + kRows);
      const auto n = static_cast<size_t>((last - first) * m.in);
      auto* const to = static_cast<std::byte*>(out) +
                       static_cast<size_t>((first - begin) * m.in) * dtype_bytes(dtype);
      if (dtype != DType::f32) wide.resize(n);
      const std::span<float> values(
          dtype == DType::f32 ? reinterpret_cast<float*>(to) : wide.data(), n);
      base_->rows(weight, layer, first, last, DType::f32, values.data());
      add_deltas(m, weight, at, first, last, values);
      if (dtype != DType::f32)
        ops::convert(to, dtype, wide.data(), DType::f32, static_cast<int64_t>(n));
    }
  }

  bool rows_on_device(Weight weight, int layer, int64_t begin, int64_t end, DType dtype,
                      void* device, Stream stream) const override {
    return !matrices_.contains({weight, is_per_layer(weight) ? layer : 0}) &&
           base_->rows_on_device(weight, layer, begin, end, dtype, device, stream);
  }
  std::vector<float> vector(Weight weight, int layer) const override {
    const int at = is_per_layer(weight) ? layer : 0;
    std::vector<float> values = base_->vector(weight, layer);
    const std::vector<float> before = values;
    int n = 0;
    for (const WeightedAdapter& a : adapters_) {
      const auto* factors = std::get_if<LowRankAdapter>(&a.adapter);
      if (factors == nullptr || a.weight == 0 || !factors->holds(weight, at)) continue;
      std::vector<float> merged = before;
      factors->merge(weight, at, merged);
      if (n++ == 0 && a.weight == 1)
        values = std::move(merged);
      else
        add_change(values, a.weight, merged, before);
    }
    return values;
  }
  void embed(std::span<const int32_t> ids, float* out) const override {
    base_->embed(ids, out);
    const auto it = matrices_.find({Weight::tok_emb, 0});
    if (it == matrices_.end()) return;
    const Matrix& m = it->second;
    for (const int32_t id : ids) {
      add_deltas(m, Weight::tok_emb, 0, id, int64_t{id} + 1,
                 std::span(out, static_cast<size_t>(m.in)));
      out += m.in;
    }
  }
  const WeightSource& base() const override { return base_->base(); }

  /// Its base, and its adapters before `adapters`; nothing is left here.
  std::unique_ptr<WeightSource> give_up(std::vector<WeightedAdapter>& adapters) {
    adapters.insert(adapters.begin(), std::make_move_iterator(adapters_.begin()),
                    std::make_move_iterator(adapters_.end()));
    return std::move(base_);
  }

 private:
  /// A matrix that adapters change.
  struct Matrix {
    std::vector<const WeightedAdapter*> adapters;  // in the order given
    std::vector<uint32_t> changes;  // [features] adapters that change each row, or column
    int64_t in = 0;
    bool only_replaced = true;  // slices at weight 1 that share no feature
    bool needs_base = false;    // some delta is a difference from the base's values
  };

  /// values += by (merged - before).
  static void add_change(std::span<float> values, float by, std::span<const float> merged,
                         std::span<const float> before) {
    for (size_t i = 0; i < values.size(); ++i) values[i] += by * (merged[i] - before[i]);
  }

  void add_matrix(Weight weight, int layer, const ModelConfig& config) {
    Matrix m;
    const io::Shape shape = weight_shape(weight, config);
    m.in = shape[1];
    m.changes.resize(static_cast<size_t>(shape[takes_columns(weight) ? 1 : 0]));
    for (const WeightedAdapter& a : adapters_) {
      if (a.weight == 0 || !holds(a.adapter, weight, layer)) continue;
      m.adapters.push_back(&a);
      if (const auto* slices = std::get_if<Adapter>(&a.adapter)) {
        for (const int32_t i : slices->index(weight, layer)) ++m.changes[static_cast<size_t>(i)];
        m.needs_base = true;
        m.only_replaced = m.only_replaced && a.weight == 1;
      } else {
        for (uint32_t& n : m.changes) ++n;
        m.needs_base =
            m.needs_base || !std::get<LowRankAdapter>(a.adapter).is_product(weight, layer);
        m.only_replaced = false;
      }
    }
    if (m.adapters.empty()) return;
    m.only_replaced =
        m.only_replaced && std::ranges::all_of(m.changes, [](uint32_t n) { return n <= 1; });
    if (m.only_replaced) m.changes = {};
    matrices_.emplace(std::pair(weight, layer), std::move(m));
  }

  /// shapes   rows [last - first, in] f32, those of the base
  void add_deltas(const Matrix& m, Weight weight, int layer, int64_t first, int64_t last,
                  std::span<float> rows) const {
    const WeightedAdapter& only = *m.adapters.front();
    if (const auto* factors = std::get_if<LowRankAdapter>(&only.adapter);
        factors != nullptr && m.adapters.size() == 1 && only.weight == 1)
      return factors->merge(weight, layer, first, last, rows);
    const std::vector<float> before =
        m.needs_base ? std::vector<float>(rows.begin(), rows.end()) : std::vector<float>();
    for (const WeightedAdapter* a : m.adapters) {
      if (const auto* slices = std::get_if<Adapter>(&a->adapter)) {
        slices->add(weight, layer, first, last, a->weight, m.changes, before, rows);
        continue;
      }
      const auto& factors = std::get<LowRankAdapter>(a->adapter);
      if (factors.is_product(weight, layer)) {
        factors.merge(weight, layer, first, last, rows, a->weight);
        continue;
      }
      std::vector<float> merged = before;
      factors.merge(weight, layer, first, last, merged);
      add_change(rows, a->weight, merged, before);
    }
  }

  std::unique_ptr<WeightSource> base_;
  std::vector<WeightedAdapter> adapters_;
  std::map<std::pair<Weight, int>, Matrix> matrices_;
};

class UntiedSource final : public WeightSource {
 public:
  explicit UntiedSource(std::unique_ptr<WeightSource> tied) : tied_(std::move(tied)) {}

  void rows(Weight weight, int layer, int64_t begin, int64_t end, DType dtype,
            void* out) const override {
    tied_->rows(own(weight), layer, begin, end, dtype, out);
  }
  bool rows_on_device(Weight weight, int layer, int64_t begin, int64_t end, DType dtype,
                      void* device, Stream stream) const override {
    return tied_->rows_on_device(own(weight), layer, begin, end, dtype, device, stream);
  }
  std::vector<float> vector(Weight weight, int layer) const override {
    return tied_->vector(weight, layer);
  }
  void embed(std::span<const int32_t> ids, float* out) const override { tied_->embed(ids, out); }

 private:
  static Weight own(Weight weight) { return weight == Weight::lm_head ? Weight::tok_emb : weight; }

  std::unique_ptr<WeightSource> tied_;
};

}  // namespace

std::unique_ptr<WeightSource> untied_source(std::unique_ptr<WeightSource> tied) {
  return std::make_unique<UntiedSource>(std::move(tied));
}

std::unique_ptr<WeightSource> fused_source(std::unique_ptr<WeightSource> base,
                                           std::vector<WeightedAdapter> adapters,
                                           const ModelConfig& config) {
  if (auto* const fused = dynamic_cast<FusedSource*>(base.get()); fused != nullptr)
    base = fused->give_up(adapters);
  return std::make_unique<FusedSource>(std::move(base), std::move(adapters), config);
}

}  // namespace tandem::model
