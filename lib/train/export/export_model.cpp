#include "train/export/export_model.h"

#include <algorithm>
#include <vector>

#include "base/convert.h"
#include "base/error.h"
#include "model/adapters/low_rank_merge.h"
#include "model/families/family.h"
#include "ops/loading.h"
#include "train/export/export_low_rank.h"

namespace tandem::train {
namespace {

using Part = TrainedMatrix::Part;

/// Numbers of a matrix that are read at a time.
constexpr int64_t kPiece = int64_t{1} << 20;

/// Rows of a packed matrix that are a weight of the checkpoint, and what of them is trained.
struct Place {
  const TrainedMatrix* trained = nullptr;  // null: nothing
  int64_t first_row = 0;
};

Place place_of(model::MatrixId id, const TrainedSet& set, const model::ModelConfig& c) {
  if (id.role == Role::head) return {&set.lm_head};
  // A tied head's values are the embedding's, under its name.
  if (id.role == Role::embedding) return {c.head.tied ? &set.lm_head : &set.embedding};
  if (!model::in_layers(id.role) || model::is_norm(id.role) || set.layers.empty()) return {};
  return {&set.layers[static_cast<size_t>(id.layer)][model::info(id.role).stack],
          model::first_row(id.role, c)};
}

/// Puts the trained values of rows [first, first + rows) of the packed matrix into `out`.
/// shapes   out [rows, cols]
void put_matrix(std::span<float> out, int64_t rows, int64_t cols, const Place& place,
                std::span<const float> values) {
  const TrainedMatrix& m = *place.trained;
  const auto at = [&](int64_t row, int64_t col) -> float& {
    return out[static_cast<size_t>(row * cols + col)];
  };
  const auto value = [&](int64_t i) { return values[static_cast<size_t>(m.offset + i)]; };
  const auto n = static_cast<int64_t>(m.index.size());
  if (m.part == Part::columns) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < n; ++i)
        at(r, m.index[static_cast<size_t>(i)]) = value((place.first_row + r) * n + i);
    return;
  }
  const bool single = m.part == Part::elements;
  const int64_t of_row = single ? cols : 1;  // what the index counts in a row
  const auto begin = std::ranges::lower_bound(m.index, place.first_row * of_row);
  const auto end = std::ranges::lower_bound(m.index, (place.first_row + rows) * of_row);
  for (auto it = begin; it != end; ++it) {
    const int64_t i = it - m.index.begin(), r = *it / of_row - place.first_row;
    if (single)
      at(r, *it % cols) = value(i);
    else
      for (int64_t c = 0; c < cols; ++c) at(r, c) = value(i * cols + c);
  }
}

/// A norm or a bias with its trained values.
std::vector<float> trained_vector(model::MatrixId id, const model::WeightSource& source,
                                  const model::ModelConfig& c, const TrainedSet& set,
                                  std::span<const float> values) {
  std::vector<float> v = source.vector(id);
  int64_t from = -1;
  if (model::is_norm(id.role)) {
    if (set.norms) from = set.norms_offset + model::norm_offset(id, c);
  } else if (const Place p = place_of(id, set, c); p.trained != nullptr && p.trained->bias) {
    from = p.trained->bias_offset + p.first_row;
  }
  if (from < 0) return v;
  std::copy_n(values.data() + from, v.size(), v.begin());
  if (model::is_norm(id.role) && c.norms().unit_offset)
    for (float& value : v) --value;
  return v;
}

}  // namespace

void export_model(const std::filesystem::path& folder, const std::filesystem::path& base,
                  const model::ModelConfig& config, const model::WeightSource& source,
                  const TrainedSet& set, std::span<const float> values, DType dtype,
                  const std::function<bool(double share)>& progress) {
  export_files(folder, base, config);
  std::vector<io::TensorView> tensors;
  std::vector<std::vector<model::MatrixId>> stored;  // the matrices of each, from its first row on
  const std::vector<model::LowRankDelta> deltas = low_rank_deltas(set, config, values);
  const auto merge_deltas = [&](std::span<float> rows, const model::MatrixId& id, int64_t begin,
                                int64_t n) {
    for (model::LowRankDelta d : deltas) {
      if (d.id != id) continue;
      const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(n);
      const auto rank = static_cast<size_t>(d.rank);
      d.b = d.b.subspan(first * rank, count * rank);
      if (!d.magnitude.empty()) d.magnitude = d.magnitude.subspan(first, count);
      model::merge_low_rank(rows, d);
    }
  };
  size_t total = 0, written = 0;
  for (const model::MatrixId& id : model::all_matrices(config)) {
    const auto [name, first, shape] = model::stored_part(id, config);
    if (first > 0) {
      stored.back().push_back(id);
      continue;
    }
    // Norms and biases are f32 in a running model: a bf16 copy would be another model.
    const DType type = shape.size() == 1 ? DType::f32 : dtype;
    tensors.push_back({name, type, shape, {}});
    stored.push_back({id});
    total += matrix_bytes(type, shape.front(), shape.size() > 1 ? shape[1] : 1);
  }
  const auto write = [&](size_t i, const io::ByteSink& sink) {
    const io::TensorView& t = tensors[i];
    const auto put = [&](std::span<const float> numbers) {
      std::vector<std::byte> bytes(numbers.size() * dtype_bytes(t.dtype));
      ops::convert(bytes.data(), t.dtype, numbers.data(), DType::f32, std::ssize(numbers));
      sink(bytes);
      written += bytes.size();
      if (progress && !progress(static_cast<double>(written) / static_cast<double>(total)))
        throw Error(ErrorKind::interrupted, folder.string(), "the model was not written");
    };
    if (t.shape.size() == 1)
      return put(trained_vector(stored[i].front(), source, config, set, values));
    const int64_t cols = t.shape[1], each = std::max<int64_t>(1, kPiece / cols);
    std::vector<float> piece;
    for (const model::MatrixId& id : stored[i]) {
      const int64_t rows = model::shape_of(id.role, config)[0];
      for (int64_t begin = 0; begin < rows; begin += each) {
        const int64_t n = std::min(each, rows - begin);
        piece.resize(static_cast<size_t>(n * cols));
        source.rows(id, begin, begin + n, DType::f32, piece.data());
        if (Place p = place_of(id, set, config);
            p.trained != nullptr && p.trained->part != Part::low_rank) {
          p.first_row += begin;
          put_matrix(piece, n, cols, p, values);
        }
        merge_deltas(piece, id, begin, n);
        put(piece);
      }
    }
  };
  // Reference programs refuse files without it.
  io::write_safetensors(folder / "model.safetensors", tensors, {{"format", "pt"}}, write);
}

}  // namespace tandem::train
