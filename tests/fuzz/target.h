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

/// A message goes to a terminal: no control bytes, valid UTF-8, no copy of the whole input.
inline void check_message(std::string_view text) {
  constexpr size_t kLongest = 8192;
  if (text.size() > kLongest) throw std::logic_error("an error message of unbounded length");
  while (!text.empty()) {
    const size_t n = io::utf8_length(text);
    const auto first = static_cast<uint8_t>(text.front());
    if (n == 0 || first == 0x7F || (first < 0x20 && first != '\n'))
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
