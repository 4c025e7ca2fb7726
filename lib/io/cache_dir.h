#pragma once
#include <filesystem>
#include <optional>
#include <string_view>

namespace tandem::io {

/// Folder for measurements that are taken once on a machine and kept: TANDEM_CACHE_DIR, else
/// tandem/ in XDG_CACHE_HOME, else ~/.cache/tandem. None where no variable names one: in a folder
/// that every user can write, such as /tmp, any user could plant measurements.
std::optional<std::filesystem::path> default_cache_dir();

/// A file in that folder; empty where there is no folder.
std::filesystem::path cache_file(std::string_view name);

/// Writes a file of a cache folder as a whole, and the folder if it is missing. Returns whether it
/// is there now: if not, that costs only measuring again.
/// file     empty: there is no folder, which lacked_cache_dir() then reports
bool keep(const std::filesystem::path& file, std::string_view text);

/// Whether this process had something to keep, and no folder to keep it in.
bool lacked_cache_dir();

}  // namespace tandem::io
