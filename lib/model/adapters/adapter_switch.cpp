#include "model/adapters/adapter_switch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "kernels/adapter/weight_norms.h"
#include "model/adapters/low_rank_merge.h"
#include "ops/linear_gradient.h"
#include "ops/loading.h"

namespace tandem::model {
namespace {

constexpr const char* kCopies = "adapters/copies of the base's matrices";

std::string item_name(const NamedAdapter& adapter) {
  return fmt::format("adapters/{} and the base's values there", adapter.name);
}

bool on_gpu(const AdapterSwitch::Spec& spec) { return spec.device.kind == Device::Kind::cuda; }

/// Of the values that are kept of slices: on the CPU they are rounded when they are written.
DType kept_type(const AdapterSwitch::Spec& spec) { return on_gpu(spec) ? spec.dtype : DType::f32; }

std::vector<PartShape> slice_shapes(const NamedAdapter& adapter, const ModelConfig& config) {
  if (std::holds_alternative<LowRankAdapter>(*adapter.adapter)) return {};
  return part_shapes(adapter, config);
}

size_t slices_bytes(const NamedAdapter& adapter, const AdapterSwitch::Spec& spec) {
  size_t bytes = 0, n = 0;
  for (const PartShape& shape : slice_shapes(adapter, spec.config)) {
    bytes += 2 * aligned_part(static_cast<size_t>(shape.numbers()) * dtype_bytes(kept_type(spec))) +
             aligned_part(static_cast<size_t>(shape.n) * sizeof(int32_t));
    ++n;
  }
  return bytes + (on_gpu(spec) ? 2 * aligned_part(n * sizeof(SliceWrite)) : 0);
}

/// Calls visit(layer, weight) for each matrix that factors change.
template <class F>
void for_factors(const NamedAdapter& named, const ModelConfig& config, F&& visit) {
  const auto* adapter = std::get_if<LowRankAdapter>(named.adapter.get());
  if (adapter == nullptr) return;
  for (int layer = 0; layer < config.n_layers; ++layer)
    for (const Role w : kLayerRoles)
      if (adapter->holds({w, layer})) visit(*adapter, layer, w);
}

size_t factors_bytes(const NamedAdapter& named, const AdapterSwitch::Spec& spec) {
  size_t bytes = 0;
  if (!on_gpu(spec)) return bytes;  // read when they are merged
  for_factors(named, spec.config, [&](const LowRankAdapter& adapter, int layer, Role w) {
    const io::Shape shape = shape_of(w, spec.config);
    const auto rank = static_cast<size_t>(adapter.rank({w, layer}));
    bytes += aligned_part(rank * static_cast<size_t>(shape[1]) * sizeof(float)) +
             aligned_part(rank * static_cast<size_t>(shape[0]) * sizeof(float));
    if (adapter.scales_rows()) bytes += aligned_part(static_cast<size_t>(shape[0]) * sizeof(float));
  });
  return bytes;
}

/// Which packed matrices factors change, [layers, kLayerStacks].
std::vector<bool> copied(const AdapterSwitch::Spec& spec) {
  std::vector<bool> all(static_cast<size_t>(spec.config.n_layers) * kLayerStacks.size());
  for (const NamedAdapter& named : spec.adapters)
    for_factors(named, spec.config, [&](const LowRankAdapter&, int layer, Role w) {
      all[stack_index(layer, info(w).stack)] = true;
    });
  return all;
}

size_t matrix_bytes(Role of, const AdapterSwitch::Spec& spec) {
  const io::Shape shape = shape_of(of, spec.config);
  return aligned_part(tandem::matrix_bytes(spec.dtype, shape[0], shape[1]));
}

size_t copies_bytes(const AdapterSwitch::Spec& spec) {
  if (!on_gpu(spec)) return 0;
  size_t bytes = 0;
  const std::vector<bool> all = copied(spec);
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i]) bytes += matrix_bytes(kLayerStacks[i % kLayerStacks.size()], spec);
  return bytes;
}

void check(const AdapterSwitch::Spec& spec) {
  for (const NamedAdapter& named : spec.adapters)
    if (const auto* a = std::get_if<LowRankAdapter>(named.adapter.get());
        a != nullptr && a->scales_rows() && named.weight != 1)
      throw recipe_error("model.adapters", "'{}' is a DoRA adapter with weight {}, expected 1",
                         named.name, named.weight)
          .hint("omit the adapter's name to merge it: a merged adapter may have any weight");
}

