#include "model/adapters/fused_source.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

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
      for (const Role role : kLayerRoles) add_matrix({role, layer}, config);
    for (const Role role : {Role::embedding, Role::head}) add_matrix({role}, config);
  }

  WeightFormat native(MatrixId id) const override {
    return matrices_.contains(id) ? WeightFormat(DType::f32) : base_->native(id);
  }

  void rows(MatrixId id, int64_t begin, int64_t end, WeightFormat to, void* out) const override {
    const auto it = matrices_.find(id);
    if (it == matrices_.end()) return base_->rows(id, begin, end, to, out);
    const Matrix& m = it->second;
    if (m.only_replaced && (to == DType::f32 || to == DType::bf16)) {
      base_->rows(id, begin, end, to, out);
      for (const WeightedAdapter* a : m.adapters)
        std::get<Adapter>(a->adapter).replace(id, begin, end, numbers_of(to), out);
      return;
    }
    const auto merged = [&](int64_t first, int64_t last, void* at) {
      base_->rows(id, first, last, DType::f32, at);
      add_deltas(m, id, first, last,
                 {static_cast<float*>(at), static_cast<size_t>((last - first) * m.in)});
    };
    StoredWeights{canonical_name(id), DType::f32, m.in, kRows, merged}.read(begin, end, to, out);
  }

  bool rows_on_device(MatrixId id, int64_t begin, int64_t end, WeightFormat to, void* device,
                      Stream stream) const override {
    return !matrices_.contains(id) && base_->rows_on_device(id, begin, end, to, device, stream);
  }
  std::vector<float> vector(MatrixId id) const override {
    std::vector<float> values = base_->vector(id);
    const std::vector<float> before = values;
    int n = 0;
    for (const WeightedAdapter& a : adapters_) {
      const auto* factors = std::get_if<LowRankAdapter>(&a.adapter);
      if (factors == nullptr || a.weight == 0 || !factors->holds(id)) continue;
      std::vector<float> merged = before;
      factors->merge(id, merged);
      if (n++ == 0 && a.weight == 1)
        values = std::move(merged);
      else
        add_change(values, a.weight, merged, before);
    }
    return values;
  }
  void embed(std::span<const int32_t> ids, float* out) const override {
    base_->embed(ids, out);
    const auto it = matrices_.find({Role::embedding});
    if (it == matrices_.end()) return;
    const Matrix& m = it->second;
    for (const int32_t id : ids) {
      add_deltas(m, {Role::embedding}, id, int64_t{id} + 1,
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

  void add_matrix(MatrixId id, const ModelConfig& config) {
    Matrix m;
    const io::Shape shape = shape_of(id.role, config);
    m.in = shape[1];
    m.changes.resize(static_cast<size_t>(shape[ends_in_stream(id.role) ? 1 : 0]));
    for (const WeightedAdapter& a : adapters_) {
      if (a.weight == 0 || !holds(a.adapter, id)) continue;
      m.adapters.push_back(&a);
      if (const auto* slices = std::get_if<Adapter>(&a.adapter)) {
        for (const int32_t i : slices->index(id)) ++m.changes[static_cast<size_t>(i)];
        m.needs_base = true;
        m.only_replaced = m.only_replaced && a.weight == 1;
      } else {
        for (uint32_t& n : m.changes) ++n;
        m.needs_base = m.needs_base || !std::get<LowRankAdapter>(a.adapter).is_product(id);
        m.only_replaced = false;
      }
    }
    if (m.adapters.empty()) return;
    m.only_replaced =
        m.only_replaced && std::ranges::all_of(m.changes, [](uint32_t n) { return n <= 1; });
    if (m.only_replaced) m.changes = {};
    matrices_.emplace(id, std::move(m));
  }

  /// shapes   rows [last - first, in] f32, those of the base
  void add_deltas(const Matrix& m, MatrixId id, int64_t first, int64_t last,
                  std::span<float> rows) const {
    const WeightedAdapter& only = *m.adapters.front();
    if (const auto* factors = std::get_if<LowRankAdapter>(&only.adapter);
        factors != nullptr && m.adapters.size() == 1 && only.weight == 1)
      return factors->merge(id, first, last, rows);
    const std::vector<float> before =
        m.needs_base ? std::vector<float>(rows.begin(), rows.end()) : std::vector<float>();
    for (const WeightedAdapter* a : m.adapters) {
      if (const auto* slices = std::get_if<Adapter>(&a->adapter)) {
        slices->add(id, first, last, a->weight, m.changes, before, rows);
        continue;
      }
      const auto& factors = std::get<LowRankAdapter>(a->adapter);
      if (factors.is_product(id)) {
        factors.merge(id, first, last, rows, a->weight);
        continue;
      }
      std::vector<float> merged = before;
      factors.merge(id, first, last, merged);
      add_change(rows, a->weight, merged, before);
    }
  }

  std::unique_ptr<WeightSource> base_;
  std::vector<WeightedAdapter> adapters_;
  std::map<MatrixId, Matrix> matrices_;
};

class UntiedSource final : public WeightSource {
 public:
  explicit UntiedSource(std::unique_ptr<WeightSource> tied) : tied_(std::move(tied)) {}

  WeightFormat native(MatrixId id) const override { return tied_->native(own(id)); }
  void rows(MatrixId id, int64_t begin, int64_t end, WeightFormat to, void* out) const override {
    tied_->rows(own(id), begin, end, to, out);
  }
  bool rows_on_device(MatrixId id, int64_t begin, int64_t end, WeightFormat to, void* device,
                      Stream stream) const override {
    return tied_->rows_on_device(own(id), begin, end, to, device, stream);
  }
  std::vector<float> vector(MatrixId id) const override { return tied_->vector(id); }
  void embed(std::span<const int32_t> ids, float* out) const override { tied_->embed(ids, out); }

 private:
  static MatrixId own(MatrixId id) {
    return id.role == Role::head ? MatrixId{Role::embedding} : id;
  }

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
