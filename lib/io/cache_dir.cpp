#include "io/cache_dir.h"

#include <cstdlib>
#include <mutex>

#include "io/atomic_file.h"

namespace tandem::io {
namespace {

std::mutex reason_mutex;
std::string reason;  // of the first that was not kept

bool not_kept(const std::string& why) {
  const std::scoped_lock lock(reason_mutex);
  if (reason.empty()) reason = why;
  return false;
}

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
  if (file.empty())
    return not_kept("none of TANDEM_CACHE_DIR, XDG_CACHE_HOME and HOME names a folder");
  try {
    std::filesystem::create_directories(file.parent_path());
    AtomicFile out(file);
    out.write(text);
    out.commit();
    return true;
  } catch (const std::filesystem::filesystem_error& e) {
    return not_kept(e.path1().string() + ": " + e.code().message());
  } catch (const std::exception& e) {
    return not_kept(e.what());  // a read-only home, for example
  }
}

std::string why_not_kept() {
  const std::scoped_lock lock(reason_mutex);
  return reason;
}

}  // namespace tandem::io
