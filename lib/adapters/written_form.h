#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "adapters/opened.h"
#include "io/table.h"
#include "model/adapters/each_piece.h"

namespace tandem::adapters {

/// What the tool says of a folder that it has written.
struct WrittenForm {
  std::string text;  // lines, the checks among them
  nlohmann::ordered_json json;
};

/// Writes one adapter of slices: the features that any of the list changes, with the values that
/// they have when all are merged.
/// errors   kind input: an adapter of factors is among them, nothing is changed, cannot write; kind
///          numeric: a weight too large, or the result is not as it should be (if it is verified)
WrittenForm write_slices_form(const std::filesystem::path& folder, const OpenedAdapters& opened,
                              bool verify, const model::WeightProgress& progress);

/// Writes a folder of PEFT: exact factors of the list's change, or the best of a rank.
/// errors   kind input: DoRA is among them, nothing is changed, cannot write; kind numeric: the
///          rank loses more than adapter.max_error, or the result is not as it should be
///          (if it is verified)
WrittenForm write_lora_form(const std::filesystem::path& folder, const OpenedAdapters& opened,
                            const AdapterSettings& settings, const model::WeightProgress& progress);

/// A table of ranks: what the best factors of each lose of the list's change, and their size.
/// errors   kind input: as write_lora_form
WrittenForm describe_ranks(const OpenedAdapters& opened, std::span<const int> ranks,
                           io::TableFormat format, const model::WeightProgress& progress);

}  // namespace tandem::adapters
