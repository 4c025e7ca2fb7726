#include "train/low_rank/low_rank_buffers.h"

#include <algorithm>
#include <string>

#include "ops/matmul.h"

namespace tandem::train {
namespace {

using model::LayerMatrix;
using Part = TrainedMatrix::Part;

constexpr std::array kAll = {LayerMatrix::qkv, LayerMatrix::wo, LayerMatrix::gate_up,
                             LayerMatrix::w_down};
constexpr const char* kProductNames[] = {"qkv", "wo", "gate_up", "w_down"};

struct Size {
  int64_t out, in;
};

Size size_of(LayerMatrix of, const model::ModelConfig& c) {
  switch (of) {
    case LayerMatrix::qkv:
      return {c.q_dim() + 2 * int64_t{c.kv_dim()}, c.dim};
    case LayerMatrix::wo:
      return {c.dim, c.q_dim()};
    case LayerMatrix::gate_up:
      return {2 * int64_t{c.ffn_dim}, c.dim};
    default:
      return {c.dim, c.ffn_dim};
  }
}

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
    for (const LayerMatrix of : kAll) {
      const TrainedMatrix& m = matrix_of(set.layers[i], of);
      if (m.part != Part::low_rank) continue;
      const Size size = size_of(of, c);
      const auto inner = static_cast<int64_t>(m.factors.size()) * rank;
      const std::string name =
          "layers." + std::to_string(i) + "." + kProductNames[static_cast<size_t>(of)] + ".";
      LowRankBuffers::OfMatrix& b = to.layers[i][static_cast<size_t>(of)];
      take(b.inner, name + "inner", act(rows * inner));
      if (shape.magnitude) {
        take(b.squares, name + "squares", f32(size.out));
        take(b.scale, name + "scale", f32(size.out));
        if (model::ends_in_stream(of)) take(b.added, name + "added", act(rows * c.dim));
      }
      most_inner = std::max(most_inner, inner);
      most_in = std::max(most_in, size.in);
      for (const LowRankFactors& f : m.factors) {
        const int64_t widest = std::max(size.in, f.rows);
        most_rows = std::max(most_rows, f.rows);
        most_product = std::max(most_product, rows * (widest + inner) + inner * widest);
        if (shape.magnitude)  // W A^T
          most_product = std::max(most_product, f.rows * size.in + (f.rows + size.in) * rank);
      }
      stream = stream || model::ends_in_stream(of);
      gate_up = gate_up || of == LayerMatrix::gate_up;
    }
  take(to.copies, "copies", spec.dtype == DType::f32 ? 0 : act(set.size));
  take(to.dinner, "dinner", act(rows * most_inner));
  take(to.dropped, "dropped", shape.dropout > 0 ? act(rows * most_in) : 0);
  take(to.apart, "apart", shape.magnitude && stream ? f32(rows * c.dim) : 0);
  take(to.scaled, "scaled", shape.magnitude && stream ? act(rows * c.dim) : 0);
  take(to.outputs, "outputs", shape.magnitude && gate_up ? act(rows * 2 * c.ffn_dim) : 0);
  take(to.wa, "wa", shape.magnitude ? f32(most_rows * rank) : 0);
  take(to.aa, "aa", shape.magnitude ? f32(rank * rank) : 0);
  const size_t bytes = ops::matmul_workspace_bytes(spec.dtype, most_product, spec.device, true);
  std::byte* workspace = nullptr;
  take(workspace, "workspace", bytes);
  to.workspace = {workspace, workspace == nullptr ? 0 : bytes};
}

}  // namespace

const TrainedMatrix& matrix_of(const TrainedLayer& layer, LayerMatrix of) {
  switch (of) {
    case LayerMatrix::qkv:
      return layer.qkv;
    case LayerMatrix::wo:
      return layer.wo;
    case LayerMatrix::gate_up:
      return layer.gate_up;
    default:
      return layer.w_down;
  }
}

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
