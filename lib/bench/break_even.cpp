#include "bench/break_even.h"

#include <fmt/format.h>

#include <map>
#include <tuple>

namespace tandem::bench {
namespace {

constexpr const char* kFull = "full";

/// Context -> how many ms a method is ahead of full attention.
using Lead = std::map<int, double>;

std::string sentence(const Lead& lead) {
  auto slower = lead.end();  // the longest context where full attention is as fast
  for (auto it = lead.begin(); it != lead.end(); ++it)
    if (it->second <= 0) slower = it;
  if (slower == lead.end())
    return fmt::format("is faster than full attention from the shortest context measured, {}",
                       lead.begin()->first);
  const auto faster = std::next(slower);
  if (faster == lead.end())
    return fmt::format("is not faster than full attention up to {} tokens", slower->first);
  const double share = -slower->second / (faster->second - slower->second);
  return fmt::format("overtakes full attention at about {:.0f} tokens (slower at {}, faster at {})",
                     slower->first + share * (faster->first - slower->first), slower->first,
                     faster->first);
}

}  // namespace

std::vector<std::string> break_even(std::span<const DecodeTime> times) {
  std::map<std::tuple<std::string, int, std::string>, Lead> leads;
  for (const DecodeTime& time : times)
    for (const DecodeTime& full : times)
      if (time.method != kFull && full.method == kFull && time.model == full.model &&
          time.batch == full.batch && time.context == full.context)
        leads[{time.model, time.batch, time.method}][time.context] = full.ms - time.ms;
  std::vector<std::string> lines;
  for (const auto& [key, lead] : leads)
    lines.push_back(fmt::format("{}, batch {}: {} {}", std::get<0>(key), std::get<1>(key),
                                std::get<2>(key), sentence(lead)));
  return lines;
}

}  // namespace tandem::bench
