#pragma once
#include <filesystem>
#include <fstream>
#include <string>

namespace tandem::test {

/// Bytes of a mapped file that are resident in this process, from its page tables
/// (/proc/self/smaps): of all its mappings, exact to the page.
inline size_t resident_bytes_of(const std::filesystem::path& path) {
  const std::string name = std::filesystem::canonical(path).string();
  std::ifstream smaps("/proc/self/smaps");
  size_t kib = 0;
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    const std::string field = line.substr(0, line.find(' '));
    if (!field.ends_with(':')) inside = line.ends_with(name);  // the head of a mapping
    if (inside && field == "Rss:") kib += std::stoul(line.substr(field.size()));
  }
  return kib * 1024;
}

}  // namespace tandem::test
