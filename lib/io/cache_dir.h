#pragma once
#include <filesystem>

namespace tandem::io {

/// Folder of what is measured once on a machine and kept: TANDEM_CACHE_DIR, else ~/.cache/tandem.
std::filesystem::path default_cache_dir();

}  // namespace tandem::io
