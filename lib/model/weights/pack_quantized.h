#pragma once
#include <string_view>

// The format `pack-quantized` of compressed-tensors, which folders are read and written in. Words
// of 32 bits hold codes lowest first: those of neighbouring inputs, and of zeros those of
// neighbouring outputs. Codes of 8 bits are stored with 128 added.
namespace tandem::model::pack_quantized {

inline constexpr std::string_view kName = "pack-quantized", kMethod = "compressed-tensors";
/// Ends of the names of a module's tensors.
inline constexpr std::string_view kCodes = ".weight_packed", kScales = ".weight_scale",
                                  kZeros = ".weight_zero_point", kShape = ".weight_shape";

/// Codes of a word.
constexpr int codes_of_word(int bits) { return 32 / bits; }

}  // namespace tandem::model::pack_quantized
