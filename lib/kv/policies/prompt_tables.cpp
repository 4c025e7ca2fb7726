#include "kv/policies/prompt_tables.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::kv {
namespace {

/// One is copied and one is made; the third keeps both at work where they take turns at being late.
/// 12 MiB each at 180 tables, next to 24 GiB that weights and prompts may fill.
constexpr int kBuffers = 3;

size_t max_pages(const TokenIndex& index) {
  return static_cast<size_t>((index.max_tokens() + kPageTokens - 1) / kPageTokens);
}

PinnedPages pinned(std::span<std::byte> memory) { return {memory.data(), memory.size(), 0}; }

}  // namespace

PromptTables::PromptTables(const recipe::Lsh& spec, const Bounds& bounds, const TokenIndex& index,
                           HeadGrid grid, Device device)
    : geometry_(bounds.geometry),
      index_(index),
      grid_(grid),
      device_(device),
      hasher_(spec, bounds, grid, index.capacity(), /*appends=*/false, device),
      buffers_(kBuffers) {}

void PromptTables::plan(MemoryPlan& plan, const std::string& prefix) const {
  if (grid_.n_sparse == 0) return;
  hasher_.plan(plan, prefix);
  plan.add(prefix + ".tables", kBuffers * hasher_.block_elements() * sizeof(uint16_t), device_);
  plan.add(prefix + ".norms", kBuffers * static_cast<size_t>(index_.capacity()) * sizeof(float),
           device_);
  plan.add(prefix + ".pages", max_pages(index_) * sizeof(int32_t), device_);
}

void PromptTables::allocate(Arena& arena, const std::string& prefix) {
  if (grid_.n_sparse == 0) return;
  hasher_.allocate(arena, prefix);
  auto* tables = static_cast<uint16_t*>(arena.take(prefix + ".tables"));
  auto* norms = static_cast<float*>(arena.take(prefix + ".norms"));
  pages_ = static_cast<int32_t*>(arena.take(prefix + ".pages"));
  for (Buffer& buffer : buffers_) {
    buffer.at = hasher_.place(tables, norms);
    // Whichever KV head it has, that lies there.
    buffer.at.tables.head_stride = buffer.at.norm_stride = 0;
    tables += hasher_.block_elements();
    norms += index_.capacity();
  }
}

void PromptTables::run_on(const Exec& exec, cuda::Queue& copies, const LshTables& tables,
                          const KeyCenters& centers) {
  exec_ = exec;
  copies_ = &copies;
  tables_ = &tables;
  centers_ = &centers;
  if (grid_.n_sparse == 0) return;
  hasher_.run_on(exec);
  for (Buffer& buffer : buffers_) {
    buffer.made = std::make_unique<cuda::Event>();
    buffer.copied = std::make_unique<cuda::Event>();
  }
  pinned_tables_ = pinned(tables.memory());
  pinned_norms_ = pinned(tables.norm_memory());
  pinned_centers_ = pinned(centers.memory());
}

const std::string& PromptTables::why_unpinned() const {
  for (const PinnedPages* pages : {&pinned_tables_, &pinned_norms_})
    if (!pages->refusal().empty()) return pages->refusal();
  return pinned_centers_.refusal();
}

void PromptTables::index_tokens(const TokenIndex::Work& work, int layer, const PagedStore& store) {
  const int slot = work.slot, ordinal = work.ordinals.begin, heads = geometry_.n_kv_heads;
  TANDEM_CHECK(work.fresh && work.ordinals.end == ordinal + 1,
               "expected one layer of a new index, found {}, new: {}", work.ordinals.end - ordinal,
               work.fresh);
  const std::vector<int32_t>& pages = store.pages(slot);
  exec_.queue->copy_in(pages_, pages.data(),
                       std::min(pages.size(), max_pages(index_)) * sizeof(int32_t));
  const KeyHasher::Keys keys{store.k(layer).raw(), pages_};
  hasher_.set_center(slot, ordinal, keys, index_.begin(), index_.end(slot));
  for (const TokenIndex::Piece& piece : work.pieces)
    for (int head = 0; head < heads; ++head) {
      const Buffer& buffer = buffers_[next_++ % buffers_.size()];
      exec_.queue->follow(*buffer.copied);
      hasher_.add(slot, ordinal, keys, piece, {head, head + 1}, buffer.at);
      buffer.made->record(*exec_.queue);
      copies_->follow(*buffer.made);
      tables_->copy_out(buffer.at.tables.at, buffer.at.norms, piece, ordinal, head, *copies_);
      buffer.copied->record(*copies_);
    }
  // After the copies of tables, and so after its making.
  copies_->copy_out(centers_->at(slot, ordinal, 0), hasher_.centers(slot, ordinal),
                    static_cast<size_t>(heads * geometry_.head_dim) * sizeof(float));
}

}  // namespace tandem::kv
