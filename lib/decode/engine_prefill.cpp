// Prompts in chunks: one after another through the model, or all chunks of a pass through a layer
// before the next.
#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "decode/engine.h"

namespace tandem::decode {

Engine::Chunk Engine::take_chunk(std::span<const SeqTokens> sequences, Cursor& at,
                                 size_t max_rows) const {
  const auto max_in_step = static_cast<size_t>(model_.options().max_logit_rows);
  Chunk chunk;
  while (at.next < sequences.size() && chunk.rows < max_rows && chunk.parts.size() < max_in_step) {
    const SeqTokens& s = sequences[at.next];
    // Texts that a policy has cut go on under it, whole ones densely: never in one forward.
    if (!chunk.parts.empty() && cache_.is_cut(s.slot) != cache_.is_cut(chunk.parts[0].slot)) break;
    const size_t n = std::min(s.tokens.size() - at.offset, max_rows - chunk.rows);
    const bool ends = at.offset + n == s.tokens.size();
    chunk.parts.push_back({s.slot, s.tokens.subspan(at.offset, n), ends && s.ends_prompt});
    chunk.rows += n;
    at.offset = ends ? 0 : at.offset + n;
    if (!ends) break;
    chunk.finished.push_back(at.next++);
    if (n > 0) chunk.last_rows.push_back(static_cast<int32_t>(chunk.rows) - 1);
  }
  TANDEM_CHECK(chunk.last_rows.size() == chunk.finished.size(),
               "cannot prefill a sequence without tokens");
  return chunk;
}

void Engine::run_by_layers(std::span<const Chunk> chunks, const OnLogits& on_logits,
                           const std::function<void(int layers)>& on_layer) {
  std::vector<std::vector<kv::SeqRows>> rows;
  std::vector<std::vector<int32_t>> tokens;
  for (const Chunk& chunk : chunks) {
    rows.emplace_back();
    tokens.emplace_back();
    for (const SeqTokens& s : chunk.parts) {
      rows.back().push_back({s.slot, static_cast<int>(s.tokens.size()), s.ends_prompt});
      tokens.back().insert(tokens.back().end(), s.tokens.begin(), s.tokens.end());
    }
    choose_products(static_cast<int64_t>(chunk.rows),
                    on_logits ? static_cast<int64_t>(chunk.last_rows.size()) : 0);
  }
  std::vector<kv::Step> steps = cache_.begin_prompts(rows);
  const std::vector<std::span<const int32_t>> ids(tokens.begin(), tokens.end());
  model_.forward_by_layers(ids, steps, cache_, on_layer);
  for (size_t i = 0; i < chunks.size(); ++i) {
    cache_.commit(steps[i]);
    if (!on_logits || chunks[i].finished.empty()) continue;
    model_.turn_to(i);
    on_logits(chunks[i].finished, logits(chunks[i].last_rows));
  }
}

size_t Engine::rows_of_pass(std::span<const SeqTokens> sequences, const Cursor& at) const {
  const auto room = static_cast<size_t>(model_.options().max_prompt_rows);
  size_t rows = 0, offset = at.offset;
  int pages = cache_.residence().facts().prompt_pages;
  for (size_t i = at.next; i < sequences.size() && !cache_.is_cut(sequences[i].slot); ++i) {
    const size_t left = sequences[i].tokens.size() - offset, n = std::min(left, room);
    TANDEM_CHECK(left > 0, "cannot prefill a sequence without tokens");
    const int end = cache_.length(sequences[i].slot) + static_cast<int>(n);
    const int needed = (end + kPageTokens - 1) / kPageTokens;
    if (i > at.next && (rows + left > room || needed > pages)) break;
    rows += n;
    pages -= needed;
    offset = 0;
  }
  return rows;
}

void Engine::prefill(std::span<const SeqTokens> sequences, const OnLogits& on_logits,
                     const Progress& progress) {
  const auto chunk_rows = static_cast<size_t>(model_.options().max_rows);
  Cursor at;
  int64_t done = 0;
  const auto report = [&](int64_t rows, bool last) {
    if (progress && !progress(rows) && !last)
      throw Error(ErrorKind::interrupted, "", "interrupted during prefill");
  };
  while (at.next < sequences.size()) {
    // Texts that a policy has cut go on under it, chunk by chunk.
    const bool by_layers =
        model_.options().max_prompt_rows > 0 && !cache_.is_cut(sequences[at.next].slot);
    if (!by_layers) {
      const Chunk chunk = take_chunk(sequences, at, chunk_rows);
      run(kv::Phase::prefill, chunk.parts,
          on_logits ? static_cast<int64_t>(chunk.last_rows.size()) : 0);
      done += static_cast<int64_t>(chunk.rows);
      if (on_logits && !chunk.finished.empty()) on_logits(chunk.finished, logits(chunk.last_rows));
      report(done, at.next == sequences.size());
      continue;
    }
    std::vector<Chunk> chunks;
    const size_t rows = rows_of_pass(sequences, at);
    for (size_t taken = 0; taken < rows; taken += chunks.back().rows)
      chunks.push_back(take_chunk(sequences, at, std::min(chunk_rows, rows - taken)));
    const int n_layers = config().n_layers;
    run_by_layers(chunks, on_logits, [&](int layers) {
      report(done + static_cast<int64_t>(rows) * layers / n_layers,
             layers == n_layers && at.next == sequences.size());
    });
    done += static_cast<int64_t>(rows);
  }
}

}  // namespace tandem::decode
