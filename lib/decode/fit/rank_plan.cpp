#include "decode/fit/rank_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/weights/shard.h"

namespace tandem::decode {
namespace {

/// Of a sum of one row over two H100, as node of a graph: runs on GPUs report it as `ranks`.
constexpr double kSumSeconds = 2.4e-6;

std::string counted(int n, const char* what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

bool are_equal(const model::Shard& a, const model::Shard& b) {
  return a.kv_heads.n == b.kv_heads.n && a.channels.n == b.channels.n;
}

}  // namespace

RankPlan rank_plan(const ModelFiles& files, const EngineSpec& spec, int sequences,
                   const MemoryLimits& limits) {
  RankPlan plan{.device = spec.device};
  const int n_ranks = files.shard.n_ranks;
  if (files.shard.whole()) return plan;
  for (int r = 0; r < n_ranks; ++r) {
    const model::Shard s = model::shard_of(files.whole, r, n_ranks, files.shard.channel_block);
    const auto same = std::ranges::find_if(
        plan.kinds, [&](const RankPlan::Kind& k) { return are_equal(k.shard, s); });
    if (same != plan.kinds.end()) {
      same->ranks.push_back(r);
      continue;
    }
    ModelFiles of_rank;
    of_rank.name = files.name;
    of_rank.folder = files.folder;
    of_rank.fingerprint = files.fingerprint;
    of_rank.config = model::config_of(files.whole, s);
    of_rank.shard = s;
    of_rank.adapters = files.adapters;  // about as large on others
    plan.kinds.push_back({{r}, s, Engine::plan(of_rank, spec).peak(spec.device)});
  }
  const model::ModelConfig& c = files.config;
  const bool on_gpu = spec.device.kind == Device::Kind::cuda;
  plan.sums = 2 * c.n_layers + (on_gpu ? 1 : 0);  // a GPU has its part of the embedding
  plan.bytes = sizeof(float) * double(sequences) * (double(plan.sums) * c.dim + c.head_rows());
  if (const auto& card = limits.plan_for; card && card->link_gbps > 0) {
    const double gbps = card->peer_gbps > 0 ? card->peer_gbps : card->link_gbps;
    plan.seconds = (plan.sums + 1) * kSumSeconds + plan.bytes * (n_ranks - 1) / (1e9 * gbps);
  }
  return plan;
}

std::string RankPlan::lines() const {
  std::string text;
  for (const Kind& k : kinds)
    text +=
        fmt::format("{}   {}: {}, {}, {} FFN channels, {} rows of the vocabulary, peak {} on {}\n",
                    text.empty() ? "ranks " : "      ", fmt::join(k.ranks, ", "),
                    counted(k.shard.heads.n, "query head"), counted(k.shard.kv_heads.n, "KV head"),
                    k.shard.channels.n, k.shard.vocabulary.n, format_bytes(k.peak),
                    device.kind == Device::Kind::cpu ? "the CPU" : "its GPU");
  if (text.empty()) return text;
  text +=
      fmt::format("         {} all-reduces and the logits: {} per step between each pair of ranks",
                  sums, format_bytes(static_cast<size_t>(bytes)));
  if (seconds > 0) text += fmt::format(", {:.2f} ms", 1e3 * seconds);
  return text + '\n';
}

nlohmann::ordered_json RankPlan::json() const {
  nlohmann::ordered_json j = {{"kinds", nlohmann::ordered_json::array()},
                              {"sums", sums},
                              {"bytes_to_each_other", static_cast<size_t>(bytes)}};
  if (seconds > 0) j["traffic_ms"] = 1e3 * seconds;
  for (const Kind& k : kinds)
    j["kinds"].push_back({{"ranks", k.ranks},
                          {"query_heads", k.shard.heads.n},
                          {"kv_heads", k.shard.kv_heads.n},
                          {"ffn_channels", k.shard.channels.n},
                          {"vocabulary_rows", k.shard.vocabulary.n},
                          {"planned_peak", k.peak}});
  return j;
}

}  // namespace tandem::decode
