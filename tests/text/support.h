#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "sentencepiece_bytes.h"
#include "text/tokenizer.h"

namespace tandem::text::test {

using nlohmann::json;

/// Path of a file of the checkout.
std::string source_path(const std::string& below);

/// A folder that goes when its owner does.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, std::string_view bytes) const;

 private:
  std::filesystem::path path_;
};

/// tokenizer.json of a byte-level BPE: the 256 bytes have the ids 0..255 in byte order, the result
/// of merge i has the id 256 + i, and added tokens follow. Pieces in plain bytes.
json byte_level_json(const std::vector<std::pair<std::string, std::string>>& merges,
                     const std::vector<json>& added = {});

/// An added token with id 256 + n_merges + index, as byte_level_json numbers them.
json added_token(const std::string& content, bool special, const json& flags = json::object());

std::unique_ptr<Tokenizer> from_json(const json& file);

/// What `action` throws; the test fails if it throws nothing or another type.
Error error_of(const std::function<void()>& action);

}  // namespace tandem::text::test
