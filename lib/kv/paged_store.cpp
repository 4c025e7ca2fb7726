#include "kv/paged_store.h"

#include <numeric>
#include <utility>

#include "base/check.h"

namespace tandem::kv {
namespace {

/// Layers that a store holds.
std::vector<int> layers_of(const PagedStore::Spec& s) {
  if (s.layers) return *s.layers;
  std::vector<int> all(static_cast<size_t>(s.n_layers));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Pages::Spec pages_spec(const PagedStore::Spec& s) {
  return {.n_layers = s.one_layer ? 1 : static_cast<int>(layers_of(s).size()),
          .n_kv_heads = s.n_kv_heads,
          .head_dim = s.head_dim,
          .dtype = s.dtype,
          .n_pages = s.n_pages,
          .device = s.device,
          .eight_bit = s.eight_bit,
          .copied_by = s.copied_by};
}

std::shared_ptr<Sequences> sequences_of(const PagedStore::Spec& s) {
  return std::make_shared<Sequences>(Sequences::Spec{s.n_pages, s.max_slots, s.max_pages});
}

std::string moves_name(const PagedStore::Spec& spec) { return spec.prefix + "/moves"; }

size_t moves_bytes(const PagedStore::Spec& spec) {
  return 2 * static_cast<size_t>(spec.max_moves) * sizeof(int32_t);
}

}  // namespace

void PagedStore::plan(const Spec& spec, MemoryPlan& plan) {
  Pages::plan(pages_spec(spec), spec.prefix, plan);
  plan.add(moves_name(spec), moves_bytes(spec), spec.device);
}

PagedStore::PagedStore(const Spec& spec, Arena& arena, const Exec& exec)
    : PagedStore(spec, exec, sequences_of(spec), Pages(pages_spec(spec), spec.prefix, arena)) {
  if (moves_bytes(spec) > 0) moves_ = static_cast<int32_t*>(arena.take(moves_name(spec)));
}

PagedStore::PagedStore(const Spec& spec, Arena& arena, const Exec& exec, PagedStore& of)
    : PagedStore(spec, exec, of.sequences_, Pages(pages_spec(spec), spec.prefix, arena)) {
  TANDEM_CHECK(spec.n_pages == of.spec_.n_pages,
               "found {} pages, expected {} as in the other store of these sequences", spec.n_pages,
               of.spec_.n_pages);
  if (moves_bytes(spec) > 0) moves_ = static_cast<int32_t*>(arena.take(moves_name(spec)));
  if (!spec.one_layer)
    of.on_copy([this](int32_t from, int32_t to) { pages_.copy_page(from, to, exec_.stream()); });
}

PagedStore::PagedStore(const Spec& spec, const Exec& exec, PagedStore& of, const PagedStore& in,
                       int32_t first)
    : PagedStore(spec, exec, of.sequences_, Pages(pages_spec(spec), in.pages_, first)) {
  TANDEM_CHECK(spec.one_layer && moves_bytes(spec) == 0, "{} cannot share the memory of {}",
               spec.prefix, in.spec_.prefix);
}

PagedStore::PagedStore(const Spec& spec, const Exec& exec, std::shared_ptr<Sequences> sequences,
                       Pages pages)
    : spec_(spec),
      exec_(exec),
      place_(static_cast<size_t>(spec.n_layers), -1),
      sequences_(std::move(sequences)),
      pages_(std::move(pages)) {
  int i = 0;
  for (const int layer : layers_of(spec))
    place_[static_cast<size_t>(layer)] = spec.one_layer ? 0 : i++;
}

int PagedStore::place(int layer) const {
  TANDEM_CHECK(holds(layer), "layer {} is not in {}", layer, spec_.prefix);
  return place_[static_cast<size_t>(layer)];
}

void PagedStore::copy_page(int32_t from, int32_t to) const {
  pages_.copy_page(from, to, exec_.stream());
  for (const Sequences::CopyPage& copy_there : copies_) copy_there(from, to);
}

void PagedStore::reserve(int slot, int n, Range gap) {
  sequences_->reserve(
      slot, n, [this](int32_t from, int32_t to) { copy_page(from, to); }, gap);
}

void PagedStore::own(int slot, int begin, int end) {
  sequences_->own(slot, begin, end, [this](int32_t from, int32_t to) { copy_page(from, to); });
}

PagedStore::HeadPage PagedStore::head_page(int layer, int slot, int page_index, int kv_head) const {
  const int64_t row = (int64_t{page(slot, page_index)} * spec_.n_kv_heads + kv_head) * kPageTokens;
  const auto at = [&](const Tensor& pool) {
    return static_cast<char*>(pool.raw()) + row * static_cast<int64_t>(row_bytes());
  };
  return {at(k(layer)), at(v(layer))};
}

void PagedStore::copy_layer_from(const PagedStore& from, int layer, int slot, int begin, int end,
                                 cuda::Queue* queue) {
  if (begin >= end) return;
  if (queue == nullptr) queue = exec_.on_gpu() ? exec_.queue : from.exec_.queue;
  const int first = begin / kPageTokens, last = (end + kPageTokens - 1) / kPageTokens;
  for (int i = first, n = 0; i < last; i += n) {
    // Pages that follow each other in both are one copy: a launch costs what several take.
    const int32_t to_page = page(slot, i), from_page = from.page(slot, i);
    TANDEM_CHECK(to_page >= 0 && from_page >= 0, "page {} of slot {} is not in {}", i, slot,
                 from_page < 0 ? from.spec_.prefix : spec_.prefix);
    for (n = 1; i + n < last && page(slot, i + n) == to_page + n &&
                from.page(slot, i + n) == from_page + n;)
      ++n;
    copy_pages(page_run(layer, to_page), from.page_run(layer, from_page), n, queue);
  }
}

void PagedStore::copy_from(const PagedStore& from, int slot, int begin, int end) {
  for (int layer = 0; layer < spec_.n_layers; ++layer)
    if (holds(layer) && from.holds(layer)) copy_layer_from(from, layer, slot, begin, end);
}

void PagedStore::move_paths(const AcceptedPaths& p, const ops::StepArrays& step) {
  const int n_moves = p.n_seqs * p.max_depth;
  TANDEM_CHECK(n_moves <= spec_.max_moves, "{} moves exceed the planned {}", n_moves,
               spec_.max_moves);
  ops::path_moves({.from_token = moves_,
                   .to_token = moves_ + n_moves,
                   .path = p.path,
                   .n_accepted = p.n_accepted,
                   .position = p.position,
                   .page_table = step.page_table,
                   .slot = step.slot,
                   .n_seqs = p.n_seqs,
                   .n_nodes = p.n_nodes,
                   .max_pages = spec_.max_pages,
                   .max_moves = p.max_depth,
                   .n_nodes_held = p.n_nodes_held},
                  exec_.stream());
  ops::move_tokens({pages_.pools(), moves_, moves_ + n_moves, n_moves}, exec_.stream());
}

}  // namespace tandem::kv
