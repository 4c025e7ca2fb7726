// S2FT as the paper describes it: heads and channels are reordered at load so that the selected
// ones come first, and slices are contiguous. Here it judges the slices by index.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "train/trainer_runs.h"

using namespace tandem;
using namespace tandem::test;
using model::Role;

namespace {

using Order = std::vector<int32_t>;  // old places of the new ones

/// The selected units first, others behind, both ascending.
Order selected_first(const std::vector<int32_t>& selected, int n) {
  Order order(selected);
  for (int32_t i = 0; i < n; ++i)
    if (!std::ranges::binary_search(selected, i)) order.push_back(i);
  return order;
}

/// Features of units of a width.
Order widened(const Order& units, int width) {
  Order features;
  for (const int32_t unit : units)
    for (int32_t i = 0; i < width; ++i) features.push_back(unit * width + i);
  return features;
}

/// How a layer's features are reordered.
struct LayerOrder {
  Order q, kv, ffn;  // features of q and o, of k and v, of the FFN
};

/// A checkpoint whose heads and channels are reordered.
class Permuted : public model::WeightSource {
 public:
  Permuted(std::unique_ptr<model::WeightSource> source, const model::ModelConfig& config,
           std::vector<LayerOrder> orders)
      : source_(std::move(source)), config_(config), orders_(std::move(orders)) {}

  WeightFormat native(model::MatrixId id) const override { return source_->native(id); }
  void rows(model::MatrixId id, int64_t begin, int64_t end, WeightFormat as,
            void* out) const override {
    using model::Role;
    REQUIRE((as == DType::f32));
    if (id.role == Role::embedding || id.role == Role::head)
      return source_->rows(id, begin, end, as, out);
    const io::Shape shape = model::shape_of(id.role, config_);
    const auto n_rows = static_cast<size_t>(shape[0]), n_cols = static_cast<size_t>(shape[1]);
    std::vector<float> all(n_rows * n_cols);
    source_->rows(id, 0, static_cast<int64_t>(n_rows), as, all.data());
    const LayerOrder& o = orders_[static_cast<size_t>(id.layer)];
    const std::map<Role, const Order*> of_rows = {{Role::q, &o.q},
                                                  {Role::k, &o.kv},
                                                  {Role::v, &o.kv},
                                                  {Role::gate, &o.ffn},
                                                  {Role::up, &o.ffn}};
    const std::map<Role, const Order*> of_columns = {{Role::o, &o.q}, {Role::down, &o.ffn}};
    float* to = static_cast<float*>(out);
    for (auto r = static_cast<size_t>(begin); r < static_cast<size_t>(end); ++r)
      for (size_t c = 0; c < n_cols; ++c) {
        const auto rows = of_rows.find(id.role), columns = of_columns.find(id.role);
        const size_t from_row = rows == of_rows.end() ? r : static_cast<size_t>((*rows->second)[r]);
        const size_t from_column =
            columns == of_columns.end() ? c : static_cast<size_t>((*columns->second)[c]);
        *to++ = all[from_row * n_cols + from_column];
      }
  }
  std::vector<float> vector(model::MatrixId id) const override { return source_->vector(id); }
  void embed(std::span<const int32_t> ids, float* out) const override { source_->embed(ids, out); }

 private:
  std::unique_ptr<model::WeightSource> source_;
  model::ModelConfig config_;
  std::vector<LayerOrder> orders_;
};

constexpr const char* kModel = "llama-3.1";  // 4 heads, 2 KV heads

std::unique_ptr<model::WeightSource> source_of() {
  return decode::open_model(small_model(kModel).string(), 0).source;
}

/// Losses of steps over one micro-batch.
std::vector<double> losses(train::Trainer& trainer, int steps) {
  const train::MicroBatch batch = random_documents({50, 20}, trainer.spec().config.vocab_size, 41);
  std::vector<double> all;
  for (int i = 0; i < steps; ++i) all.push_back(trainer.step({&batch, 1}).loss.mean());
  return all;
}

}  // namespace

TEST_SUITE("train/permutation") {
  TEST_CASE("slices by index train as slices of a reordered model do") {
    const train::TrainerSpec spec = trainer_spec(kModel);
    const model::ModelConfig& c = spec.config;
    // A whole group of heads, so that they can come first: o of KV head 1's, and channels.
    std::vector<train::LayerUnits> units, first_units;
    std::vector<LayerOrder> orders;
    for (int l = 0; l < c.n_layers; ++l) {
      train::LayerUnits u, first;
      u[Role::o] = {2, 3};
      u[Role::v] = {1};
      u[Role::down] = u[Role::up] = {3 + l, 40, 41, 111};
      first[Role::o] = {0, 1};
      first[Role::v] = {0};
      first[Role::down] = first[Role::up] = {0, 1, 2, 3};
      orders.push_back({.q = widened(selected_first(u[Role::o], c.n_heads), c.head_dim),
                        .kv = widened(selected_first(u[Role::v], c.n_kv_heads), c.head_dim),
                        .ffn = selected_first(u[Role::down], c.ffn_dim)});
      units.push_back(u);
      first_units.push_back(first);
    }
    train::Trainer by_index(spec, train::slices_of(units, c), source_of());
    train::Trainer by_order(spec, train::slices_of(first_units, c),
                            std::make_unique<Permuted>(source_of(), c, orders));
    REQUIRE(by_index.set().size == by_order.set().size);
    const auto rows_of_up = [&](train::Trainer& t) {
      return t.set().layers[0][Role::gate_up].index;
    };
    CHECK(rows_of_up(by_index) != rows_of_up(by_order));
    // The same values, in the same flat order: selected units ascend in both.
    CHECK(same(copy_of(by_index.state().values), copy_of(by_order.state().values)));
    const std::vector<double> a = losses(by_index, 6), b = losses(by_order, 6);
    // Sums over heads and channels go in another order.
    for (size_t i = 0; i < a.size(); ++i) CHECK(a[i] == doctest::Approx(b[i]).epsilon(1e-5));
    CHECK(a.back() < a.front());
    CHECK(relative_distance(by_index.state().values, by_order.state().values) < 1e-4);
  }

  TEST_CASE("heads moved to another group are another function") {
    const train::TrainerSpec spec = trainer_spec(kModel);
    const model::ModelConfig& c = spec.config;
    const auto loss = [&](const Order& heads, const Order& kv_heads) {
      LayerOrder order{.q = widened(heads, c.head_dim),
                       .kv = widened(kv_heads, c.head_dim),
                       .ffn = selected_first({}, c.ffn_dim)};
      train::TrainedSet nothing;
      nothing.layers.resize(static_cast<size_t>(c.n_layers));
      train::lay_out(nothing, c);
      train::Trainer trainer(
          spec, nothing,
          std::make_unique<Permuted>(source_of(), c,
                                     std::vector<LayerOrder>(nothing.layers.size(), order)));
      const train::MicroBatch batch = random_documents({50}, c.vocab_size, 42);
      return trainer.loss({&batch, 1}).mean();
    };
    const double as_it_is = loss({0, 1, 2, 3}, {0, 1});
    CHECK(loss({1, 0, 2, 3}, {0, 1}) == doctest::Approx(as_it_is).epsilon(1e-6));
    CHECK(loss({3, 2, 0, 1}, {1, 0}) == doctest::Approx(as_it_is).epsilon(1e-6));
    CHECK(std::abs(loss({0, 2, 1, 3}, {0, 1}) - as_it_is) > 1e-2);
  }
}
