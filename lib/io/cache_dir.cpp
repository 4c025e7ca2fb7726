#include "io/cache_dir.h"

#include <cstdlib>

namespace tandem::io {

std::filesystem::path default_cache_dir() {
  if (const char* dir = std::getenv("TANDEM_CACHE_DIR"); dir && *dir) return dir;
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home && *home ? home : "/tmp") / ".cache" / "tandem";
}

}  // namespace tandem::io
