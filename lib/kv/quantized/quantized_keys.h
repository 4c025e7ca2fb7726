#pragma once
#include <optional>
#include <set>
#include <vector>

#include "kernels/lowbit/coded_pages.h"
#include "kv/paged_store.h"
#include "kv/policy.h"
#include "kv/query_ring.h"

namespace tandem::kv {

/// Bits of keys and values of a layer; none where they are of the model's type.
std::optional<CodedBits> coded_bits(const recipe::Cache& cache, const Geometry& geometry,
                                    int layer);
/// Bytes of one token's key and value in a layer, all KV heads.
double token_bytes(const CodedLayout& layout, int n_kv_heads);
double token_bytes(const recipe::Cache& cache, const Geometry& geometry, int layer);

/// Keys and values of the layers that are kept in eight to four bits. `near` has rows of the
/// model's type: a text's first page, the tokens from its mark on and rows in flight. Codes have
/// the tokens between, under the page ids of the whole store. `prompt` has one layer of the texts
/// that go through the layers together, in the model's type. The mark follows the length in whole
/// pages, at a distance of 64 tokens: a token's numbers depend only on its text.
class QuantizedKeys {
 public:
  /// Tokens before are never coded: the first ones are sinks, whose errors cost most.
  static constexpr int kFirst = kPageTokens;

  struct Spec {
    std::vector<int> layers;           // rising
    std::vector<CodedBits> bits = {};  // by layer
    PagedStore::Spec whole;            // the store of the other layers
    int n_heads = 0;
    int rows = 0;           // most rows of a sequence in flight
    int prompt_tokens = 0;  // most tokens that go through the layers together

    CodedLayout layout(size_t i) const { return {whole.head_dim, bits[i]}; }
  };
  static void plan(const Spec& spec, MemoryPlan& plan);
  /// whole    the store of the same sequences; outlives this
  QuantizedKeys(const Spec& spec, PagedStore& whole, Arena& arena);

  bool holds(int layer) const { return index_[static_cast<size_t>(layer)] >= 0; }
  PagedStore& near() { return near_; }
  const PagedStore& near() const { return near_; }
  const PagedStore& prompt() const { return prompt_; }
  /// The first token of a slot after kFirst that is not in codes.
  int mark(int slot) const { return at(slot).mark; }
  /// The length with which the mark moves.
  int next_mark(int slot) const { return (mark(slot) / kPageTokens + 2) * kPageTokens; }

  /// Sequences come and go after those of the whole store, with the same slots.
  void acquire(int slot);
  void fork(int from, int to);
  void release(int slot);

  /// Makes room for rows up to n tokens of a text that is extended.
  void hold_near(int slot, int n) { near_.reserve(slot, n, {kFirst, mark(slot)}); }
  /// Other texts are about to go through the layers.
  void begin_prompts();
  /// The slot's text is among them, with n tokens.
  /// errors   kind memory: prompt has no room left for it
  void hold_prompt(int slot, int n);
  /// They are about to go through a layer: prompt gets the n tokens that they follow.
  void begin_layer(int layer, int slot, int n);
  /// They have gone through it, and prompt has n tokens of it. Those before the new mark
  /// become codes; near gets the others.
  /// queries  the newest of each sequence, or null
  void end_layer(int layer, int slot, int n, const QueryRing* queries);
  /// All their n tokens are committed.
  void commit_prompt(int slot, int n);
  /// Rows of an extend step are committed: the text has n tokens.
  void commit(int slot, int n);
  /// Cuts a text to n tokens. Below the mark it goes on with the codes that it has.
  void cut(int slot, int n);

  /// Codes of a layer, [n_pages, n_kv_heads, layout.page_bytes()].
  const uint8_t* codes(int layer) const { return codes_[place(layer)]; }
  CodedLayout layout(int layer) const { return spec_.layout(place(layer)); }
  /// A frame's center, then its axis, [2, head_dim].
  float* frame(int slot, int layer, int kv_head) const;
  /// Signs of the rotation, [2, head_dim].
  const float* signs() const { return signs_.data(); }

 private:
  struct Slot {
    int mark = kFirst;
    bool framed = false;  // its frames are set, for good
  };
  Slot& at(int slot) { return slots_[static_cast<size_t>(slot)]; }
  const Slot& at(int slot) const { return slots_[static_cast<size_t>(slot)]; }
  size_t place(int layer) const;
  uint8_t* page(size_t place, int32_t id, int kv_head) const;
  /// The mark with n tokens.
  int mark_at(int slot, int n) const;
  /// A page of one KV head: its codes, its rows in a store, and its frame.
  struct CodedPage {
    uint8_t* codes;
    PagedStore::HeadPage rows;
    const float *center, *axis;
  };
  /// Calls body(page, rows) for the pages of tokens [begin, end) under all KV heads.
  template <class Body>
  void each_page(int slot, int layer, int begin, int end, const PagedStore& store,
                 const Body& body) const;
  /// Unshares pages up to `end` of a text without frames: its forks may get other ones.
  void own_unframed(int slot, int end);
  /// Sets the frames of a slot's layer by its keys [kFirst, end) in a store, and the newest
  /// queries of its n tokens, if any.
  void set_frames(int slot, int layer, int end, const PagedStore& store, const QueryRing* queries,
                  int n);
  /// Codes tokens [begin, end) of a slot's layer.
  void code(int slot, int layer, int begin, int end, const PagedStore& from);

  Spec spec_;
  PagedStore& whole_;
  PagedStore prompt_, near_;
  std::vector<int> index_;       // [layers of the model] index among those held, or -1
  std::vector<uint8_t*> codes_;  // [layers held]
  float* frames_ = nullptr;      // [max_slots, layers held, n_kv_heads, 2, head_dim]
  std::vector<float> signs_;
  std::vector<Slot> slots_;
  std::set<int> texts_;  // slots with pages in prompt
};

}  // namespace tandem::kv
