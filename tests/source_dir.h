#pragma once
#include <cstdlib>
#include <filesystem>

namespace tandem::test {

/// The checkout whose data tests read: where this was compiled, or TANDEM_SOURCE_DIR of the
/// environment on another machine.
inline std::filesystem::path source_dir() {
  const char* elsewhere = std::getenv("TANDEM_SOURCE_DIR");
  return elsewhere != nullptr ? elsewhere : TANDEM_SOURCE_DIR;
}

}  // namespace tandem::test
