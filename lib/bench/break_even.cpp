#include "bench/break_even.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

namespace tandem::bench {
namespace {

/// Context -> how many ms a method is ahead of full attention.
using Lead = std::map<int, double>;

std::string sentence(const Lead& lead, const std::string& full) {
  auto slower = lead.end();  // the longest context where full attention is as fast
  for (auto it = lead.begin(); it != lead.end(); ++it)
    if (it->second <= 0) slower = it;
  if (slower == lead.end())
    return fmt::format("is faster than {} from the shortest context measured, {}", full,
                       lead.begin()->first);
  const auto faster = std::next(slower);
  if (faster == lead.end())
    return fmt::format("is not faster than {} up to {} tokens", full, slower->first);
  const double share = -slower->second / (faster->second - slower->second);
  return fmt::format("overtakes {} at about {:.0f} tokens (slower at {}, faster at {})", full,
                     slower->first + share * (faster->first - slower->first), slower->first,
                     faster->first);
}

}  // namespace

std::vector<DecodeTime> decode_times(const std::vector<Json>& records) {
  std::vector<DecodeTime> times;
  Json first;
  for (const Json& r : records) {
    const Json &batch = at(r, "/workload/batch"), &context = at(r, "/workload/context_tokens"),
               &ms = at(r, "/timing/decode_step/p50");
    const Json& named = at(r, "/workload/method");
    const std::string method =
        cell(named.is_null() ? at(r, "/recipe/effective/cache/kind") : named);
    if (!batch.is_number() || !context.is_number() || !ms.is_number() || method.empty()) continue;
    const Json place = {at(r, "/workload/device"), at(r, "/host/threads_used")};
    if (times.empty()) first = place;
    if (place != first) return {};
    times.push_back({.model = cell(at(r, "/model/name")),
                     .batch = batch,
                     .method = method,
                     .full = method.starts_with("full"),
                     .hosted = method.find(" host") != std::string::npos,
                     .context = context,
                     .ms = ms});
  }
  return times;
}

std::vector<std::string> break_even(std::span<const DecodeTime> times) {
  // Full attention: by model, batch, place and context the best.
  using Point = std::tuple<std::string, int, bool, int>;
  std::map<Point, double> full;
  for (const DecodeTime& t : times)
    if (t.full) {
      const auto [it, fresh] = full.try_emplace({t.model, t.batch, t.hosted, t.context}, t.ms);
      if (!fresh) it->second = std::min(it->second, t.ms);
    }
  std::map<std::tuple<std::string, int, std::string, bool>, Lead> leads;
  for (const DecodeTime& t : times)
    for (const bool hosted : {false, true})
      if (const auto it = full.find({t.model, t.batch, hosted, t.context});
          !t.full && (t.hosted || !hosted) && it != full.end())
        leads[{t.model, t.batch, t.method, hosted}][t.context] = it->second - t.ms;
  std::vector<std::string> lines;
  for (const auto& [key, lead] : leads) {
    const auto& [model, batch, method, hosted] = key;
    lines.push_back(fmt::format(
        "{}, batch {}: {} {}", model, batch, method,
        sentence(lead, hosted ? "full attention over offloaded KV" : "full attention")));
  }
  return lines;
}

}  // namespace tandem::bench
