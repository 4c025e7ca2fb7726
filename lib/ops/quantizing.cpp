#include "ops/quantizing.h"

#include "ops/operation.h"

namespace tandem::ops {
namespace {

/// Runs a body on all rows; a thread gets no fewer than are worth waking it.
template <class Params>
void run_rows(void (*body)(const Params&, Range), const Params& p, int64_t n_rows) {
  constexpr int kGrainWeights = 16384;
  parallel_ranges(as_int(n_rows), 1 + kGrainWeights / p.width, [&](int begin, int end) {
    body(p, Range{begin, end});
  });
}

}  // namespace

bool is_quantized_to(const WeightFormat& f) {
  if (f.code == Code::fp8) return f.scale == ScaleType::f32 && f.zero == Zero::none && f.group >= 0;
  return (f.code == Code::i4 || f.code == Code::i8) && f.scale == ScaleType::f16 &&
         f.zero != Zero::minimum && f.group >= 0 && f.group % 2 == 0;
}

void quantize(void* out, const WeightFormat& to, const float* rows, int64_t n_rows, int64_t in,
              bool search) {
  TANDEM_CHECK(is_quantized_to(to) && in > 0, "{} is not a format for quantized weights",
               format_name(to));
  run_rows(cpu_table().quantize,
           {.out = static_cast<uint8_t*>(out),
            .in = rows,
            .row_bytes = static_cast<int64_t>(row_bytes(to, in)),
            .width = as_int(in),
            .group = as_int(cut_unit(to, in)),
            .code = to.code,
            .zero = to.zero,
            .search = search},
           n_rows);
}

void dequantize(void* out, DType to, const void* rows, const WeightFormat& from, int64_t n_rows,
                int64_t in) {
  dequantize_columns(out, to, rows, from, n_rows, in, 0, in);
}

void dequantize_columns(void* out, DType to, const void* rows, const WeightFormat& from,
                        int64_t n_rows, int64_t in, int64_t first, int64_t n) {
  TANDEM_CHECK(is_coded(from) && (from.code != Code::fp8 || from.zero == Zero::none) && in > 0 &&
                   (to == DType::f32 || to == DType::bf16),
               "weights in {} do not become {}", format_name(from), dtype_name(to));
  const bool one_group = from.group == 0;
  TANDEM_CHECK(first % (one_group ? 2 : cut_unit(from, in)) == 0 && first + n <= in,
               "inputs {} to {} of {} in {}", first, first + n, in, format_name(from));
  // A row that is one group has its scale at the end, which the rest of the row shares.
  const size_t skipped =
      first == 0 ? 0 : row_bytes(from, first) - (one_group ? scale_bytes(from) : 0);
  run_rows(cpu_table().dequantize,
           {.out = out,
            .in = static_cast<const uint8_t*>(rows) + skipped,
            .row_bytes = static_cast<int64_t>(row_bytes(from, in)),
            .width = as_int(n),
            .group = as_int(one_group ? in - first : from.group),
            .code = from.code,
            .scale = from.scale,
            .zero = from.zero,
            .to = to},
           n_rows);
}

}  // namespace tandem::ops
