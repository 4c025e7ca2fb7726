#include "kv/quantized/quantized_keys.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/parallel.h"
#include "kv/policies/centered_keys.h"
#include "kv/policies/code_frames.h"
#include "ops/selection.h"

namespace tandem::kv {
namespace {

int pages_of(int tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

PagedStore::Spec prompt_spec(const QuantizedKeys::Spec& s) {
  PagedStore::Spec spec = s.whole;
  spec.layers = s.layers;
  spec.max_moves = 0;
  spec.one_layer = true;
  spec.prefix = "kv/prompt";
  // Texts share no page.
  spec.n_pages = std::min(spec.n_pages, pages_of(s.prompt_tokens) + spec.max_slots);
  return spec;
}

PagedStore::Spec near_spec(const QuantizedKeys::Spec& s) {
  PagedStore::Spec spec = s.whole;
  spec.layers = s.layers;
  spec.prefix = "kv/near";
  // The first page, tokens from the mark, which may lie within a page, and rows in flight. While a
  // prompt goes through the layers, tokens from the new mark take pages, too.
  const int each = 1 + pages_of(2 * kPageTokens + s.rows) + 1 + 3;
  spec.n_pages = spec.max_slots * std::min(spec.max_pages, each);
  return spec;
}

size_t layer_bytes(const QuantizedKeys::Spec& s, size_t i) {
  return static_cast<size_t>(s.whole.n_pages) * static_cast<size_t>(s.whole.n_kv_heads) *
         static_cast<size_t>(s.layout(i).page_bytes());
}

size_t frame_floats(const QuantizedKeys::Spec& s) {
  return static_cast<size_t>(s.whole.n_kv_heads) * 2 * static_cast<size_t>(s.whole.head_dim);
}

size_t all_frames(const QuantizedKeys::Spec& s) {
  return static_cast<size_t>(s.whole.max_slots) * s.layers.size() * frame_floats(s);
}

std::string codes_name(int layer) { return fmt::format("kv/codes {}", layer); }
constexpr const char* kFrames = "kv/frames";
constexpr uint64_t kRotationSeed = 0x51690000;

}  // namespace

std::optional<CodedBits> coded_bits(const recipe::Cache& cache, const Geometry& geometry,
                                    int layer) {
  using recipe::NumberType;
  if (!cache.is_quantized() || geometry.window(layer) > 0) return {};
  if (std::ranges::find(cache.wide_layers, layer) != cache.wide_layers.end())
    return CodedBits{8, 8};
  const int k = cache.dtype == NumberType::int4 ? 4 : cache.dtype == NumberType::k6v4 ? 6 : 8;
  const int v = cache.dtype == NumberType::int8 ? 8 : 4;
  return CodedBits{static_cast<uint8_t>(k), static_cast<uint8_t>(v)};
}

double token_bytes(const CodedLayout& layout, int n_kv_heads) {
  return static_cast<double>(n_kv_heads * layout.page_bytes()) / kPageTokens;
}

double token_bytes(const recipe::Cache& cache, const Geometry& geometry, int layer) {
  const auto bits = coded_bits(cache, geometry, layer);
  return bits ? token_bytes(CodedLayout{geometry.head_dim, *bits}, geometry.n_kv_heads)
              : geometry.token_bytes();
}

void QuantizedKeys::plan(const Spec& spec, MemoryPlan& plan) {
  PagedStore::plan(prompt_spec(spec), plan);
  PagedStore::plan(near_spec(spec), plan);
  for (size_t i = 0; i < spec.layers.size(); ++i)
    plan.add(codes_name(spec.layers[i]), layer_bytes(spec, i), spec.whole.device);
  plan.add(kFrames, all_frames(spec) * sizeof(float), spec.whole.device);
}

QuantizedKeys::QuantizedKeys(const Spec& spec, PagedStore& whole, Arena& arena)
    : spec_(spec),
      whole_(whole),
      prompt_(prompt_spec(spec), arena),
      near_(near_spec(spec), arena),
      index_(static_cast<size_t>(spec.whole.n_layers), -1),
      frames_(static_cast<float*>(arena.take(kFrames))),
      signs_(rotation_signs(spec.whole.head_dim, kRotationSeed)),
      slots_(static_cast<size_t>(spec.whole.max_slots)) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    index_[static_cast<size_t>(spec.layers[i])] = static_cast<int>(i);
    codes_.push_back(static_cast<uint8_t*>(arena.take(codes_name(spec.layers[i]))));
  }
  whole_.on_copy([this](int32_t from, int32_t to) {
    for (size_t i = 0; i < codes_.size(); ++i)
      std::memcpy(page(i, to, 0), page(i, from, 0),
                  static_cast<size_t>(spec_.whole.n_kv_heads) *
                      static_cast<size_t>(spec_.layout(i).page_bytes()));
  });
}

