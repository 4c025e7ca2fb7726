#include <doctest/doctest.h>

#include "ops/linear_gradient.h"
#include "train/selection/calibration.h"
#include "train/trainer_runs.h"

using namespace tandem;
using namespace tandem::test;
using model::Role;

namespace {

/// A checkpoint in which channel 7 of every layer has other gates, and channel 9 other ups.
class Altered : public model::WeightSource {
 public:
  Altered(std::unique_ptr<model::WeightSource> source, const model::ModelConfig& config)
      : source_(std::move(source)), config_(config) {}

  WeightFormat native(model::MatrixId id) const override { return source_->native(id); }
  void rows(model::MatrixId id, int64_t begin, int64_t end, WeightFormat to,
            void* out) const override {
    source_->rows(id, begin, end, to, out);
    const auto scale = [&](int64_t row, float by) {
      if (row < begin || row >= end) return;
      float* const at = static_cast<float*>(out) + (row - begin) * config_.dim;
      for (int i = 0; i < config_.dim; ++i) at[i] *= by;
    };
    if (id.role == model::Role::gate) scale(7, 0);
    if (id.role == model::Role::up) scale(9, 2);
  }
  std::vector<float> vector(model::MatrixId id) const override { return source_->vector(id); }
  void embed(std::span<const int32_t> ids, float* out) const override { source_->embed(ids, out); }

 private:
  std::unique_ptr<model::WeightSource> source_;
  model::ModelConfig config_;
};

std::unique_ptr<model::WeightSource> source_of(const std::string& model) {
  return decode::open_model(small_model(model).string(), 0).source;
}

}  // namespace

TEST_SUITE("train/calibration") {
  TEST_CASE(
      "scores by gradients are those of the whole gradient, by weights those of its weights") {
    for (const char* model : {"llama-3.1", "qwen2-untied-sharded"}) {
      CAPTURE(model);
      const train::TrainerSpec spec = trainer_spec(model);
      const model::ModelConfig& c = spec.config;
      const std::vector<train::MicroBatch> batches = {random_documents({40, 9}, c.vocab_size, 31),
                                                      random_documents({70}, c.vocab_size, 32)};
      train::Calibration calibration(spec, source_of(model));
      const train::Scores gradients = calibration.gradients(batches);
      const train::Scores weights = calibration.weights();
      const train::Scores both = train::products(gradients, weights);
      const auto trainer = make_trainer(model, spec, train::full_set(c));
      trainer->gradients(batches);
      const auto norm = [&](std::span<const float> values, const train::TrainedMatrix& m,
                            bool columns, int64_t first, int64_t n) {
        double sum = 0;
        for (int64_t r = 0; r < m.rows; ++r)
          for (int64_t i = 0; i < m.cols; ++i) {
            const int64_t feature = columns ? i : r;
            if (feature < first || feature >= first + n) continue;
            sum += std::pow(double{values[static_cast<size_t>(m.offset + r * m.cols + i)]}, 2);
          }
        return std::sqrt(sum);
      };
      const auto& l = trainer->set().layers[1];
      const int64_t d = c.head_dim;
      const auto check = [&](Role matrix, size_t unit, const train::TrainedMatrix& m, bool columns,
                             int64_t first, int64_t n) {
        CAPTURE(model::word_of(matrix));
        const double of_gradient = norm(trainer->gradient(), m, columns, first, n),
                     of_weights = norm(trainer->state().values, m, columns, first, n);
        CHECK(gradients[matrix][1][unit] == doctest::Approx(of_gradient).epsilon(1e-4));
        CHECK(weights[matrix][1][unit] == doctest::Approx(of_weights).epsilon(1e-6));
        CHECK(both[matrix][1][unit] == doctest::Approx(of_gradient * of_weights).epsilon(1e-4));
      };
      check(Role::q, 2, l[Role::qkv], false, 2 * d, d);
      check(Role::k, 0, l[Role::qkv], false, c.q_dim(), d);
      check(Role::v, 0, l[Role::qkv], false, c.q_dim() + c.kv_dim(), d);
      check(Role::o, 3, l[Role::o], true, 3 * d, d);
      check(Role::gate, 5, l[Role::gate_up], false, 5, 1);
      check(Role::up, 6, l[Role::gate_up], false, c.ffn_dim + 6, 1);
      check(Role::down, 11, l[Role::down], true, 11, 1);
    }
  }

  TEST_CASE("scores by activations follow the channels, over all rows of all micro-batches") {
    const train::TrainerSpec spec = trainer_spec("llama-3.1");
    const model::ModelConfig& c = spec.config;
    const std::vector<train::MicroBatch> batches = {random_documents({40, 9}, c.vocab_size, 33),
                                                    random_documents({70}, c.vocab_size, 34)};
    train::Calibration plain(spec, source_of("llama-3.1"));
    train::Calibration altered(spec, std::make_unique<Altered>(source_of("llama-3.1"), c));
    const train::Scores a = plain.activations(batches), b = altered.activations(batches);
    // The first layer's inputs are the same in both.
    const auto of = [](const train::Scores& s, Role m, size_t unit) { return s[m][0][unit]; };
    CHECK(of(a, Role::gate, 7) > 0);
    CHECK(of(b, Role::gate, 7) == 0);
    CHECK(of(b, Role::down, 7) == 0);
    CHECK(of(b, Role::up, 7) == of(a, Role::up, 7));
    CHECK(of(b, Role::up, 9) == doctest::Approx(2 * of(a, Role::up, 9)).epsilon(1e-5));
    CHECK(of(b, Role::down, 9) == doctest::Approx(2 * of(a, Role::down, 9)).epsilon(1e-5));
    for (const Role m : {Role::q, Role::k, Role::v, Role::o}) CHECK(a[m][0] == b[m][0]);
    // Squares add up over micro-batches.
    const train::Scores first = plain.activations({batches.data(), 1}),
                        second = plain.activations({batches.data() + 1, 1});
    for (const Role m : {Role::v, Role::o, Role::down})
      CHECK(of(a, m, 1) ==
            doctest::Approx(std::hypot(of(first, m, 1), of(second, m, 1))).epsilon(1e-6));
    // A-small takes the channel that is never active.
    train::SelectionSpec s;
    s.ratio[Role::down] = 0.01;
    CHECK(train::select_by_score(s, c, b, false)[0][Role::down] == std::vector<int32_t>{7});
  }
}
