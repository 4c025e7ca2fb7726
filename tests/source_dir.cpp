// The one file of the tests that knows where it was compiled: objects of the others are the same in
// every checkout, so that a compiler cache serves them all.
#include "source_dir.h"

#include <algorithm>
#include <cstdlib>

namespace tandem::test {

std::filesystem::path source_dir() {
  const char* elsewhere = std::getenv("TANDEM_SOURCE_DIR");
  return elsewhere != nullptr ? elsewhere : TANDEM_SOURCE_DIR;
}

std::vector<std::string> small_models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() / "tests/data/models"))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

std::filesystem::path build_dir() { return TANDEM_BINARY_DIR; }

}  // namespace tandem::test
