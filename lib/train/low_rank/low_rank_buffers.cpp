#include "train/low_rank/low_rank_buffers.h"

#include <algorithm>
#include <string>

#include "ops/matmul.h"

namespace tandem::train {
namespace {

using Part = TrainedMatrix::Part;

size_t f32(int64_t n) { return static_cast<size_t>(n) * sizeof(float); }

/// Calls buffer(name, bytes) for each of a run and notes its place.
template <class Buffer>
void each_buffer(const BackwardSpec& spec, const TrainedSet& set, LowRankBuffers& to,
                 const Buffer& buffer) {
  const LowRankShape& shape = set.low_rank;
  const int64_t rows = spec.max_rows, rank = shape.rank;
  const model::ModelConfig& c = spec.config;
  const auto act = [&](int64_t n) { return static_cast<size_t>(n) * dtype_bytes(spec.dtype); };
  const auto take = [&]<class Place>(Place*& place, const std::string& name, size_t bytes) {
    place = bytes == 0 ? nullptr : static_cast<Place*>(buffer("low_rank/" + name, bytes));
  };
  int64_t most_inner = 0, most_in = 0, most_rows = 0, most_product = 0;
  bool stream = false, gate_up = false;
  to.layers.resize(set.layers.size());
  for (size_t i = 0; i < set.layers.size(); ++i)
    for (const Role of : model::kLayerStacks) {
      const TrainedMatrix& m = set.layers[i][of];
      if (m.part != Part::low_rank) continue;
      const io::Shape shape_of = model::shape_of(of, c);
      const int64_t out = shape_of[0], in = shape_of[1];
      const auto inner = static_cast<int64_t>(m.factors.size()) * rank;
      const std::string name = "layers." + std::to_string(i) + "." + model::info(of).planned + ".";
      LowRankBuffers::OfMatrix& b = to.layers[i][of];
      take(b.inner, name + "inner", act(rows * inner));
      if (shape.magnitude) {
        take(b.squares, name + "squares", f32(out));
        take(b.scale, name + "scale", f32(out));
        if (model::ends_in_stream(of)) take(b.added, name + "added", act(rows * c.dim));
      }
      most_inner = std::max(most_inner, inner);
      most_in = std::max(most_in, in);
      for (const LowRankFactors& f : m.factors) {
        const int64_t widest = std::max(in, f.rows);
        most_rows = std::max(most_rows, f.rows);
        most_product = std::max(most_product, rows * (widest + inner) + inner * widest);
        if (shape.magnitude)  // W A^T
          most_product = std::max(most_product, f.rows * in + (f.rows + in) * rank);
      }
      stream = stream || model::ends_in_stream(of);
      gate_up = gate_up || of == Role::gate_up;
    }
  take(to.copies, "copies", spec.dtype == DType::f32 ? 0 : act(set.size));
  take(to.dinner, "dinner", act(rows * most_inner));
  take(to.dropped, "dropped", shape.dropout > 0 ? act(rows * most_in) : 0);
  take(to.apart, "apart", shape.magnitude && stream ? f32(rows * c.dim) : 0);
  take(to.scaled, "scaled", shape.magnitude && stream ? act(rows * c.dim) : 0);
  take(to.outputs, "outputs", shape.magnitude && gate_up ? act(rows * 2 * c.ffn_dim) : 0);
  take(to.wa, "wa", shape.magnitude ? f32(most_rows * rank) : 0);
  take(to.aa, "aa", shape.magnitude ? f32(rank * rank) : 0);
  size_t bytes = ops::matmul_workspace_bytes(spec.dtype, most_product, spec.device, true);
  if (shape.magnitude && c.formats)  // W A^T of decoded rows
    bytes = std::max(bytes, model::Weights::workspace_bytes(
                                c, spec.dtype, rank, rank,
                                {.device = spec.device, .trainable = set.trainable()}));
  std::byte* workspace = nullptr;
  take(workspace, "workspace", bytes);
  to.workspace = {workspace, workspace == nullptr ? 0 : bytes};
}

}  // namespace

void LowRankBuffers::plan(const BackwardSpec& spec, const TrainedSet& set, MemoryPlan& plan) {
  LowRankBuffers none;
  each_buffer(spec, set, none, [&](const std::string& name, size_t bytes) -> void* {
    plan.add(name, bytes, spec.device);
    return nullptr;
  });
}

LowRankBuffers::LowRankBuffers(const BackwardSpec& spec, const TrainedSet& set, Arena& arena) {
  each_buffer(spec, set, *this, [&](const std::string& name, size_t) { return arena.take(name); });
}

}  // namespace tandem::train
