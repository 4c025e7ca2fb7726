#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "base/convert.h"
#include "error_text.h"
#include "group_source.h"
#include "model/adapters/fused_source.h"
#include "ops/loading.h"
#include "resident_file.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::model;

namespace {

ModelConfig config_of(int dim, int vocab) {
  ModelConfig c;
  c.dim = dim;
  c.n_layers = 1;
  c.n_heads = 2;
  c.n_kv_heads = 1;
  c.head_dim = 4;
  c.ffn_dim = 2;
  c.vocab_size = vocab;
  c.max_context = 16;
  c.head.tied = true;
  return c;
}

/// Writes a checkpoint whose tensors all begin with the same bytes, none of which is part of a NaN.
std::filesystem::path write_checkpoint(const test::TemporaryFolder& folder, const ModelConfig& c,
                                       DType dtype) {
  std::vector<std::byte> bytes(
      static_cast<size_t>(int64_t{c.dim} * std::max(c.vocab_size, c.q_dim())) * dtype_bytes(dtype));
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>((i * 2654435761u >> 26) & 0x3F);
  std::vector<io::TensorView> views;
  const auto add = [&](Role weight) {
    const io::Shape shape = shape_of(weight, c);
    const int64_t n = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    views.push_back({canonical_name({weight}), dtype, shape,
                     std::span(bytes).first(static_cast<size_t>(n) * dtype_bytes(dtype))});
  };
  for (const Role w : outer_roles(c)) add(w);
  for (const Role w : layer_roles(c)) add(w);
  const std::filesystem::path path = folder / "model.safetensors";
  io::write_safetensors(path, views);
  return path;
}

/// A weight of rows of 130 in GroupSource::kFormat: 64 codes, a scale and a zero for each group.
float group_weight(const std::vector<std::byte>& rows, size_t row, size_t i) {
  const std::byte* const group = rows.data() + (row * 3 + i / 64) * (32 + 3);
  const auto pair = static_cast<int>(group[i % 64 / 2]);
  f16 scale;
  std::memcpy(&scale, group + 32, sizeof(scale));
  const int code = i % 2 == 0 ? pair % 16 : pair / 16;
  return to_float(scale) * static_cast<float>(code - static_cast<int>(group[34]));
}

/// Equal numbers, or NaN both.
bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace

TEST_SUITE("model/weight_source") {
  TEST_CASE("embedding rows are those of the table, and leave none of it resident") {
    struct Case {
      int dim, vocab;
      DType dtype;
    };
    // Rows of 14 B to 80 KB: many, few and one to a piece of the file.
    for (const Case& s : {Case{7, 5000, DType::bf16}, Case{7, 5000, DType::f16},
                          Case{333, 300, DType::f32}, Case{20000, 5, DType::f32}}) {
      CAPTURE(s.dim);
      const test::TemporaryFolder folder;
      const ModelConfig c = config_of(s.dim, s.vocab);
      const auto path = write_checkpoint(folder, c, s.dtype);
      const auto source = checkpoint_source(c, Checkpoint::open(folder.path()));
      for (const size_t n : {size_t{0}, size_t{1}, size_t{3}, size_t{197}, size_t{9973}}) {
        if (static_cast<int64_t>(n) * s.dim > 4'000'000) continue;
        CAPTURE(n);
        std::vector<int32_t> ids(n);
        for (size_t i = 0; i < n; ++i)
          ids[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(s.vocab));
        if (n > 1) ids[1] = s.vocab - 1;
        const size_t size = n * static_cast<size_t>(s.dim);
        std::vector<float> got(size, -1), want(size);
        source->embed(ids, got.data());
        CHECK(test::resident_bytes_of(path) == 0);
        const Checkpoint checkpoint = Checkpoint::open(folder.path());
        const io::TensorView table = checkpoint.weight({Role::embedding}, c);
        ops::embed(want.data(), table.bytes.data(), table.dtype, ids, s.dim);
        CHECK(got == want);
      }
    }
  }

  TEST_CASE("an embedding whose file has become shorter is an error of input, not a crash") {
    const test::TemporaryFolder folder;
    const ModelConfig c = config_of(333, 300);
    const auto path = write_checkpoint(folder, c, DType::f32);
    const auto source = checkpoint_source(c, Checkpoint::open(folder.path()));
    const size_t size = std::filesystem::file_size(path);
    std::filesystem::resize_file(path, 0);
    std::vector<float> out(333);
    const std::string text =
        test::input_error_text([&] { source->embed(std::vector<int32_t>{0}, out.data()); });
    CHECK(text.starts_with(path.string() + ": was truncated during the run: byte "));
    CHECK(text.ends_with(" of " + std::to_string(size) + " is missing"));
  }

  TEST_CASE(
      "matrices and vectors are those of the file in any type, and leave none of it resident") {
    // Rows of 10 B and of 80 KB; 2.4 MB in all are read by several threads.
    for (const auto& [dim, vocab] : {std::pair{5, 3000}, std::pair{20000, 30}})
      for (const DType stored : {DType::bf16, DType::f16, DType::f32})
        for (const DType wanted : {DType::bf16, DType::f16, DType::f32}) {
          if (wanted == DType::f16 && stored != wanted) continue;
          CAPTURE(dim);
          const test::TemporaryFolder folder;
          const ModelConfig c = config_of(dim, vocab);
          const auto path = write_checkpoint(folder, c, stored);
          const auto source = checkpoint_source(c, Checkpoint::open(folder.path()));
          CHECK((source->native({Role::embedding, 0}) == stored));
          const int64_t begin = 1, end = vocab - 1;
          const size_t size = static_cast<size_t>((end - begin) * dim) * dtype_bytes(wanted);
          std::vector<std::byte> got(size), want(size);
          source->rows({Role::embedding, 0}, begin, end, wanted, got.data());
          CHECK(source->vector({Role::out_norm, 0}).size() == static_cast<size_t>(dim));
          CHECK(test::resident_bytes_of(path) == 0);
          const Checkpoint checkpoint = Checkpoint::open(folder.path());
          const io::TensorView table = checkpoint.weight({Role::embedding}, c);
          const auto* const from =
              table.bytes.data() + static_cast<size_t>(begin * dim) * dtype_bytes(stored);
          if (wanted == stored)
            std::memcpy(want.data(), from, size);
          else
            ops::convert(want.data(), wanted, from, stored, (end - begin) * dim);
          CHECK(std::memcmp(got.data(), want.data(), size) == 0);
        }
  }

  TEST_CASE("weights whose file has become shorter are an error of input, not a crash") {
    const test::TemporaryFolder folder;
    const ModelConfig c = config_of(333, 300);
    const auto path = write_checkpoint(folder, c, DType::f32);
    const auto source = checkpoint_source(c, Checkpoint::open(folder.path()));
    std::filesystem::resize_file(path, 100);
    std::vector<float> out(333 * 300);
    for (const DType dtype : {DType::f32, DType::bf16})
      CHECK(test::input_error_text([&] {
              source->rows({Role::embedding, 0}, 0, 300, dtype, out.data());
            }).starts_with(path.string() + ": was truncated during the run: byte "));
  }

  TEST_CASE("weights in groups are read as they are stored or as numbers, and in no other codes") {
    const ModelConfig c = config_of(130, 5);  // rows of two groups and a part
    const MatrixId down = {Role::down}, head = {Role::head}, embedding = {Role::embedding};
    const auto own = std::make_unique<test::GroupSource>(c);
    const auto untied = untied_source(std::make_unique<test::GroupSource>(c));
    std::vector<std::byte> want;
    for (int64_t row = 0; row < 5; ++row)
      for (size_t i = 0; i < 3 * (32 + 3); ++i)
        want.push_back(test::GroupSource::stored(embedding, row, i));
    CHECK((untied->native(head) == test::GroupSource::kFormat));
    CHECK(test::native_rows(*untied, head, 5, c.dim) == want);
    std::vector<float> numbers(size_t{4} * 130);
    std::vector<bf16> halves(numbers.size());
    untied->rows(head, 1, 5, DType::f32, numbers.data());
    untied->rows(head, 1, 5, DType::bf16, halves.data());
    for (size_t i = 0; i < numbers.size(); ++i) {
      CAPTURE(i);
      const float number = group_weight(want, 1 + i / 130, i % 130);
      CHECK(same(numbers[i], number));
      CHECK(same(to_float(halves[i]), to_float(to_bf16(number))));
    }
    std::vector<std::byte> out(size_t{4} * 2 * 130);
    const auto read = [&](const WeightSource& source, MatrixId id, const WeightFormat& format) {
      return [&, id, format] { source.rows(id, 0, 2, format, out.data()); };
    };
    CHECK(test::input_error_text(read(*own, {Role::up}, DType::f16)) ==
          "model.layers.0.mlp.up_proj.weight: is stored as i4 g64 f16 integer, which cannot be "
          "converted to f16");
    CHECK(test::hint_text(read(*own, {Role::up}, DType::f16))
              .starts_with("use the original checkpoint in bf16"));
    const WeightFormat other(Code::i4, 128, ScaleType::f16, Zero::none);
    CHECK(test::input_error_text(read(*own, down, other)).ends_with(" converted to i4 g128 f16"));
    const auto synthetic = synthetic_source(c, 1);
    for (const WeightFormat& to : {other, WeightFormat(DType::f16)})
      CHECK(test::input_error_text(read(*synthetic, down, to))
                .starts_with("model.layers.0.mlp.down_proj.weight: is stored as f32, which "));
  }
}
