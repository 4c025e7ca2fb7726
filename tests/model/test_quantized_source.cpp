#include "model/weights/quantized_source.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/convert.h"
#include "base/parallel.h"
#include "error_text.h"
#include "group_source.h"
#include "model/adapters/fused_source.h"
#include "ops/quantizing.h"

using namespace tandem;
using namespace tandem::model;

namespace {

const WeightFormat kFour{Code::i4, 64, ScaleType::f16, Zero::integer};
const WeightFormat kEight{Code::i8, 32, ScaleType::f16, Zero::none};

ModelConfig config_of(bool tied) {
  ModelConfig c;
  c.dim = 72;  // a group and a part
  c.n_layers = 2;
  c.n_heads = 3;
  c.n_kv_heads = 1;
  c.head_dim = 24;
  c.ffn_dim = 130;
  c.vocab_size = 300;
  c.max_context = 16;
  c.head.tied = tied;
  return c;
}

std::optional<WeightFormat> format_of(MatrixId id) {
  if (id.role == Role::embedding || id.role == Role::head) return kEight;
  return id.role == Role::v ? std::nullopt : std::optional(kFour);
}

std::unique_ptr<WeightSource> quantized(const ModelConfig& c) {
  return quantized_source(c, synthetic_source(c, 5), format_of);
}

std::vector<float> numbers_of(const WeightSource& source, const ModelConfig& c, MatrixId id) {
  const io::Shape shape = shape_of(id.role, c);
  std::vector<float> all(static_cast<size_t>(shape[0] * shape[1]));
  source.rows(id, 0, shape[0], DType::f32, all.data());
  return all;
}

/// A double that changes one weight of a matrix, and counts reads of matrices.
class ChangedSource final : public WeightSource {
 public:
  ChangedSource(const ModelConfig& c, MatrixId id, float to)
      : base_(synthetic_source(c, 5)), id_(id), to_(to) {}
  WeightFormat native(MatrixId id) const override { return base_->native(id); }
  void rows(MatrixId id, int64_t begin, int64_t end, WeightFormat to, void* out) const override {
    base_->rows(id, begin, end, to, out);
    if (id == id_ && begin == 0 && to == DType::f32) static_cast<float*>(out)[3] = to_;
    if (id == id_ && begin == 0 && to == DType::bf16) static_cast<bf16*>(out)[3] = to_bf16(to_);
  }
  std::vector<float> vector(MatrixId id) const override { return base_->vector(id); }
  void embed(std::span<const int32_t> ids, float* out) const override { base_->embed(ids, out); }

 private:
  std::unique_ptr<WeightSource> base_;
  MatrixId id_;
  float to_;
};

}  // namespace

