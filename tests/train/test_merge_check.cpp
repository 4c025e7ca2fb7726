#include <doctest/doctest.h>

#include "error_text.h"
#include "model/adapters/fused_source.h"
#include "model/adapters/merge_check.h"
#include "temporary_folder.h"
#include "train/export/export_adapter.h"
#include "train/trainer_runs.h"

using namespace tandem;
using namespace tandem::test;
using model::Role;

namespace {

/// Weights of another source, one of them flipped in its lowest bit.
class Spoiled final : public model::WeightSource {
 public:
  Spoiled(std::unique_ptr<model::WeightSource> of, model::MatrixId id, int64_t row, int64_t col)
      : of_(std::move(of)), id_(id), row_(row), col_(col) {}

  WeightFormat native(model::MatrixId id) const override { return of_->native(id); }
  void rows(model::MatrixId id, int64_t begin, int64_t end, WeightFormat to,
            void* out) const override {
    of_->rows(id, begin, end, to, out);
    if (id != id_ || row_ < begin || row_ >= end) return;
    const int64_t cols = model::shape_of(id.role, config)[1];
    auto* bytes = static_cast<unsigned char*>(out);
    bytes[static_cast<size_t>((row_ - begin) * cols + col_) * row_bytes(to, 1)] ^= 1;
  }
  std::vector<float> vector(model::MatrixId id) const override {
    std::vector<float> v = of_->vector(id);
    if (id == id_) v[static_cast<size_t>(col_)] += 1;
    return v;
  }
  void embed(std::span<const int32_t> ids, float* out) const override { of_->embed(ids, out); }

  model::ModelConfig config;

 private:
  std::unique_ptr<model::WeightSource> of_;
  model::MatrixId id_;
  int64_t row_, col_;
};

}  // namespace

TEST_SUITE("tools/merge_check") {
  TEST_CASE("one flipped bit of a merged model is found, wherever it is") {
    const TemporaryFolder folder;
    const train::TrainerSpec spec = trainer_spec("llama-3.1");
    const model::ModelConfig& c = spec.config;
    const train::TrainedSet set =
        train::slices_of(train::select_random(half_of_everything(), c), c);
    const auto trainer = make_trainer("llama-3.1", spec, set);
    const train::MicroBatch batch = random_documents({20}, c.vocab_size, 5);
    trainer->step({&batch, 1});
    const decode::ModelFiles base = decode::open_model(small_model("llama-3.1").string(), 0);
    train::export_adapter(folder / "a", base, {}, 0, *trainer);
    const model::AdapterBase of = {base.name, base.fingerprint};
    const model::Adapter adapter = model::Adapter::open(folder / "a", c, of);
    const std::vector<model::WeightedAdapter> one = {{adapter}};
    const auto merged = [&] {
      return model::fused_source(decode::open_model(base.folder.string(), 0).source, one, c);
    };
    const auto again = merged();
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const model::MergeCheck found =
          model::check_merged(*base.source, *merged(), *again, one, c, dtype, {});
      CHECK(found.inside == set.size);
      CHECK(found.inside + found.outside == model::n_params(c));
      CHECK(found.whole == 0);

      const auto spoiled = [&](model::MatrixId id, int64_t row, int64_t col) {
        Spoiled source(merged(), id, row, col);
        source.config = c;
        return error_text(
            [&] { model::check_merged(*base.source, source, *again, one, c, dtype, {}); });
      };
      for (const Role weight : model::kLayerRoles) {
        const io::Shape shape = model::shape_of(weight, c);
        const bool columns = model::ends_in_stream(weight);
        const int64_t n = shape[columns ? 1 : 0];
        for (int layer = 0; layer < c.n_layers; ++layer) {
          const auto index = adapter.index({weight, layer});
          CHECK(adapter.holds({weight, layer}) == !index.empty());
          for (int64_t i = 0; i < n; i += std::max<int64_t>(1, n / 4)) {
            const int64_t row = columns ? shape[0] - 1 : i, col = columns ? i : 0;
            const bool inside = std::ranges::binary_search(index, i);
            const std::string text = spoiled({weight, layer}, row, col);
            CAPTURE(text);
            CHECK(text.find(fmt::format("{}: [{}, {}] of the merged model is ",
                                        model::canonical_name({weight, layer}), row, col)) == 0);
            CHECK(text.find(inside ? "the adapter's value" : "the base's value outside") !=
                  std::string::npos);
          }
        }
      }
      for (const Role w : {Role::embedding, Role::head, Role::out_norm})
        CHECK(spoiled({w}, 0, 1).find("the base's") != std::string::npos);
      CHECK(spoiled({Role::ffn_pre, 1}, 0, 2).find("ffn") == std::string::npos);  // by its name
      CHECK(spoiled({Role::ffn_pre, 1}, 0, 2)
                .find("model.layers.1.post_attention_layernorm.weight: [0, 2]") == 0);
    }
  }
}