/// What DoRA multiplies each row of W + gamma B A by.
std::vector<float> row_scales(const LowRankAdapter& adapter, int layer, Role w,
                              const io::Shape& shape, const WeightSource& base) {
  constexpr int64_t kRows = 256;
  const std::vector<float> a = adapter.first_factor({w, layer}),
                           b = adapter.second_factor({w, layer});
  std::vector<float> scales = adapter.magnitudes({w, layer}), rows;
  const int64_t in = shape[1], rank = adapter.rank({w, layer});
  for (int64_t begin = 0; begin < shape[0]; begin += kRows) {
    const int64_t n = std::min(kRows, shape[0] - begin);
    rows.resize(static_cast<size_t>(n * in));
    base.rows({w, layer}, begin, begin + n, DType::f32, rows.data());
    merge_low_rank(rows, {.id = {w, layer},
                          .rank = rank,
                          .gamma = adapter.gamma({w, layer}),
                          .a = a,
                          .b = std::span(b).subspan(static_cast<size_t>(begin * rank),
                                                    static_cast<size_t>(n * rank))});
    for (int64_t r = 0; r < n; ++r) {
      double squares = 0;
      for (int64_t c = 0; c < in; ++c) {
        const double x = rows[static_cast<size_t>(r * in + c)];
        squares += x * x;
      }
      scales[static_cast<size_t>(begin + r)] /=
          static_cast<float>(std::max(std::sqrt(squares), double{kLeastWeightNorm}));
    }
  }
  return scales;
}

}  // namespace

void AdapterSwitch::plan(const Spec& spec, MemoryPlan& plan) {
  check(spec);
  for (const NamedAdapter& adapter : spec.adapters)
    if (const size_t bytes = slices_bytes(adapter, spec) + factors_bytes(adapter, spec); bytes > 0)
      plan.add(item_name(adapter), bytes, spec.device);
  if (const size_t bytes = copies_bytes(spec); bytes > 0) plan.add(kCopies, bytes, spec.device);
}

AdapterSwitch::AdapterSwitch(const Spec& spec, const WeightSource& base, Weights& weights,
                             Arena& arena, const Exec& exec)
    : spec_(spec),
      adapters_(spec.adapters.begin(), spec.adapters.end()),
      base_(base),
      weights_(weights),
      exec_(exec),
      slices_(adapters_.size()),
      factors_(adapters_.size()) {
  spec_.adapters = adapters_;
  for (size_t a = 0; a < adapters_.size(); ++a) {
    if (slices_bytes(adapters_[a], spec_) + factors_bytes(adapters_[a], spec_) == 0) continue;
    auto* const memory = static_cast<std::byte*>(arena.take(item_name(adapters_[a])));
    load_slices(a, memory);
    if (exec_.on_gpu()) load_factors(a, memory);
  }
  if (copies_bytes(spec_) > 0) copy_matrices(arena);
  if (exec_.on_gpu()) exec_.queue->wait();
}

