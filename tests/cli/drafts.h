#pragma once
#include <doctest/doctest.h>

#include <cstdio>
#include <string>

#include "temporary_folder.h"

/// Files by which trees of draft tokens are chosen, and what runs say of speculation.
namespace tandem::testing {

inline std::string vector_text(const std::string& method, const std::string& p) {
  return R"({"format": "acceptance-vector/1", "method": ")" + method + R"(", "p": )" + p + "}";
}

inline std::string write_vector(const test::TemporaryFolder& folder, const std::string& method,
                                const std::string& p) {
  return folder.write("accept.json", vector_text(method, p));
}

/// Times of a target of 10 ms and of a draft.
inline std::string write_times(const test::TemporaryFolder& folder, const std::string& name,
                               double draft_ms) {
  return folder.write(name, R"({"format": "sequoia-timing/1", "skip_deepest": true, "buckets":
      [{"context": 4096, "target": {"tokens": [1, 64], "ms": [10, 11]},
        "draft": {"tokens": [1], "ms": [)" +
                                std::to_string(draft_ms) + "]}}]}");
}

/// Speed of speculation over plain decoding, as the summary has it; 0: it says nothing.
inline double speedup_in(const std::string& summary) {
  const size_t at = summary.find("speculation was ");
  double x = 0;
  if (at != std::string::npos)
    REQUIRE(std::sscanf(summary.c_str() + at, "speculation was %lfx as fast", &x) == 1);
  return x;
}

}  // namespace tandem::testing
