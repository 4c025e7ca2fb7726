#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "base/weight_format.h"
#include "model/weights/weight_source.h"

namespace tandem::train {

/// Words of `pack-quantized` tensors with the zeros of rows of codes: 8 rows a word, lowest first.
/// shapes   zeros [rows, groups], 0 to 15; result [ceil(rows / 8), groups]
std::vector<uint32_t> pack_zeros(std::span<const uint8_t> zeros, int64_t rows, int64_t groups);

/// Turns rows of codes into the parts of compressed-tensors' formats. The words of int4 and fp8
/// codes are their bytes as they are, those of int8 codes have 128 added.
/// shapes   rows [n, row_bytes(format, in)]; words [n, in * bits / 8] bytes; scales [n, groups] in
///          the format's type; zeros [n, groups], empty without zeros
void split_codes(const WeightFormat& format, int64_t in, int64_t n, const std::byte* rows,
                 std::byte* words, std::byte* scales, std::vector<uint8_t>& zeros);

/// Writes a model folder with matrices in compressed-tensors' `pack-quantized` format, and fp8
/// codes in its `float-quantized` format, which vLLM and transformers read. Only linear layers can
/// be codes: not the embedding. Norms, biases, numbers and other files are written as export_model
/// writes them.
/// source   has native codes where format_of says codes
/// progress gets the share of the bytes that are written; false ends the work
/// errors   kind input: cannot create, no space left, as the source; kind interrupted
/// cost     scales of all matrices stay in memory until they are written
void export_packed(const std::filesystem::path& folder, const std::filesystem::path& base,
                   const model::ModelConfig& config, const model::WeightSource& source,
                   const std::function<WeightFormat(model::MatrixId)>& format_of,
                   const std::function<bool(double share)>& progress = {});

}  // namespace tandem::train
