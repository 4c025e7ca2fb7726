#pragma once
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "sentencepiece_bytes.h"
#include "temporary_folder.h"
#include "text/tokenizer.h"

namespace tandem::test {

using nlohmann::json;

/// Path of a file of the checkout.
std::string source_path(const std::string& below);

/// tokenizer.json of a byte-level BPE: the 256 bytes have the ids 0..255 in byte order, the result
/// of merge i has the id 256 + i, and added tokens follow. Pieces in plain bytes.
json byte_level_json(const std::vector<std::pair<std::string, std::string>>& merges,
                     const std::vector<json>& added = {});

/// An added token with id 256 + n_merges + index, as byte_level_json numbers them.
json added_token(const std::string& content, bool special, const json& flags = json::object());

std::unique_ptr<text::Tokenizer> from_json(const json& file);

/// What `action` throws; the test fails if it throws nothing or another type.
Error error_of(const std::function<void()>& action);

}  // namespace tandem::test