size_t QuantizedKeys::place(int layer) const {
  TANDEM_CHECK(holds(layer), "layer {} is not in codes", layer);
  return static_cast<size_t>(index_[static_cast<size_t>(layer)]);
}

uint8_t* QuantizedKeys::page(size_t place, int32_t id, int kv_head) const {
  return codes_[place] +
         (int64_t{id} * spec_.whole.n_kv_heads + kv_head) * spec_.layout(place).page_bytes();
}

float* QuantizedKeys::frame(int slot, int layer, int kv_head) const {
  const size_t cell = static_cast<size_t>(slot) * spec_.layers.size() + place(layer);
  return frames_ + cell * frame_floats(spec_) + int64_t{2} * kv_head * spec_.whole.head_dim;
}

int QuantizedKeys::mark_at(int slot, int n) const {
  return std::max(mark(slot), (n - kPageTokens) / kPageTokens * kPageTokens);
}

void QuantizedKeys::acquire(int slot) {
  const int near = near_.acquire(), prompt = prompt_.acquire();
  TANDEM_CHECK(near == slot && prompt == slot, "slots differ: {}, {} and {}", slot, near, prompt);
  at(slot) = {};
}

void QuantizedKeys::fork(int from, int to) {
  const int near = near_.fork(from), prompt = prompt_.acquire();
  TANDEM_CHECK(near == to && prompt == to, "slots differ: {}, {} and {}", to, near, prompt);
  at(to) = at(from);
  const size_t n = spec_.layers.size() * frame_floats(spec_);
  std::copy_n(frames_ + static_cast<size_t>(from) * n, n, frames_ + static_cast<size_t>(to) * n);
}

void QuantizedKeys::release(int slot) {
  near_.release(slot);
  prompt_.release(slot);
  texts_.erase(slot);
}

void QuantizedKeys::own_unframed(int slot, int end) {
  if (!at(slot).framed && end > kFirst) whole_.own(slot, kFirst, end);
}

void QuantizedKeys::begin_prompts() {
  for (const int slot : texts_) prompt_.truncate(slot, 0);
  texts_.clear();
}

void QuantizedKeys::hold_prompt(int slot, int n) {
  own_unframed(slot, mark_at(slot, n));
  texts_.insert(slot);  // even if it cannot get all pages
  prompt_.reserve(slot, n);
}

void QuantizedKeys::begin_layer(int layer, int slot, int n) {
  prompt_.copy_layer_from(near_, layer, slot, 0, std::min(n, kFirst));
  prompt_.copy_layer_from(near_, layer, slot, mark(slot), n);
  each_page(slot, layer, kFirst, mark(slot), prompt_, [&](const CodedPage& p, Range rows) {
    ops::widen_coded_rows({.page = p.codes,
                           .layout = layout(layer),
                           .k = p.rows.k,
                           .v = p.rows.v,
                           .dtype = spec_.whole.dtype,
                           .center = p.center,
                           .axis = p.axis,
                           .signs = signs()},
                          rows);
  });
}

