#include "kernels/linear/packed_linear.h"

#include "kernels/linear/packed_tile.h"

namespace tandem {
namespace {

template <class T>
void pack_weights_as(const PackWeightsParams& p, Range panels) {
  // A step's part of a panel is 1 KiB to 4 KiB: it stays in L1 while the rows are scattered to it.
  constexpr int kStep = 32;
  for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
    T* to = static_cast<T*>(p.panels) + panel * kPanel * p.in;
    const T* from = static_cast<const T*>(p.rows) + panel * kPanel * p.in;
    const int64_t left = p.n_rows - panel * kPanel;
    for (int k = 0; k < p.in; k += kStep) {
      const int end = p.in - k < kStep ? p.in : k + kStep;
      for (int output = 0; output < kPanel; ++output) {
        T* column = to + place_in_panel<T>(output);
        const T* row = from + int64_t{output} * p.in;
        for (int64_t i = k; i < end; ++i) column[i * kPanel] = output < left ? row[i] : T{};
      }
    }
  }
}

constexpr int padded(int n_k) { return (n_k + kW - 1) / kW * kW; }

int min(int a, int b) { return a < b ? a : b; }

/// Where a sliver's inputs [k, k + n_k) lie.
float* sliver_at(const PackedLinearParams& p, const PackedRows& rows, int first_row, int k) {
  const int n_k = min(kLinearBlock, p.in - k);
  return rows.x + int64_t{k} * rows.n + int64_t{first_row} * padded(n_k);
}

template <class T>
void pack_rows_as(const PackedLinearParams& p, const PackedRows& rows, Range slivers) {
  for (int i = slivers.begin; i < slivers.end; ++i) {
    const int first = rows.sliver_begin(i), end = rows.sliver_begin(i + 1);
    const T* x = static_cast<const T*>(p.x) + int64_t{rows.begin} * p.in;
    for (int block = 0; block < p.in; block += kLinearBlock) {
      float* to = sliver_at(p, rows, first, block);
      const int block_end = min(block + kLinearBlock, p.in);
      int k = block;
      for (; k + kW <= block_end; k += kW)
        for (int64_t r = first; r < end; ++r, to += kW)
          simd::store(to, simd::load(x + r * p.in + k));
      for (int64_t r = first; r < end && k < block_end; ++r, to += kW)
        simd::store(to, simd::load_n(x + r * p.in + k, block_end - k));
    }
  }
}

/// Writes sums [n_rows][stride] of outputs [first_output, first_output + n) to rows of y.
template <class Y>
void finish_as(const PackedLinearParams& p, const float* sums, int stride, int64_t first_row,
               int n_rows, int first_output, int n) {
  const float* bias = p.bias == nullptr ? nullptr : p.bias + first_output;
  for (int r = 0; r < n_rows; ++r) {
    Y* y = static_cast<Y*>(p.y) + (first_row + r) * p.y_stride + first_output;
    const auto add = [&](int i, int lanes) {
      Vec sum = simd::load(sums + r * stride + i);
      if (bias != nullptr) sum = sum + simd::load_n(bias + i, lanes);
      return p.accumulate ? sum + simd::load_n(y + i, lanes) : sum;
    };
    int i = 0;
    for (; i + kW <= n; i += kW) simd::store(y + i, add(i, kW));
    if (i < n) simd::store_n(y + i, add(i, n - i), n - i);
  }
}

void finish(const PackedLinearParams& p, const float* sums, int stride, int64_t first_row,
            int n_rows, int first_output) {
  const int n = min(stride, p.out - first_output);
  if (p.y_type == DType::bf16)
    finish_as<bf16>(p, sums, stride, first_row, n_rows, first_output, n);
  else
    finish_as<float>(p, sums, stride, first_row, n_rows, first_output, n);
}

template <class W>
const W* panel_at(const PackedLinearParams& p, int panel) {
  return static_cast<const W*>(p.w) + int64_t{panel} * kPanel * p.in;
}

/// One sliver times panels straight from memory, all inputs in one go.
template <class W>
void multiply_few(const PackedLinearParams& p, const PackedRows& rows, Range panels) {
  alignas(64) float sums[kSliverRows * kPanel];
  const int64_t next = int64_t{kPanel} * p.in;
  for (int i = panels.begin; i < panels.end;) {
    const Tile<W> t{.sums = sums,
                    .x = rows.x,
                    .w = panel_at<W>(p, i),
                    .next_panel = next,
                    .n_k = p.in,
                    .begins = true,
                    .widened = nullptr};
    const bool together = panels.end - i >= panels_at_once(rows.n);
    const int n = together ? panels_at_once(rows.n) : 1;
    if (rows.n == 1 && together)
      multiply_tile<1, panels_at_once(1), false>(t);
    else if (rows.n == 2 && together)
      multiply_tile<2, panels_at_once(2), false>(t);
    else
      multiply_rows<false>(rows.n, t);
    finish(p, sums, n * kPanel, rows.begin, rows.n, i * kPanel);
    i += n;
  }
}

/// Slivers times one panel, whose bf16 weights the first of them widens for the others.
template <class W>
void multiply_many(const PackedLinearParams& p, const PackedRows& rows, int panel, Range slivers,
                   float* scratch) {
  const bool wide = sizeof(W) == sizeof(float), chained = p.in > kLinearBlock;
  float* widened = scratch;
  float* sums = scratch + (wide ? 0 : min(p.in, kLinearBlock) * kPanel);
  const int first_row = rows.sliver_begin(slivers.begin);
  for (int k = 0; k < p.in; k += kLinearBlock) {
    const int n_k = min(kLinearBlock, p.in - k);
    const W* w = panel_at<W>(p, panel) + int64_t{k} * kPanel;
    for (int i = slivers.begin; i < slivers.end; ++i) {
      const int row = rows.sliver_begin(i), n = rows.sliver_begin(i + 1) - row;
      float* sum = sums + (chained ? (row - first_row) * kPanel : 0);
      const float* x = sliver_at(p, rows, row, k);
      if constexpr (sizeof(W) == sizeof(float))
        multiply_rows<false>(n, Tile<W>{sum, x, w, 0, n_k, k == 0, nullptr});
      else if (i == slivers.begin)
        multiply_rows<true>(n, Tile<W>{sum, x, w, 0, n_k, k == 0, widened});
      else
        multiply_rows<false>(n, Tile<float>{sum, x, widened, 0, n_k, k == 0, nullptr});
      if (k + n_k == p.in) finish(p, sum, kPanel, rows.begin + row, n, panel * kPanel);
    }
  }
}

template <class W>
void run_as(const PackedLinearParams& p, const PackedRows& rows, Range panels, Range slivers,
            float* scratch) {
  if (rows.n_slivers == 1) return multiply_few<W>(p, rows, panels);
  for (int i = panels.begin; i < panels.end; ++i) multiply_many<W>(p, rows, i, slivers, scratch);
}

void pack_weights(const PackWeightsParams& p, Range panels) {
  if (p.type == DType::bf16)
    pack_weights_as<bf16>(p, panels);
  else
    pack_weights_as<float>(p, panels);
}

void pack_rows(const PackedLinearParams& p, const PackedRows& rows, Range slivers) {
  if (p.type == DType::bf16)
    pack_rows_as<bf16>(p, rows, slivers);
  else
    pack_rows_as<float>(p, rows, slivers);
}

void run(const PackedLinearParams& p, const PackedRows& rows, Range panels, Range slivers,
         float* scratch) {
  if (p.type == DType::bf16)
    run_as<bf16>(p, rows, panels, slivers, scratch);
  else
    run_as<float>(p, rows, panels, slivers, scratch);
}

}  // namespace

const PackedLinearKernel TANDEM_ISA_FN(packed_linear) = {pack_weights, pack_rows, run, kPanel,
                                                         kSliverRows};

}  // namespace tandem
