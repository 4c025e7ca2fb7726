#include "kernels/linear/packed_linear_cpu.h"

#include <algorithm>

#include "base/divide_up.h"
#include "base/parallel.h"

namespace tandem {
namespace {

// Rows that are packed together take at most this much: every panel reads them again, from the
// last-level cache.
constexpr int64_t kPackedBytes = int64_t{4} << 20;
// Panels of a task of few rows.
constexpr int kFewPanels = 4;

constexpr int64_t kFloat = sizeof(float);

/// Vectors of 16 lanes are the widest.
int64_t padded(int64_t in) { return divide_up(in, 16) * 16; }

/// Most rows that are packed together.
int64_t rows_at_once(int64_t in) {
  return std::max(kLeastRows, kPackedBytes / (padded(in) * kFloat));
}

/// Floats of one thread's scratch, a multiple of 16.
int64_t scratch_floats(const PackedLinearKernel& kernel, int64_t rows, int64_t in, DType type) {
  const int64_t widened = type == DType::bf16 ? std::min<int64_t>(in, kLinearBlock) : 0;
  const int64_t sums = in > kLinearBlock ? rows : kernel.sliver_rows;
  return padded((widened + sums) * kernel.panel_outputs);
}

/// How the panels and slivers of one call are handed out.
struct Tasks {
  int panels, parts, n_panels, n_slivers;
  int panels_each;

  Tasks(const PackedLinearKernel& kernel, const PackedLinearParams& p, const PackedRows& rows,
        int threads)
      : n_panels(static_cast<int>(divide_up(p.out, kernel.panel_outputs))),
        n_slivers(rows.n_slivers),
        panels_each(rows.n_slivers == 1 ? kFewPanels : 1) {
    panels = static_cast<int>(divide_up(n_panels, panels_each));
    parts =
        std::clamp(static_cast<int>(divide_up(kTasksPerThread * threads, panels)), 1, n_slivers);
  }
  int count() const { return panels * parts; }
  Range panels_of(int task) const {
    const int first = task / parts * panels_each;
    return {first, std::min(first + panels_each, n_panels)};
  }
  Range slivers_of(int task) const {
    const int64_t part = task % parts;
    return {static_cast<int>(part * n_slivers / parts),
            static_cast<int>((part + 1) * n_slivers / parts)};
  }
};

/// Most rows of a pass.
int64_t rows_of_pass(const PackedLinearParams& p) {
  return divide_up(p.rows, divide_up(p.rows, rows_at_once(p.in)));
}

/// Floats of a widened panel.
int64_t panel_floats(const PackedLinearKernel& kernel, int64_t in) {
  return padded(in * kernel.panel_outputs);
}

/// Calls run(rows, a task's panels, its slivers, the thread's scratch) for packed rows.
void for_tasks(const PackedLinearKernel& kernel, const PackedLinearParams& p, float* workspace,
               int64_t scratch_each, int threads, const auto& run) {
  const auto passes = static_cast<int>(divide_up(p.rows, rows_at_once(p.in)));
  float* const packed = workspace;
  float* const scratch = packed + rows_of_pass(p) * padded(p.in);
  if (int64_t{p.rows} * p.out * p.in < kAloneWork) threads = 1;
  for (int pass = 0; pass < passes; ++pass) {
    const auto begin = static_cast<int>(int64_t{p.rows} * pass / passes);
    const auto n = static_cast<int>(int64_t{p.rows} * (pass + 1) / passes) - begin;
    const PackedRows rows{packed, begin, n, static_cast<int>(divide_up(n, kernel.sliver_rows))};
    const Tasks tasks(kernel, p, rows, threads);
    parallel_for(rows.n_slivers, threads, [&](int i) { kernel.pack_rows(p, rows, {i, i + 1}); });
    parallel_for(tasks.count(), threads, [&](int i, int thread) {
      run(rows, tasks.panels_of(i), tasks.slivers_of(i), scratch + thread * scratch_each);
    });
  }
}

}  // namespace

size_t packed_weights_bytes(const PackedLinearKernel& kernel, int64_t out, int64_t in, DType type) {
  const int64_t panels = divide_up(out, kernel.panel_outputs);
  return static_cast<size_t>(panels * kernel.panel_outputs * in) *
         (type == DType::bf16 ? sizeof(bf16) : sizeof(float));
}

size_t packed_linear_workspace_bytes(const PackedLinearKernel& kernel, int64_t rows, int64_t in,
                                     DType type, int threads) {
  rows = std::min(rows, rows_at_once(in));
  const int64_t floats = rows * padded(in) + threads * scratch_floats(kernel, rows, in, type);
  return static_cast<size_t>(floats * kFloat);
}

void packed_linear_with(const PackedLinearKernel& kernel, const PackedLinearParams& p,
                        void* workspace, int threads) {
  const int64_t scratch_each = scratch_floats(kernel, rows_of_pass(p), p.in, p.type);
  for_tasks(kernel, p, static_cast<float*>(workspace), scratch_each, threads,
            [&](const PackedRows& rows, Range panels, Range slivers, float* scratch) {
              kernel.run(p, rows, panels, slivers, scratch);
            });
}

size_t widened_linear_workspace_bytes(const PackedLinearKernel& kernel, int64_t rows, int64_t in,
                                      int threads) {
  return packed_linear_workspace_bytes(kernel, rows, in, DType::f32, threads) +
         static_cast<size_t>(threads * panel_floats(kernel, in) * kFloat);
}

void widened_linear_with(const PackedLinearKernel& kernel, const PackedLinearParams& p,
                         const WidenPanel& widen, void* workspace, int threads) {
  const int64_t sums = scratch_floats(kernel, rows_of_pass(p), p.in, DType::f32);
  for_tasks(kernel, p, static_cast<float*>(workspace), sums + panel_floats(kernel, p.in), threads,
            [&](const PackedRows& rows, Range panels, Range slivers, float* scratch) {
              for (int panel = panels.begin; panel < panels.end; ++panel) {
                float* const widened = scratch + sums;
                widen(panel, widened);
                const int first = panel * kernel.panel_outputs;
                PackedLinearParams one = p;
                one.y = static_cast<char*>(p.y) +
                        static_cast<size_t>(first) *
                            (p.y_type == DType::bf16 ? sizeof(bf16) : sizeof(float));
                one.w = widened;
                if (p.bias != nullptr) one.bias = p.bias + first;
                one.out = p.out - first;
                one.type = DType::f32;
                kernel.run(one, rows, {0, 1}, slivers, scratch);
              }
            });
}

}  // namespace tandem
