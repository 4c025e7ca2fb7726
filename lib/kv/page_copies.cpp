#include "kv/pages.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tandem::kv {
namespace {

Tensor rows_of(const PageRun& run, bool values, int n) {
  return (values ? run.pages.v(run.i) : run.pages.k(run.i)).slice(run.first, n);
}

/// Scales of keys; those of values follow each.
float* scales_of(const PageRun& run) {
  return run.pages.scales(run.i) +
         static_cast<int64_t>(run.first) * run.pages.spec().n_kv_heads * kPageTokens * 2;
}

Tensor scale_tensor(float* scales, const Pages::Spec& s, int n, Device device) {
  return {scales, DType::f32, {n, s.n_kv_heads, kPageTokens, 2}, device};
}

/// Where rows lie in eight bits and where of dtype, for n pages.
EightBitRowsParams eight_bits(const Tensor& rows, float* scales, bool values, void* wide,
                              DType dtype) {
  return {.rows = static_cast<int8_t*>(rows.raw()),
          .scales = scales + (values ? 1 : 0),
          .wide = wide,
          .dtype = dtype,
          .n_rows = static_cast<int>(rows.elements() / rows.size(3)),
          .d = static_cast<int>(rows.size(3)),
          .scale_stride = 2};
}

/// `n` pages at most as many as are staged. A GPU's queue does all in turn, so that the next ones
/// may take the same memory.
void narrow_from_gpu(const PageRun& to, const PageRun& from, int n, cuda::Queue& queue) {
  const Pages::Spec& s = to.pages.spec();
  float* const scales = to.pages.staged_scales();
  const Tensor staged = to.pages.staged_rows(n);
  for (const bool values : {false, true}) {
    ops::narrow_rows(
        eight_bits(staged, scales, values, rows_of(from, values, n).raw(), from.pages.spec().dtype),
        queue.stream());
    copy_bytes(rows_of(to, values, n), staged, &queue);
  }
  copy_bytes(scale_tensor(scales_of(to), s, n, {}), scale_tensor(scales, s, n, s.copied_by),
             &queue);
}

void widen_to_gpu(const PageRun& to, const PageRun& from, int n, cuda::Queue& queue) {
  const Pages::Spec& s = from.pages.spec();
  float* const scales = from.pages.staged_scales();
  const Tensor staged = from.pages.staged_rows(n);
  copy_bytes(scale_tensor(scales, s, n, s.copied_by), scale_tensor(scales_of(from), s, n, {}),
             &queue);
  for (const bool values : {false, true}) {
    copy_bytes(staged, rows_of(from, values, n), &queue);
    ops::widen_eight_bit_rows(
        eight_bits(staged, scales, values, rows_of(to, values, n).raw(), to.pages.spec().dtype),
        queue.stream());
  }
}

/// The same in host memory.
void narrow_or_widen(const PageRun& to, const PageRun& from, int n) {
  const bool narrows = to.pages.spec().eight_bit;
  const PageRun &narrow = narrows ? to : from, &wide = narrows ? from : to;
  for (const bool values : {false, true}) {
    const EightBitRowsParams p =
        eight_bits(rows_of(narrow, values, n), scales_of(narrow), values,
                   rows_of(wide, values, n).raw(), wide.pages.spec().dtype);
    if (narrows)
      ops::narrow_rows(p, {});
    else
      ops::widen_eight_bit_rows(p, {});
  }
}

bool on_gpu(const PageRun& run) { return run.pages.spec().device.kind == Device::Kind::cuda; }

}  // namespace

void copy_pages(const PageRun& to, const PageRun& from, int n, cuda::Queue* queue) {
  const bool narrows = to.pages.spec().eight_bit, widens = from.pages.spec().eight_bit;
  TANDEM_CHECK(!(narrows && widens), "copies between two 8-bit stores are not supported");
  if (!narrows && !widens) {
    for (const bool values : {false, true})
      copy_bytes(rows_of(to, values, n), rows_of(from, values, n), queue);
    return;
  }
  if (!on_gpu(narrows ? from : to)) return narrow_or_widen(to, from, n);
  const int most = (narrows ? to : from).pages.staging_pages();
  for (int done = 0; done < n; done += most) {
    const PageRun to_part{to.pages, to.i, to.first + done},
        from_part{from.pages, from.i, from.first + done};
    const int part = std::min(most, n - done);
    if (narrows)
      narrow_from_gpu(to_part, from_part, part, *queue);
    else
      widen_to_gpu(to_part, from_part, part, *queue);
  }
}

void read_page(const PageRun& page, bool values, void* rows) {
  const Tensor from = rows_of(page, values, 1);
  const Pages::Spec& s = page.pages.spec();
  if (s.eight_bit)
    ops::widen_eight_bit_rows(eight_bits(from, scales_of(page), values, rows, s.dtype), {});
  else
    std::memcpy(rows, from.raw(), from.bytes());
}

void write_page(const PageRun& page, bool values, const void* rows) {
  const Tensor to = rows_of(page, values, 1);
  const Pages::Spec& s = page.pages.spec();
  if (s.eight_bit)
    ops::narrow_rows(eight_bits(to, scales_of(page), values, const_cast<void*>(rows), s.dtype), {});
  else
    std::memcpy(to.raw(), rows, to.bytes());
}

}  // namespace tandem::kv
