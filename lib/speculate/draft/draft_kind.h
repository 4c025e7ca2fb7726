#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace tandem::speculate {

/// What proposes tokens.
enum class DraftKind : uint8_t {
  model,      // another model
  ngram,      // what followed the last tokens before
  self,       // the target, which reads its sequences a second way
  nested,     // rounds within a round, which the target verifies as self reads
  automatic,  // of none, that model alone, self and nested each round the one that is fastest
  none,       // nothing: plain decoding
};
constexpr std::array<std::string_view, 6> enum_names(DraftKind) {
  return {"model", "ngram", "self", "nested", "auto", "none"};
}

/// What proposes in rounds within a round.
enum class WithinKind : uint8_t { model, ngram };
constexpr std::array<std::string_view, 2> enum_names(WithinKind) { return {"model", "ngram"}; }

}  // namespace tandem::speculate
