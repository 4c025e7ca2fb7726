// The one file of the tests that knows where it was compiled: objects of the others are the same in
// every checkout, so that a compiler cache serves them all.
#include "source_dir.h"

#include <cstdlib>

namespace tandem::test {

std::filesystem::path source_dir() {
  const char* elsewhere = std::getenv("TANDEM_SOURCE_DIR");
  return elsewhere != nullptr ? elsewhere : TANDEM_SOURCE_DIR;
}

std::filesystem::path build_dir() { return TANDEM_BINARY_DIR; }

}  // namespace tandem::test
