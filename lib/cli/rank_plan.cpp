#include "cli/rank_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/shard.h"

namespace tandem::cli {

using Json = nlohmann::ordered_json;

namespace {

/// Of a sum of one row over two H100, as node of a graph: tests/records/gpu-h100-ranks.jsonl.
constexpr double kSumSeconds = 2.4e-6;

std::string counted(int n, const char* what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

}  // namespace

std::vector<RankKind> rank_kinds(const decode::ModelFiles& files, const decode::EngineSpec& spec) {
  std::vector<RankKind> kinds;
  if (files.shard.whole()) return kinds;
  for (int r = 0; r < files.shard.n_ranks; ++r) {
    const model::Shard s = model::draft_shard_of(files.whole, r, files.shard.n_ranks);
    const auto equal = std::ranges::find_if(kinds, [&](const RankKind& k) {
      return k.shard.kv_heads.n == s.kv_heads.n && k.shard.channels.n == s.channels.n;
    });
    if (equal != kinds.end()) {
      equal->ranks.push_back(r);
      continue;
    }
    decode::ModelFiles of_rank;
    of_rank.name = files.name;
    of_rank.folder = files.folder;
    of_rank.fingerprint = files.fingerprint;
    of_rank.config = model::config_of(files.whole, s);
    of_rank.shard = s;
    of_rank.adapters = files.adapters;  // about as large on others
    kinds.push_back({{r}, s, decode::Engine::plan(of_rank, spec)});
  }
  return kinds;
}

RankTraffic rank_traffic(const decode::ModelFiles& files, int sequences, const GpuCard* card) {
  const model::ModelConfig& c = files.config;
  RankTraffic t{.sums = (c.layers_divided ? 2 * c.n_layers : 0) + 1};  // the embedding's too
  t.bytes = sizeof(float) * double(sequences) * (double(t.sums) * c.dim + c.head_rows());
  const double gbps = card == nullptr ? 0 : card->peer_gbps > 0 ? card->peer_gbps : card->link_gbps;
  if (gbps > 0)
    t.seconds = (t.sums + 1) * kSumSeconds + t.bytes * (files.shard.n_ranks - 1) / (1e9 * gbps);
  return t;
}

std::string rank_lines(const std::vector<RankKind>& kinds, const RankTraffic& traffic,
                       Device device) {
  std::string text;
  for (const RankKind& k : kinds) {
    const model::Shard& s = k.shard;
    text +=
        fmt::format("{}   {}: {}, {}, {} FFN channels, {} rows of the vocabulary; peak {} on {}\n",
                    text.empty() ? "ranks " : "      ", fmt::join(k.ranks, ", "),
                    counted(s.heads.n, "query head"), counted(s.kv_heads.n, "KV head"),
                    s.channels.n, s.vocabulary.n, format_bytes(k.plan.peak(device)),
                    device.kind == Device::Kind::cpu ? "the CPU" : "its GPU");
  }
  if (text.empty()) return text;
  text += fmt::format("         {} sums and the logits: {} from each rank to each other a step",
                      traffic.sums, format_bytes(static_cast<size_t>(traffic.bytes)));
  if (traffic.seconds > 0) text += fmt::format(", {:.2f} ms", 1e3 * traffic.seconds);
  return text + '\n';
}

Json rank_json(const std::vector<RankKind>& kinds, const RankTraffic& traffic, Device device) {
  Json j = {{"kinds", Json::array()},
            {"sums", traffic.sums},
            {"bytes_to_each_other", static_cast<size_t>(traffic.bytes)}};
  if (traffic.seconds > 0) j["traffic_ms"] = 1e3 * traffic.seconds;
  for (const RankKind& k : kinds)
    j["kinds"].push_back({{"ranks", k.ranks},
                          {"query_heads", k.shard.heads.n},
                          {"kv_heads", k.shard.kv_heads.n},
                          {"ffn_channels", k.shard.channels.n},
                          {"vocabulary_rows", k.shard.vocabulary.n},
                          {"planned_peak", k.plan.peak(device)}});
  return j;
}

}  // namespace tandem::cli
