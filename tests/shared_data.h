#pragma once
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "source_dir.h"
#include "temporary_folder.h"

namespace tandem::test {

/// A file that may not be part of the repository, of TANDEM_SHARED_DIR or ../shared; where it is
/// missing, the test says that it was skipped.
inline std::optional<std::filesystem::path> shared_file(const std::string& below) {
  const char* set = std::getenv("TANDEM_SHARED_DIR");
  const auto path =
      (set != nullptr ? std::filesystem::path(set) : source_dir() / "../shared") / below;
  if (std::filesystem::exists(path)) return path;
  MESSAGE("skipped: " << path.string() << " is absent");
  return std::nullopt;
}

/// data/NAME.tar.xz, unpacked once a run; nothing where it is absent.
inline std::optional<std::filesystem::path> unpacked(const std::string& name) {
  const auto archive = shared_file("data/" + name + ".tar.xz");
  if (!archive) return std::nullopt;
  static std::map<std::string, std::unique_ptr<TemporaryFolder>> folders;
  auto& folder = folders[name];
  if (!folder) {
    folder = std::make_unique<TemporaryFolder>();
    REQUIRE(
        std::system(fmt::format("tar xJf '{}' -C '{}'", archive->string(), folder->path().string())
                        .c_str()) == 0);
  }
  return *folder / name;
}

}  // namespace tandem::test