void QuantizedKeys::end_layer(int layer, int slot, int n, const QueryRing* queries) {
  const int before = whole_.length(slot), mark = mark_at(slot, n);
  near_.reserve(slot, n, {kFirst, mark});
  if (before < kFirst) near_.copy_layer_from(prompt_, layer, slot, before, std::min(n, kFirst));
  near_.copy_layer_from(prompt_, layer, slot, std::max(before, mark), n);
  if (mark == this->mark(slot)) return;
  if (!at(slot).framed) set_frames(slot, layer, mark, prompt_, queries, n);
  code(slot, layer, this->mark(slot), mark, prompt_);
}

void QuantizedKeys::commit_prompt(int slot, int n) {
  near_.set_length(slot, n);
  Slot& s = at(slot);
  s.mark = mark_at(slot, n);
  s.framed = s.framed || s.mark > kFirst;
  near_.drop(slot, kFirst, s.mark);
}

void QuantizedKeys::commit(int slot, int n) {
  near_.set_length(slot, n);
  Slot& s = at(slot);
  const int mark = mark_at(slot, n);
  if (mark == s.mark) return;
  own_unframed(slot, mark);
  for (const int layer : spec_.layers) {
    // A text without such a prompt gets its frames only by these tokens, in every fork.
    if (!s.framed) set_frames(slot, layer, mark, near_, nullptr, n);
    code(slot, layer, s.mark, mark, near_);
  }
  s = {.mark = mark, .framed = true};
  near_.drop(slot, kFirst, mark);
}

void QuantizedKeys::cut(int slot, int n) {
  Slot& s = at(slot);
  near_.truncate(slot, n);
  s.mark = std::min(s.mark, std::max(n, kFirst));
  if (s.mark == kFirst) s.framed = false;  // no code is left
}

void QuantizedKeys::set_frames(int slot, int layer, int end, const PagedStore& store,
                               const QueryRing* queries, int n) {
  const auto d = static_cast<size_t>(spec_.whole.head_dim);
  const int group = spec_.n_heads / spec_.whole.n_kv_heads;
  for (int head = 0; head < spec_.whole.n_kv_heads; ++head) {
    float* const center = frame(slot, layer, head);
    mean_of_keys(store.keys(layer, slot, head), kFirst, end, {center, d});
    std::fill_n(center + d, d, 0.0f);
    if (queries != nullptr)
      axis_of_queries(*queries, slot, n, layer, {head * group, (head + 1) * group},
                      {center + d, d});
  }
}

void QuantizedKeys::code(int slot, int layer, int begin, int end, const PagedStore& from) {
  each_page(slot, layer, begin, end, from, [&](const CodedPage& p, Range rows) {
    ops::code_rows_of_page({.page = p.codes,
                            .layout = layout(layer),
                            .k = p.rows.k,
                            .v = p.rows.v,
                            .dtype = spec_.whole.dtype,
                            .center = p.center,
                            .axis = p.axis,
                            .signs = signs()},
                           rows);
  });
}

template <class Body>
void QuantizedKeys::each_page(int slot, int layer, int begin, int end, const PagedStore& store,
                              const Body& body) const {
  const int first = begin / kPageTokens, n_pages = pages_of(end) - first;
  parallel_for(n_pages * spec_.whole.n_kv_heads, [&](int task) {
    const int i = first + task % n_pages, head = task / n_pages, token = i * kPageTokens;
    const float* const center = frame(slot, layer, head);
    body(CodedPage{.codes = page(place(layer), whole_.page(slot, i), head),
                   .rows = store.head_page(layer, slot, i, head),
                   .center = center,
                   .axis = center + spec_.whole.head_dim},
         Range{std::max(begin - token, 0), std::min(end - token, kPageTokens)});
  });
}

}  // namespace tandem::kv
