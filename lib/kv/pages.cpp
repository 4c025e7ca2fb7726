#include "kv/pages.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/page.h"

namespace tandem::kv {
namespace {

size_t number_bytes(const Pages::Spec& s) { return s.eight_bit ? 1 : dtype_bytes(s.dtype); }

/// Tokens and KV heads of a page in one layer.
size_t page_rows(const Pages::Spec& s) { return static_cast<size_t>(s.n_kv_heads) * kPageTokens; }

bool is_staged(const Pages::Spec& s) {
  return s.eight_bit && s.n_layers > 0 && s.copied_by.kind == Device::Kind::cuda;
}

/// Enough for copies at the pace of the link: at 8 heads of 128, 4 MiB of numbers.
int pages_at_a_time(const Pages::Spec& s) { return std::min(s.n_pages, 64); }

size_t staged_row_bytes(const Pages::Spec& s) {
  return static_cast<size_t>(pages_at_a_time(s)) * page_rows(s) * static_cast<size_t>(s.head_dim);
}

size_t staging_bytes(const Pages::Spec& s) {
  return staged_row_bytes(s) +
         static_cast<size_t>(pages_at_a_time(s)) * page_rows(s) * 2 * sizeof(float);
}

}  // namespace

size_t Pages::Spec::page_bytes() const {
  return size_t{2} * static_cast<size_t>(n_layers) * page_rows(*this) *
         static_cast<size_t>(head_dim) * number_bytes(*this);
}

size_t Pages::Spec::page_scale_bytes() const {
  return eight_bit ? size_t{2} * static_cast<size_t>(n_layers) * page_rows(*this) * sizeof(float)
                   : 0;
}

size_t Pages::Spec::row_bytes() const {
  return static_cast<size_t>(head_dim) * number_bytes(*this) + (eight_bit ? sizeof(float) : 0);
}

void Pages::plan(const Spec& spec, const std::string& prefix, MemoryPlan& plan) {
  const auto pages = static_cast<size_t>(spec.n_pages);
  const size_t half = spec.page_bytes() / 2 * pages;
  plan.add(prefix + "/k", half, spec.device);
  plan.add(prefix + "/v", half, spec.device);
  if (spec.eight_bit) plan.add(prefix + "/scales", spec.page_scale_bytes() * pages, spec.device);
  if (is_staged(spec)) plan.add(prefix + "/staging", staging_bytes(spec), spec.copied_by);
}

Pages::Pages(const Spec& spec, const std::string& prefix, Arena& arena)
    : spec_(spec),
      // All layers of the model may have their keys elsewhere.
      k_(spec.n_layers > 0 ? static_cast<char*>(arena.take(prefix + "/k")) : nullptr),
      v_(spec.n_layers > 0 ? static_cast<char*>(arena.take(prefix + "/v")) : nullptr) {
  TANDEM_CHECK(!spec.eight_bit || spec.device.kind == Device::Kind::cpu,
               "8-bit pages are not supported on {}", spec.device.name());
  if (spec.eight_bit && spec.n_layers > 0)
    scales_ = static_cast<float*>(arena.take(prefix + "/scales"));
  if (is_staged(spec)) staging_ = static_cast<char*>(arena.take(prefix + "/staging"));
}

Pages::Pages(const Spec& spec, const Pages& in, int32_t first)
    : spec_(spec),
      k_(in.k_ + spec.page_bytes() / 2 * static_cast<size_t>(first)),
      v_(in.v_ + spec.page_bytes() / 2 * static_cast<size_t>(first)) {
  TANDEM_CHECK(!spec.eight_bit && spec.n_layers == 1 &&
                   spec.page_bytes() == in.spec_.page_bytes() && first >= 0 &&
                   first + spec.n_pages <= in.spec_.n_pages,
               "{} pages from page {} do not fit the memory of {} pages", spec.n_pages, first,
               in.spec_.n_pages);
}

Tensor Pages::pool(char* base, int i) const {
  const size_t layer_bytes = spec_.page_bytes() / 2 / static_cast<size_t>(spec_.n_layers) *
                             static_cast<size_t>(spec_.n_pages);
  return {base + static_cast<size_t>(i) * layer_bytes,
          spec_.eight_bit ? DType::u8 : spec_.dtype,
          {spec_.n_pages, spec_.n_kv_heads, kPageTokens, spec_.head_dim},
          spec_.device};
}

float* Pages::scales(int i) const {
  return spec_.eight_bit ? scales_ + static_cast<size_t>(i) * static_cast<size_t>(spec_.n_pages) *
                                         page_rows(spec_) * 2
                         : nullptr;
}

void Pages::copy_page(int32_t from, int32_t to, Stream stream) const {
  ops::copy_page({pools(), from, to}, stream);
  const size_t n = page_rows(spec_) * 2;
  for (int i = 0; spec_.eight_bit && i < spec_.n_layers; ++i)
    std::copy_n(scales(i) + static_cast<size_t>(from) * n, n,
                scales(i) + static_cast<size_t>(to) * n);
}

int Pages::staging_pages() const { return pages_at_a_time(spec_); }

Tensor Pages::staged_rows(int n_pages) const {
  return {staging_,
          DType::u8,
          {n_pages, spec_.n_kv_heads, kPageTokens, spec_.head_dim},
          spec_.copied_by};
}

float* Pages::staged_scales() const {
  return reinterpret_cast<float*>(staging_ + staged_row_bytes(spec_));
}

PagePools Pages::pools() const {
  return {.k = k_,
          .v = v_,
          .n_layers = spec_.n_layers,
          .n_pages = spec_.n_pages,
          .n_kv_heads = spec_.n_kv_heads,
          .row_bytes = spec_.head_dim * static_cast<int>(number_bytes(spec_))};
}

void copy_bytes(const Tensor& to, const Tensor& from, cuda::Queue* queue) {
  TANDEM_CHECK(to.bytes() == from.bytes(), "cannot copy {} bytes to {}", from.bytes(), to.bytes());
  const bool to_gpu = to.device().kind == Device::Kind::cuda,
             from_gpu = from.device().kind == Device::Kind::cuda;
  if (to_gpu && from_gpu)
    queue->copy_within(to.raw(), from.raw(), to.bytes());
  else if (to_gpu)
    queue->copy_in(to.raw(), from.raw(), to.bytes());
  else if (from_gpu)
    queue->copy_out(to.raw(), from.raw(), to.bytes());
  else
    std::memcpy(to.raw(), from.raw(), to.bytes());
}

}  // namespace tandem::kv
