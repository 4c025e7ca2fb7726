#include "model/adapters/served_adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kv/step.h"
#include "ops/backward.h"
#include "ops/loading.h"
#include "ops/matmul.h"

namespace tandem::model {
namespace {

constexpr const char *kTable = "adapters/table", *kGroups = "adapters/groups of rows",
                     *kSlots = "adapters/of sequences", *kInner = "activations/of adapters",
                     *kWorkspace = "workspace/adapters";
/// Rows of a sequence that go in groups: for more, products of matrices read values fewer times.
constexpr int kMostGrouped = 64;

size_t part_bytes(const PartShape& shape, DType dtype) {
  return aligned_part(static_cast<size_t>(shape.numbers()) * dtype_bytes(dtype)) +
         aligned_part(static_cast<size_t>(shape.n) * sizeof(int32_t));
}

std::string item_name(const NamedAdapter& adapter) {
  return fmt::format("adapters/values of {}", adapter.name);
}

size_t table_entries(const ServedAdapters::Spec& spec) {
  return static_cast<size_t>(spec.config.n_layers) * kLayerStacks.size() * spec.adapters.size() *
         kMatrixParts;
}

size_t group_numbers(const ServedAdapters::Spec& spec) {
  const int most = most_groups(spec.max_rows, static_cast<int>(spec.adapters.size()));
  return static_cast<size_t>(most) * (1 + kGroupRows) + 1 + static_cast<size_t>(spec.max_rows);
}

/// Of any part of any adapter: features, and numbers of all matrices of a long run's product.
struct Most {
  int64_t features = 0, numbers = 0;
};
Most most_of(const ServedAdapters::Spec& spec) {
  Most most;
  for (const NamedAdapter& adapter : spec.adapters)
    for (const PartShape& shape : part_shapes(adapter, spec.config)) {
      most.features = std::max(most.features, shape.n);
      most.numbers = std::max(most.numbers,
                              shape.numbers() + int64_t{spec.max_rows} * (shape.n + shape.width));
    }
  return most;
}

size_t workspace_bytes(const ServedAdapters::Spec& spec) {
  if (spec.max_run <= kMostGrouped) return 0;  // no product of matrices
  return ops::matmul_workspace_bytes(spec.dtype, most_of(spec).numbers, spec.device, true);
}

}  // namespace

void ServedAdapters::plan(const Spec& spec, MemoryPlan& plan) {
  for (const NamedAdapter& adapter : spec.adapters) {
    size_t bytes = 0;
    for (const PartShape& shape : part_shapes(adapter, spec.config))
      bytes += part_bytes(shape, spec.dtype);
    plan.add(item_name(adapter), bytes, spec.device);
  }
  plan.add(kTable, table_entries(spec) * sizeof(AdapterPart), spec.device);
  plan.add(kGroups, group_numbers(spec) * sizeof(int32_t), spec.device);
  plan.add(kSlots, static_cast<size_t>(spec.max_seqs) * sizeof(int32_t), spec.device);
  plan.add(kInner,
           static_cast<size_t>(spec.max_rows) * static_cast<size_t>(most_of(spec).features) *
               sizeof(float),
           spec.device);
  if (const size_t bytes = workspace_bytes(spec); bytes > 0)
    plan.add(kWorkspace, bytes, spec.device);
}

ServedAdapters::ServedAdapters(const Spec& spec, const WeightSource& base, Arena& arena,
                               const Exec& exec)
    : spec_(spec),
      adapters_(spec.adapters.begin(), spec.adapters.end()),
      exec_(exec),
      matrices_(static_cast<size_t>(spec.config.n_layers) * kLayerStacks.size()),
      of_slot_(static_cast<int32_t*>(arena.take(kSlots))),
      slots_(static_cast<size_t>(spec.max_seqs), -1) {
  spec_.adapters = adapters_;
  parts_.resize(table_entries(spec_));
  for (size_t a = 0; a < adapters_.size(); ++a)
    load(static_cast<int>(a), base, static_cast<std::byte*>(arena.take(item_name(adapters_[a]))),
         parts_);
  auto* const place = static_cast<AdapterPart*>(arena.take(kTable));
  copy_in(place, parts_.data(), parts_.size() * sizeof(AdapterPart));
  table_ = place;
  const int most = most_groups(spec_.max_rows, static_cast<int>(adapters_.size()));
  auto* const groups = static_cast<int32_t*>(arena.take(kGroups));
  arrays_ = {.adapter = groups,
             .rows = groups + most,
             .n = groups + most * (1 + kGroupRows),
             .of_row = groups + most * (1 + kGroupRows) + 1};
  inner_ = arena.take(kInner);
  if (const size_t bytes = workspace_bytes(spec_); bytes > 0)
    workspace_ = {static_cast<std::byte*>(arena.take(kWorkspace)), bytes};
  copy_in(of_slot_, slots_.data(), slots_.size() * sizeof(int32_t));
  if (exec_.on_gpu()) exec_.queue->wait();  // for the sources of copies
}

void ServedAdapters::copy_in(void* to, const void* from, size_t bytes) {
  if (exec_.on_gpu())
    exec_.queue->copy_in(to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}

void ServedAdapters::load(int adapter, const WeightSource& base, std::byte* memory,
                          std::span<AdapterPart> table) {
  const NamedAdapter& named = adapters_[static_cast<size_t>(adapter)];
  std::vector<std::byte> converted;
  for (const PartShape& shape : part_shapes(named, spec_.config)) {
    const PartNumbers part = part_numbers(named, shape, spec_.config, base);
    converted.resize(part.values.size() * dtype_bytes(spec_.dtype));
    ops::convert(converted.data(), spec_.dtype, part.values.data(), DType::f32,
                 static_cast<int64_t>(part.values.size()));
    copy_in(memory, converted.data(), converted.size());
    std::byte* const index = memory + aligned_part(converted.size());
    copy_in(index, part.index.data(), part.index.size() * sizeof(int32_t));
    const size_t matrix = stack_index(shape.layer, shape.of);
    const size_t entry = (matrix * adapters_.size() + static_cast<size_t>(adapter)) * kMatrixParts +
                         static_cast<size_t>(shape.place());
    table[entry] = {.values = memory,
                    .index = reinterpret_cast<const int32_t*>(index),
                    .n = static_cast<int32_t>(shape.n)};
    memory += part_bytes(shape, spec_.dtype);
    OfMatrix& all = matrices_[matrix];
    if (shape.kind == PartKind::slices)
      all.most_slices = std::max(all.most_slices, static_cast<int>(shape.n));
    if (shape.kind == PartKind::first)
      all.most_first = std::max(all.most_first, static_cast<int>(shape.n));
    if (shape.kind != PartKind::second) continue;
    all.second[static_cast<size_t>(shape.which)] = true;
    all.most_second = std::max(all.most_second, static_cast<int>(shape.n));
  }
}

void ServedAdapters::assign(int slot, int adapter) {
  TANDEM_CHECK(adapter < std::ssize(adapters_), "adapter {} is out of range for {} adapters",
               adapter, adapters_.size());
  int32_t& at = slots_[static_cast<size_t>(slot)];
  if (at == adapter) return;
  at = adapter;
  copy_in(of_slot_ + slot, &at, sizeof at);
}

size_t ServedAdapters::bytes(int adapter) const {
  size_t numbers = 0;
  for (const PartShape& shape : part_shapes(adapters_[static_cast<size_t>(adapter)], spec_.config))
    numbers += static_cast<size_t>(shape.numbers());
  return numbers * dtype_bytes(spec_.dtype);
}

void ServedAdapters::enter(const kv::Step& step) {
  TANDEM_CHECK(step.arrays.n_rows <= spec_.max_rows, "{} rows exceed the limit of {}",
               step.arrays.n_rows, spec_.max_rows);
  groups_ = ops::group_rows(arrays_, of_slot_, static_cast<int>(adapters_.size()), kMostGrouped,
                            step.arrays, exec_.stream());
  settled_ = false;
  runs_.clear();
  for (int b = 0; b < step.n_seqs; ++b)
    if (const int adapter = slots_[static_cast<size_t>(step.slot[static_cast<size_t>(b)])];
        adapter >= 0 && step.rows_of(b) > kMostGrouped)
      runs_.push_back({step.row_begin[static_cast<size_t>(b)], step.rows_of(b), adapter});
}

ops::RowGroups ServedAdapters::groups() {
  groups_.settled = std::exchange(settled_, true);
  return groups_;
}

bool ServedAdapters::changes(int layer, Role of) const {
  const OfMatrix& m = of_matrix(layer, of);
  return m.most_slices > 0 || m.most_first > 0;
}

Tensor ServedAdapters::apart(int /*layer*/, Role /*of*/, int64_t /*rows*/) { return {}; }

void ServedAdapters::add(int layer, Role of, const Tensor& y, const Tensor& x,
                         const Tensor& /*sum*/) {
  const OfMatrix& m = of_matrix(layer, of);
  const AdapterPart* const parts =
      table_ + stack_index(layer, of) * adapters_.size() * kMatrixParts;
  const Stream stream = exec_.stream();
  for (const LongRun& run : runs_)
    add_run(run, layer, of, y.slice(run.first, run.rows), x.slice(run.first, run.rows));
  const bool columns = ends_in_stream(of);
  if (m.most_slices > 0 && columns) {
    const GroupedTarget all{.first = 0, .width = static_cast<int32_t>(y.row_size()), .part = 0};
    ops::grouped_sums(y, x, parts, kMatrixParts, m.most_slices, {&all, 1}, groups(), stream);
  } else if (m.most_slices > 0) {
    ops::grouped_dots(y, x, parts, kMatrixParts, m.most_slices, groups(), ops::Accumulate::yes,
                      stream);
  }
  if (m.most_first == 0) return;
  const Tensor inner(inner_, spec_.dtype, {x.rows(), m.most_first}, spec_.device);
  ops::grouped_dots(inner, x, parts + static_cast<int>(PartKind::first), kMatrixParts, m.most_first,
                    groups(), ops::Accumulate::no, stream);
  ops::grouped_sums(y, inner, parts, kMatrixParts, m.most_second, targets(layer, of), groups(),
                    stream);
}

std::vector<ops::GroupedTarget> ServedAdapters::targets(int layer, Role of) const {
  std::vector<GroupedTarget> all;
  int32_t place = static_cast<int32_t>(PartKind::second);
  size_t which = 0;
  for (const Role role : members(of)) {
    if (of_matrix(layer, of).second[which++])
      all.push_back({.first = static_cast<int32_t>(first_row(role, spec_.config)),
                     .width = static_cast<int32_t>(shape_of(role, spec_.config)[0]),
                     .part = place});
    ++place;
  }
  return all;
}

const AdapterPart& ServedAdapters::part(int layer, Role of, int adapter, int place) const {
  return parts_[(stack_index(layer, of) * adapters_.size() + static_cast<size_t>(adapter)) *
                    kMatrixParts +
                static_cast<size_t>(place)];
}

void ServedAdapters::add_run(const LongRun& run, int layer, Role of, const Tensor& y,
                             const Tensor& x) {
  using ops::MatrixView;
  const Stream stream = exec_.stream();
  const auto inner = [&](DType dtype, int64_t n) {
    return Tensor(inner_, dtype, {run.rows, n}, spec_.device);
  };
  const auto values = [&](const AdapterPart& p, int64_t width) {
    return MatrixView(const_cast<void*>(p.values), spec_.dtype, p.n, width, spec_.device);
  };
  const AdapterPart& slices = part(layer, of, run.adapter, static_cast<int>(PartKind::slices));
  const bool columns = ends_in_stream(of);
  if (slices.n > 0 && columns) {
    const Tensor of_x = inner(spec_.dtype, slices.n);
    ops::gather_columns(of_x, x, slices.index, stream);
    ops::matmul({.c = MatrixView(y),
                 .a = MatrixView(of_x),
                 .b = values(slices, y.row_size()),
                 .accumulate = true},
                workspace_, stream);
  } else if (slices.n > 0) {
    const Tensor of_y = inner(DType::f32, slices.n);
    ops::matmul({.c = MatrixView(of_y),
                 .a = MatrixView(x),
                 .b = values(slices, x.row_size()),
                 .b_transposed = true},
                workspace_, stream);
    ops::add_columns(y, of_y, slices.index, stream);
  }
  const AdapterPart& first = part(layer, of, run.adapter, static_cast<int>(PartKind::first));
  if (first.n == 0) return;
  const Tensor between = inner(spec_.dtype, first.n);
  ops::matmul({.c = MatrixView(between),
               .a = MatrixView(x),
               .b = values(first, x.row_size()),
               .b_transposed = true},
              workspace_, stream);
  int64_t at = 0;  // ranks of the factors before
  for (const GroupedTarget& target : targets(layer, of)) {
    const AdapterPart& second = part(layer, of, run.adapter, target.part);
    if (second.n == 0) continue;
    ops::matmul({.c = MatrixView(y).columns(target.first, target.width),
                 .a = MatrixView(between).columns(at, second.n),
                 .b = values(second, target.width),
                 .accumulate = true},
                workspace_, stream);
    at += second.n;
  }
}

void ServedAdapters::on_prompt(int /*slot*/) {}
void ServedAdapters::on_fork(int from, int to) { assign(to, slots_[static_cast<size_t>(from)]); }
void ServedAdapters::on_release(int slot) { assign(slot, -1); }
void ServedAdapters::on_truncate(int /*slot*/, int /*n*/) {}

}  // namespace tandem::model