void AdapterSwitch::copy_in(void* to, const void* from, size_t bytes) {
  if (exec_.on_gpu())
    exec_.queue->copy_in(to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}

ops::PackedWeights& AdapterSwitch::matrix(int layer, Role of) const {
  return weights_.layers[static_cast<size_t>(layer)][of];
}

void AdapterSwitch::load_slices(size_t adapter, std::byte* memory) {
  const NamedAdapter& named = adapters_[adapter];
  Slices& slices = slices_[adapter];
  slices.shapes = slice_shapes(named, spec_.config);
  const DType dtype = kept_type(spec_);
  std::vector<SliceWrite> fresh_writes, base_writes;
  for (const PartShape& shape : slices.shapes) {
    const bool columns = ends_in_stream(shape.of);
    const ops::PackedWeights& w = matrix(shape.layer, shape.of);
    const auto put = [&](std::vector<float> values) {
      if (columns && w.input_rows() == nullptr) values = transposed(values, shape.n, shape.width);
      std::vector<std::byte> kept(values.size() * dtype_bytes(dtype));
      ops::convert(kept.data(), dtype, values.data(), DType::f32,
                   static_cast<int64_t>(values.size()));
      copy_in(memory, kept.data(), kept.size());
      return std::exchange(memory, memory + aligned_part(kept.size()));
    };
    std::vector<float> values = slice_values(*named.adapter, shape);
    std::vector<float> before = base_values(*named.adapter, shape, spec_.config, base_);
    // Where other adapters are merged into the weights, the change comes in addition.
    const std::vector<float> unmerged =
        base_values(*named.adapter, shape, spec_.config, base_.base());
    for (size_t i = 0; i < values.size(); ++i)
      if (named.weight != 1 || before[i] != unmerged[i])
        values[i] = before[i] + named.weight * (values[i] - unmerged[i]);
    const std::vector<int32_t> index = slice_features(*named.adapter, shape, spec_.config);
    copy_in(memory, index.data(), index.size() * sizeof(int32_t));
    slices.index.push_back(reinterpret_cast<const int32_t*>(memory));
    memory += aligned_part(index.size() * sizeof(int32_t));
    slices.fresh.push_back(put(std::move(values)));
    slices.base.push_back(put(std::move(before)));
    if (!exec_.on_gpu()) continue;
    const auto n = static_cast<int>(shape.n);
    fresh_writes.push_back(ops::slice_of(w, columns, slices.fresh.back(), slices.index.back(), n));
    base_writes.push_back(ops::slice_of(w, columns, slices.base.back(), slices.index.back(), n));
  }
  if (fresh_writes.empty()) return;
  const size_t bytes = fresh_writes.size() * sizeof(SliceWrite);
  for (const auto& [writes, place] : {std::pair(&fresh_writes, &slices.write_fresh),
                                      std::pair(&base_writes, &slices.write_base)}) {
    copy_in(memory, writes->data(), bytes);
    *place = reinterpret_cast<const SliceWrite*>(memory);
    memory += aligned_part(bytes);
  }
  exec_.queue->wait();  // for the sources of copies
}

void AdapterSwitch::load_factors(size_t adapter, std::byte* memory) {
  const NamedAdapter& named = adapters_[adapter];
  const auto put = [&](const std::vector<float>& values) {
    const size_t bytes = values.size() * sizeof(float);
    copy_in(memory, values.data(), bytes);
    return reinterpret_cast<const float*>(std::exchange(memory, memory + aligned_part(bytes)));
  };
  for_factors(named, spec_.config, [&](const LowRankAdapter& from, int layer, Role w) {
    Factors f{.id = {w, layer}, .rank = static_cast<int>(from.rank({w, layer}))};
    f.a = put(from.first_factor({w, layer}));
    std::vector<float> b = from.second_factor({w, layer});
    for (float& x : b) x *= named.weight * from.gamma({w, layer});
    f.b = put(b);
    if (from.scales_rows())
      f.scale = put(row_scales(from, layer, w, shape_of(w, spec_.config), base_));
    factors_[adapter].push_back(f);
  });
}

void AdapterSwitch::copy_matrices(Arena& arena) {
  auto* memory = static_cast<std::byte*>(arena.take(kCopies));
  const std::vector<bool> all = copied(spec_);
  copies_.resize(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i]) continue;
    const Role of = kLayerStacks[i % kLayerStacks.size()];
    const ops::PackedWeights& w = matrix(static_cast<int>(i / kLayerStacks.size()), of);
    const void* const rows = w.input_rows() != nullptr ? w.input_rows() : w.device_rows();
    exec_.queue->copy_within(memory, rows, w.bytes());
    copies_[i] = std::exchange(memory, memory + matrix_bytes(of, spec_));
  }
}

void AdapterSwitch::write(const Slices& slices, bool fresh) {
  const auto n = static_cast<int>(slices.shapes.size());
  if (exec_.on_gpu()) {
    if (n > 0)
      ops::write_slices(fresh ? slices.write_fresh : slices.write_base, n, spec_.dtype,
                        exec_.stream());
    return;
  }
  for (size_t i = 0; i < slices.shapes.size(); ++i) {
    const PartShape& shape = slices.shapes[i];
    const bool columns = ends_in_stream(shape.of);
    const auto* const values =
        reinterpret_cast<const float*>(fresh ? slices.fresh[i] : slices.base[i]);
    ops::write_part(matrix(shape.layer, shape.of), columns ? WeightPart::columns : WeightPart::rows,
                    {slices.index[i], static_cast<size_t>(shape.n)},
                    {values, static_cast<size_t>(shape.numbers())});
  }
}

