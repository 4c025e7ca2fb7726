#include "io/claimed_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace tandem::io {
namespace {

/// A regular file, and a name that led to it.
struct NamedFile {
  dev_t device;
  ino_t inode;
  std::string name;

  bool is(const NamedFile& other) const { return device == other.device && inode == other.inode; }
};

std::optional<NamedFile> named_file(const struct stat& info, std::string name) {
  if (!S_ISREG(info.st_mode)) return std::nullopt;
  return NamedFile{info.st_dev, info.st_ino, std::move(name)};
}

std::optional<NamedFile> file_at(const std::string& name) {
  struct stat info {};
  return ::stat(name.c_str(), &info) == 0 ? named_file(info, name) : std::nullopt;
}

std::mutex claims_mutex;
std::vector<NamedFile> inputs, outputs;

/// The one among `all` that is `file`. Its name must still lead there: the number of a file that
/// has been replaced is given to another.
const NamedFile* find_same(const std::vector<NamedFile>& all, const NamedFile& file) {
  const auto same = std::ranges::find_if(all, [&](const NamedFile& other) {
    if (!other.is(file)) return false;
    const auto now = file_at(other.name);
    return now && now->is(file);
  });
  return same == all.end() ? nullptr : &*same;
}

void add(std::vector<NamedFile>& all, NamedFile file) {
  if (find_same(all, file) == nullptr) all.push_back(std::move(file));
}

[[noreturn]] void refuse(const std::string& output, const std::string& input) {
  const std::string alias = input == output ? "" : fmt::format(" as {}", input);
  throw usage_error(output, "this run would write the file that it reads{}", alias)
      .hint("choose another output name");
}

}  // namespace

void claim_output(const std::filesystem::path& path) {
  auto file = file_at(path.string());
  if (!file) return;
  const std::scoped_lock lock(claims_mutex);
  if (const NamedFile* input = find_same(inputs, *file)) refuse(file->name, input->name);
  add(outputs, *std::move(file));
}

void note_input(const std::filesystem::path& path, int fd) {
  struct stat info {};
  auto file = ::fstat(fd, &info) == 0 ? named_file(info, path.string()) : std::nullopt;
  if (!file) return;
  const std::scoped_lock lock(claims_mutex);
  if (const NamedFile* output = find_same(outputs, *file)) refuse(output->name, file->name);
  add(inputs, *std::move(file));
}

}  // namespace tandem::io
