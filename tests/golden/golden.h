#pragma once
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "decode/engine.h"
#include "io/file.h"
#include "ops/sampling.h"
#include "source_dir.h"

/// Helpers of the comparisons with Hugging Face transformers.
namespace golden {

using tandem::decode::Engine;
using tandem::decode::EngineSpec;
using Ids = std::vector<int32_t>;

using tandem::test::source_dir;
/// The folder beside the checkout that may hold further data; empty when absent.
inline std::filesystem::path shared_dir() {
  const std::filesystem::path p = source_dir().parent_path() / "shared";
  return std::filesystem::exists(p) ? p : std::filesystem::path();
}

inline nlohmann::json read_json(const std::filesystem::path& path) {
  return nlohmann::json::parse(tandem::io::read_file(path));
}

inline std::unique_ptr<Engine> make_engine(const std::filesystem::path& folder, tandem::DType compute,
                                           int max_tokens, int max_seqs = 1, int chunk = 512,
                                           tandem::recipe::Cache cache = {},
                                           tandem::Device device = {}) {
  EngineSpec spec;
  spec.compute = compute;
  spec.prefill_chunk = chunk;
  spec.max_seqs = max_seqs;
  spec.max_tokens = max_tokens;
  spec.total_tokens = int64_t{max_tokens} * max_seqs;
  spec.max_logit_rows = 64;
  spec.caches = {cache};
  spec.device = device;
  return std::make_unique<Engine>(tandem::decode::open_model(folder.string(), 0), spec);
}

/// Logits of all positions in `want` (rising), and the mean NLL of tokens 1.., from one prefill.
struct Scored {
  std::vector<std::vector<float>> logits;
  double mean_nll = 0;
};

inline Scored score(Engine& engine, const Ids& ids, const std::vector<int>& want, int chunk = 512) {
  Scored result;
  const int slot = engine.cache().create();
  double nll = 0;
  size_t next_want = 0;
  for (size_t begin = 0; begin < ids.size(); begin += static_cast<size_t>(chunk)) {
    const size_t n = std::min(ids.size() - begin, static_cast<size_t>(chunk));
    const tandem::decode::SeqTokens part[] = {
        {slot, std::span(ids).subspan(begin, n), begin + n == ids.size()}};
    engine.forward_all(tandem::kv::Phase::prefill, part, [&](int first, const tandem::Tensor& logits) {
      const tandem::ops::LogitStats stats = tandem::ops::logit_stats(logits);
      for (int64_t r = 0; r < logits.rows(); ++r) {
        const size_t position = begin + static_cast<size_t>(first) + static_cast<size_t>(r);
        const float* row = logits.slice(r, 1).as<float>();
        if (position + 1 < ids.size())
          nll += double{stats.lse[static_cast<size_t>(r)]} - double{row[ids[position + 1]]};
        if (next_want < want.size() && position == static_cast<size_t>(want[next_want])) {
          result.logits.emplace_back(row, row + logits.row_size());
          ++next_want;
        }
      }
    });
  }
  engine.cache().release(slot);
  result.mean_nll = ids.size() > 1 ? nll / static_cast<double>(ids.size() - 1) : 0.0;
  return result;
}

/// Greedy continuation: prefill, then one token at a time through the cache.
inline Ids greedy(Engine& engine, const Ids& prompt, size_t n) {
  const int slot = engine.cache().create();
  Ids out;
  const tandem::decode::SeqTokens part[] = {{slot, prompt, true}};
  engine.prefill(part, [&](std::span<const size_t>, const tandem::Tensor& logits) {
    out.push_back(tandem::ops::logit_stats(engine.on_host(logits)).argmax[0]);
  });
  while (out.size() < n) {
    const tandem::decode::SeqTokens step[] = {{slot, std::span(out).last(1), true}};
    out.push_back(tandem::ops::logit_stats(engine.extend(step)).argmax[0]);
  }
  engine.cache().release(slot);
  return out;
}

/// First step where the two differ although the golden gap exceeds `tie`; -1 = none. Steps after a
/// difference at a near tie are not compared: the texts have parted.
inline int first_real_difference(const Ids& ours, const Ids& golden, const std::vector<double>& gaps,
                                 double tie) {
  for (size_t i = 0; i < golden.size(); ++i)
    if (ours[i] != golden[i]) return gaps[i] > tie ? static_cast<int>(i) : -1;
  return -1;
}

}  // namespace golden
