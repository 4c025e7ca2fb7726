#pragma once
// What every fuzz target shares. A target is one source file that defines LLVMFuzzerTestOneInput:
// libFuzzer links it as it is; the mutation driver of the normal tests links them all, each renamed
// by the build to fuzz_<target>.
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "base/error.h"
#include "io/quote.h"

namespace tandem::fuzz {

inline std::string_view as_text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// A message is one line on a terminal: valid UTF-8, no control characters, no copy of the whole
/// input.
inline void check_message(std::string_view text) {
  constexpr size_t kLongest = 8192;
  if (text.size() > kLongest) throw std::logic_error("an error message of unbounded length");
  while (!text.empty()) {
    const size_t n = io::utf8_length(text);
    const auto first = static_cast<uint8_t>(text.front());
    // U+0080..U+009F, two bytes in UTF-8, are control characters that terminals obey.
    const bool c1_control = n == 2 && first == 0xC2 && static_cast<uint8_t>(text[1]) < 0xA0;
    if (n == 0 || first == 0x7F || first < 0x20 || c1_control)
      throw std::logic_error("an error message that is not printable text");
    text.remove_prefix(n);
  }
}

/// Inputs that a reader accepted; the driver checks that seeds are among them.
inline size_t n_accepted = 0;

/// Runs a reader that may return or throw an Error of this kind; anything else is a finding, and
/// leaves this function as an exception.
template <class Reader>
int run(ErrorKind kind, const Reader& read) {
  try {
    read();
    ++n_accepted;
  } catch (const Error& e) {
    if (e.kind() != kind) throw;
    check_message(e.what());
    check_message(e.hint_text());
  }
  return 0;
}

}  // namespace tandem::fuzz