TEST_SUITE("model/quantized_source") {
  TEST_CASE("matrices have the codes of their rows, and their numbers are those of the codes") {
    const ModelConfig c = config_of(false);
    const auto plain = synthetic_source(c, 5);
    for (const int threads : {1, 2}) {
      set_threads(threads);
      const auto source = quantized(c);
      for (const MatrixId id : all_matrices(c)) {
        const io::Shape shape = shape_of(id.role, c);
        CAPTURE(canonical_name(id));
        if (shape.size() == 1) {
          CHECK(source->vector(id) == plain->vector(id));
          continue;
        }
        const std::vector<float> before = numbers_of(*plain, c, id),
                                 found = numbers_of(*source, c, id);
        if (id.role == Role::v) {
          CHECK((source->native(id) == DType::f32));
          CHECK(found == before);
          continue;
        }
        const WeightFormat format = *format_of(id);
        CHECK((source->native(id) == format));
        std::vector<std::byte> codes(matrix_bytes(format, shape[0], shape[1]));
        ops::quantize(codes.data(), format, before.data(), shape[0], shape[1], true);
        CHECK(test::native_rows(*source, id, shape[0], shape[1]) == codes);
        std::vector<float> want(before.size());
        ops::dequantize(want.data(), DType::f32, codes.data(), format, shape[0], shape[1]);
        CHECK(found == want);
        std::vector<bf16> halves(static_cast<size_t>(2 * shape[1]));
        source->rows(id, 1, 3, DType::bf16, halves.data());
        for (size_t i = 0; i < halves.size(); ++i)
          REQUIRE(halves[i].bits == to_bf16(want[i + static_cast<size_t>(shape[1])]).bits);
        double error = 0, all = 0;
        for (size_t i = 0; i < want.size(); ++i) {
          error += std::pow(double{want[i]} - before[i], 2);
          all += double{before[i]} * before[i];
        }
        // Uniform weights: 15 or 254 levels over their range leave 1 / (levels / 2) / sqrt(4).
        CHECK(std::sqrt(error / all) < (format == kFour ? 0.07 : 0.005));
      }
    }
    set_threads(default_threads());
  }

  TEST_CASE("a tied head and the embedding have one format and the same values") {
    for (const bool tied : {true, false}) {
      const ModelConfig c = config_of(tied);
      const auto source = quantized(c);
      const std::vector<float> table = numbers_of(*source, c, {Role::embedding});
      const std::vector<int32_t> ids = {299, 0, 7, 7};
      std::vector<float> rows(ids.size() * static_cast<size_t>(c.dim));
      source->embed(ids, rows.data());
      for (size_t i = 0; i < rows.size(); ++i) {
        const auto dim = static_cast<size_t>(c.dim);
        REQUIRE(rows[i] == table[static_cast<size_t>(ids[i / dim]) * dim + i % dim]);
      }
      CHECK((source->native({Role::head}) == kEight));
      if (!tied) continue;
      CHECK(numbers_of(*source, c, {Role::head}) == table);
      CHECK(test::native_rows(*source, {Role::head}, c.vocab_size, c.dim) ==
            test::native_rows(*source, {Role::embedding}, c.vocab_size, c.dim));
    }
    // A plain embedding is read as the base has it.
    const ModelConfig c = config_of(true);
    const auto source = quantized_source(
        c, synthetic_source(c, 5), [](MatrixId) -> std::optional<WeightFormat> { return {}; });
    const std::vector<int32_t> ids = {4};
    std::vector<float> found(static_cast<size_t>(c.dim)), want(found.size());
    source->embed(ids, found.data());
    synthetic_source(c, 5)->embed(ids, want.data());
    CHECK(found == want);
  }

  TEST_CASE("matrices that the base holds in codes keep them") {
    const ModelConfig c = config_of(false);
    const auto source = quantized_source(c, std::make_unique<test::GroupSource>(c),
                                         [](MatrixId) { return kEight; });
    const test::GroupSource base(c);
    CHECK((source->native({Role::up}) == test::GroupSource::kFormat));
    CHECK(test::native_rows(*source, {Role::up}, c.ffn_dim, c.dim) ==
          test::native_rows(base, {Role::up}, c.ffn_dim, c.dim));
  }

  TEST_CASE("the source before adapters is quantized too, and there is one only with adapters") {
    const ModelConfig c = config_of(false);
    const auto plain = quantized(c);
    CHECK(&plain->base() == plain.get());

    /// A double of weights that adapters were merged into.
    class MergedSource final : public WeightSource {
     public:
      explicit MergedSource(const ModelConfig& config)
          : merged_(synthetic_source(config, 6)), base_(synthetic_source(config, 5)) {}
      WeightFormat native(MatrixId id) const override { return merged_->native(id); }
      void rows(MatrixId id, int64_t begin, int64_t end, WeightFormat to,
                void* out) const override {
        merged_->rows(id, begin, end, to, out);
      }
      std::vector<float> vector(MatrixId id) const override { return merged_->vector(id); }
      void embed(std::span<const int32_t> ids, float* out) const override {
        merged_->embed(ids, out);
      }
      const WeightSource& base() const override { return *base_; }

     private:
      std::unique_ptr<WeightSource> merged_, base_;
    };
    const auto merged = quantized_source(c, std::make_unique<MergedSource>(c), format_of);
    CHECK((merged->base().native({Role::up}) == kFour));
    CHECK(numbers_of(merged->base(), c, {Role::up}) == numbers_of(*plain, c, {Role::up}));
    CHECK(numbers_of(*merged, c, {Role::up}) != numbers_of(*plain, c, {Role::up}));
  }

  TEST_CASE("quantizing the numbers of unquantized() gives the codes") {
    for (const bool tied : {false, true}) {
      const ModelConfig c = config_of(tied);
      const auto source = quantized(c);
      for (const MatrixId id : all_matrices(c)) {
        const io::Shape shape = shape_of(id.role, c);
        if (shape.size() == 1) continue;
        CAPTURE(canonical_name(id));
        const auto [numbers, search] = source->unquantized(id);
        REQUIRE((numbers == nullptr) == (id.role == Role::v));
        if (numbers == nullptr) continue;
        CHECK(search);
        CHECK((numbers->native(id) == DType::f32));
        const WeightFormat format = source->native(id);
        const std::vector<float> all = numbers_of(*numbers, c, id);
        std::vector<std::byte> codes(matrix_bytes(format, shape[0], shape[1]));
        ops::quantize(codes.data(), format, all.data(), shape[0], shape[1], search);
        CHECK(codes == test::native_rows(*source, id, shape[0], shape[1]));
      }
    }
    CHECK(synthetic_source(config_of(false), 5)->unquantized({Role::up}).source == nullptr);
  }

  TEST_CASE("weights that are NaN or infinite are refused with the name of their matrix") {
    const ModelConfig c = config_of(false);
    const float inf = std::numeric_limits<float>::infinity();
    for (const float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
      const MatrixId id = {Role::down, 1};
      const auto source =
          quantized_source(c, std::make_unique<ChangedSource>(c, id, bad), format_of);
      for (const WeightFormat& to : {kFour, WeightFormat(DType::f32)})
        CHECK(test::input_error_text([&] {
                std::vector<float> out(static_cast<size_t>(c.ffn_dim));
                source->rows(id, 0, 1, to, out.data());
              }) ==
              "model.layers.1.mlp.down_proj.weight: holds a weight that is NaN or infinite, which "
              "i4 g64 f16 integer cannot hold");
      CHECK(numbers_of(*source, c, {Role::down, 0}).size() > 0);
    }
    const auto source = quantized_source(
        c, std::make_unique<ChangedSource>(c, MatrixId{Role::up}, 1e30f), format_of);
    for (const float x : numbers_of(*source, c, {Role::up})) REQUIRE(std::isfinite(x));
  }

  TEST_CASE("other codes than the native ones are refused") {
    const ModelConfig c = config_of(false);
    const auto source = quantized(c);
    std::vector<std::byte> out(4096);
    const auto read = [&](const WeightFormat& to) {
      return test::input_error_text([&] { source->rows({Role::up}, 0, 1, to, out.data()); });
    };
    CHECK(read(kEight) ==
          "model.layers.0.mlp.up_proj.weight: is stored as i4 g64 f16 integer, which cannot be "
          "converted to i8 g32 f16");
    CHECK(read(DType::f16).ends_with("cannot be converted to f16"));
  }
}
