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

inline std::unique_ptr<Engine> make_engine(tandem::decode::ModelFiles files, tandem::DType compute,
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
  return std::make_unique<Engine>(std::move(files), spec);
}

inline std::unique_ptr<Engine> make_engine(const std::filesystem::path& folder,
                                           tandem::DType compute, int max_tokens, int max_seqs = 1,
                                           int chunk = 512, tandem::recipe::Cache cache = {},
                                           tandem::Device device = {}) {
  return make_engine(tandem::decode::open_model(folder.string(), 0), compute, max_tokens, max_seqs,
                     chunk, std::move(cache), device);
}

/// Reads `ids` into a sequence from token `begin` on, telling every row's logits [vocab] and their
/// log-sum-exp.
template <class Visit>
void read(Engine& engine, int slot, const Ids& ids, size_t begin, size_t chunk,
          const Visit& visit) {
  for (; begin < ids.size(); begin += chunk) {
    const size_t n = std::min(ids.size() - begin, chunk);
    const tandem::decode::SeqTokens part[] = {
        {slot, std::span(ids).subspan(begin, n), begin + n == ids.size()}};
    engine.forward_all(
        tandem::kv::Phase::prefill, part, [&](int first, const tandem::Tensor& logits) {
          const tandem::ops::LogitStats stats = tandem::ops::logit_stats(logits);
          for (int64_t r = 0; r < logits.rows(); ++r)
            visit(begin + static_cast<size_t>(first + r),
                  std::span(logits.slice(r, 1).as<float>(), static_cast<size_t>(logits.row_size())),
                  stats.lse[static_cast<size_t>(r)]);
        });
  }
}

/// Logits of all positions in `want` (rising), and the mean NLL of tokens 1.. before each of `ends`
/// (rising).
struct Scored {
  std::vector<std::vector<float>> logits;
  std::vector<double> mean_nll;
};

/// From one prefill into an empty sequence.
inline Scored score(Engine& engine, int slot, const Ids& ids, const std::vector<int>& want,
                    const std::vector<int>& ends, size_t chunk = 512) {
  Scored result;
  double nll = 0;
  read(engine, slot, ids, 0, chunk, [&](size_t position, std::span<const float> row, float lse) {
    const size_t n = result.logits.size(), n_ends = result.mean_nll.size();
    if (n < want.size() && position == static_cast<size_t>(want[n]))
      result.logits.emplace_back(row.begin(), row.end());
    if (n_ends < ends.size() && position + 1 == static_cast<size_t>(ends[n_ends]))
      result.mean_nll.push_back(position > 0 ? nll / static_cast<double>(position) : 0.0);
    if (position + 1 < ids.size())
      nll += double{lse} - double{row[static_cast<size_t>(ids[position + 1])]};
  });
  return result;
}

/// Greedy continuation of a sequence by `prompt` and one token at a time through the cache.
inline Ids greedy(Engine& engine, int slot, std::span<const int32_t> prompt, size_t n) {
  Ids out;
  const tandem::decode::SeqTokens part[] = {{slot, prompt, true}};
  engine.prefill(part, [&](std::span<const size_t>, const tandem::Tensor& logits) {
    out.push_back(tandem::ops::logit_stats(engine.on_host(logits)).argmax[0]);
  });
  while (out.size() < n) {
    const tandem::decode::SeqTokens step[] = {{slot, std::span(out).last(1), true}};
    out.push_back(tandem::ops::logit_stats(engine.extend(step)).argmax[0]);
  }
  return out;
}

/// What `body(slot)` returns for an empty sequence.
template <class Body>
auto in_new_sequence(Engine& engine, const Body& body) {
  const int slot = engine.cache().create();
  auto result = body(slot);
  engine.cache().release(slot);
  return result;
}

/// First step where the two differ although the golden gap exceeds `tie`; -1 = none. Steps after a
/// difference at a near tie are not compared: the texts have parted.
inline int first_real_difference(const Ids& ours, const Ids& golden,
                                 const std::vector<double>& gaps, double tie) {
  for (size_t i = 0; i < golden.size(); ++i)
    if (ours[i] != golden[i]) return gaps[i] > tie ? static_cast<int>(i) : -1;
  return -1;
}

}  // namespace golden
