#pragma once
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/rng.h"

namespace tandem::test {

/// Inputs per reader: `fallback`, or the environment variable TANDEM_FUZZ_RUNS.
inline uint32_t fuzz_runs(uint32_t fallback) {
  const char* text = std::getenv("TANDEM_FUZZ_RUNS");
  return text == nullptr ? fallback : static_cast<uint32_t>(std::strtoul(text, nullptr, 10));
}

/// Damages a valid input in ways that files are damaged, and in ways that hostile ones are made:
/// flipped, replaced, inserted and removed bytes, repeated and moved blocks, cut ends, numbers
/// changed to extremes, brackets nested. A pure function of seed and run.
class Mutator {
 public:
  explicit Mutator(uint64_t seed) : seed_(seed) {}

  std::string mutate(std::string_view valid, uint32_t run) const {
    PhiloxStream draw(seed_, run);
    std::string text(valid);
    for (uint32_t n = 1 + draw.below(4); n > 0; --n) mutate_once(text, draw);
    return text;
  }

 private:
  static constexpr std::string_view kExtremes[] = {"0",
                                                   "-1",
                                                   "1e999",
                                                   "9223372036854775807",
                                                   "18446744073709551615",
                                                   "99999999999999999999",
                                                   "2147483648",
                                                   "1.5",
                                                   "null",
                                                   "true",
                                                   "\"\"",
                                                   "[]",
                                                   "{}",
                                                   "\\u0000",
                                                   "\\u001b[2J",
                                                   "\xff\xfe",
                                                   "../../etc/x"};

  static void mutate_once(std::string& text, PhiloxStream& draw) {
    const auto size = static_cast<uint32_t>(text.size());
    const uint32_t at = size == 0 ? 0 : draw.below(size);
    const uint32_t length = size == 0 ? 0 : 1 + draw.below(std::min(size - at, 64u));
    switch (draw.below(9)) {
      case 0:
        if (size > 0) text[at] = static_cast<char>(text[at] ^ (1 << draw.below(8)));
        break;
      case 1:
        if (size > 0) text[at] = static_cast<char>(draw.below(256));
        break;
      case 2:
        text.insert(at, 1, static_cast<char>(draw.below(256)));
        break;
      case 3:
        text.erase(at, length);
        break;
      case 4:
        text.resize(at);
        break;
      case 5:
        text.insert(size == 0 ? 0 : draw.below(size), text.substr(at, length));
        break;
      case 6:
        replace_number(text, at, draw);
        break;
      case 7:
        text.insert(at, kExtremes[draw.below(std::size(kExtremes))]);
        break;
      case 8:
        text.insert(at, std::string(1 + draw.below(300), "[{\"("[draw.below(4)]));
        break;
    }
  }

  /// The first run of digits from `at` on becomes an extreme value.
  static void replace_number(std::string& text, size_t at, PhiloxStream& draw) {
    const size_t begin = text.find_first_of("0123456789", at);
    if (begin == std::string::npos) return;
    const size_t end = std::min(text.size(), text.find_first_not_of("0123456789", begin));
    text.replace(begin, end - begin, kExtremes[draw.below(std::size(kExtremes))]);
  }

  uint64_t seed_;
};

}  // namespace tandem::test
