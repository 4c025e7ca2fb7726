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

const std::vector<const char*>& small_models() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> found;
    for (const auto& entry :
         std::filesystem::directory_iterator(source_dir() / "tests/data/models"))
      found.push_back(entry.path().filename().string());
    std::ranges::sort(found);
    return found;
  }();
  static const std::vector<const char*> all = [] {
    std::vector<const char*> c_names;
    for (const std::string& name : names) c_names.push_back(name.c_str());
    return c_names;
  }();
  return all;
}

std::filesystem::path build_dir() { return TANDEM_BINARY_DIR; }

}  // namespace tandem::test
