#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::io {

/// Folder for measurements that are taken once on a machine and kept: TANDEM_CACHE_DIR, else
/// tandem/ in XDG_CACHE_HOME, else ~/.cache/tandem. None where no variable names one: in a folder
/// that every user can write, such as /tmp, any user could plant measurements.
std::optional<std::filesystem::path> default_cache_dir();

/// A file in that folder; empty where there is no folder.
std::filesystem::path cache_file(std::string_view name);

/// Writes a file of a cache folder as a whole, and the folder if it is missing. Returns whether it
/// is there now: if not, that costs only measuring again, and why_not_kept() says why.
/// file     empty: there is no folder
bool keep(const std::filesystem::path& file, std::string_view text);

/// What stopped the first thing from being kept that this process could not keep; empty if nothing.
std::string why_not_kept();

}  // namespace tandem::io