void AdapterSwitch::rewrite(int layer, Role weight, const NamedAdapter* with) {
  const io::Shape shape = shape_of(weight, spec_.config);
  std::vector<float> values(static_cast<size_t>(shape[0] * shape[1]));
  base_.rows({weight, layer}, 0, shape[0], DType::f32, values.data());
  if (with != nullptr)
    std::get<LowRankAdapter>(*with->adapter)
        .merge({weight, layer}, 0, shape[0], values, with->weight);
  std::vector<int32_t> index(static_cast<size_t>(shape[0]));
  std::iota(index.begin(), index.end(), static_cast<int32_t>(first_row(weight, spec_.config)));
  ops::write_part(matrix(layer, info(weight).stack), WeightPart::rows, index, values);
}

void AdapterSwitch::merge(size_t adapter) {
  const NamedAdapter& named = adapters_[adapter];
  if (!exec_.on_gpu())
    return for_factors(named, spec_.config, [&](const LowRankAdapter&, int layer, Role w) {
      rewrite(layer, w, &named);
    });
  for (const Factors& f : factors_[adapter]) {
    const Role stack = info(f.id.role).stack;
    ops::merge_low_rank({.weights = matrix(f.id.layer, stack),
                         .base = copies_[stack_index(f.id.layer, stack)],
                         .first = first_row(f.id.role, spec_.config),
                         .rows = shape_of(f.id.role, spec_.config)[0],
                         .a = f.a,
                         .b = f.b,
                         .scale = f.scale,
                         .rank = f.rank},
                        exec_.stream());
  }
}

void AdapterSwitch::restore_matrices(size_t adapter) {
  if (!exec_.on_gpu())
    return for_factors(
        adapters_[adapter], spec_.config,
        [&](const LowRankAdapter&, int layer, Role w) { rewrite(layer, w, nullptr); });
  for (const Factors& f : factors_[adapter]) {
    const Role stack = info(f.id.role).stack;
    const ops::PackedWeights& w = matrix(f.id.layer, stack);
    const auto bytes = [&](int64_t rows) { return static_cast<size_t>(rows) * w.row_bytes(); };
    const size_t at = bytes(first_row(f.id.role, spec_.config));
    auto* const to = static_cast<std::byte*>(
        w.input_rows() != nullptr ? const_cast<void*>(w.input_rows()) : w.device_rows());
    exec_.queue->copy_within(to + at, copies_[stack_index(f.id.layer, stack)] + at,
                             bytes(shape_of(f.id.role, spec_.config)[0]));
  }
}

void AdapterSwitch::to(int adapter) {
  TANDEM_CHECK(adapter < std::ssize(adapters_), "adapter {} is out of range for {} adapters",
               adapter, adapters_.size());
  if (adapter == current_ && whole_) return;
  if (exec_.on_gpu()) exec_.queue->wait();
  whole_ = false;
  if (current_ >= 0) {
    const auto old = static_cast<size_t>(current_);
    write(slices_[old], false);
    // What the new one writes whole need not be put back first.
    if (adapter < 0 || adapter == current_ || !writes_all_of(old, static_cast<size_t>(adapter)))
      restore_matrices(old);
  }
  current_ = adapter;
  if (adapter >= 0) {
    write(slices_[static_cast<size_t>(adapter)], true);
    merge(static_cast<size_t>(adapter));
  }
  if (exec_.on_gpu()) exec_.queue->wait();
  whole_ = true;
}

bool AdapterSwitch::writes_all_of(size_t old, size_t fresh) const {
  const auto* then = std::get_if<LowRankAdapter>(adapters_[fresh].adapter.get());
  bool all = then != nullptr;
  for_factors(adapters_[old], spec_.config, [&](const LowRankAdapter&, int layer, Role w) {
    all = all && then->holds({w, layer});
  });
  return all;
}

size_t AdapterSwitch::bytes(int adapter) const {
  const NamedAdapter& named = adapters_[static_cast<size_t>(adapter)];
  size_t numbers = 0;
  for (const PartShape& shape : slice_shapes(named, spec_.config))
    numbers += static_cast<size_t>(shape.numbers());
  for_factors(named, spec_.config, [&](const LowRankAdapter&, int, Role w) {
    const io::Shape shape = shape_of(w, spec_.config);
    numbers += static_cast<size_t>(shape[0] * shape[1]);
  });
  return 2 * numbers * dtype_bytes(spec_.dtype);
}

}  // namespace tandem::model
