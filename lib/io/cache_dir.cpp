#include "io/cache_dir.h"

#include <atomic>
#include <cstdlib>

#include "io/atomic_file.h"

namespace tandem::io {
namespace {

std::atomic<bool> lacked_dir = false;

/// A variable's value; none where it is unset or empty.
std::optional<std::filesystem::path> path_in(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::filesystem::path> default_cache_dir() {
  if (const auto dir = path_in("TANDEM_CACHE_DIR")) return dir;
  // The XDG base directory specification ignores relative paths.
  if (const auto caches = path_in("XDG_CACHE_HOME"); caches && caches->is_absolute())
    return *caches / "tandem";
  if (const auto home = path_in("HOME")) return *home / ".cache" / "tandem";
  return std::nullopt;
}

std::filesystem::path cache_file(std::string_view name) {
  const auto dir = default_cache_dir();
  return dir ? *dir / name : std::filesystem::path();
}

bool keep(const std::filesystem::path& file, std::string_view text) {
  if (file.empty()) {
    lacked_dir = true;
    return false;
  }
  try {
    std::filesystem::create_directories(file.parent_path());
    AtomicFile out(file);
    out.write(text);
    out.commit();
    return true;
  } catch (const std::exception&) {
    return false;  // a read-only home, for example
  }
}

bool lacked_cache_dir() { return lacked_dir; }

}  // namespace tandem::io
