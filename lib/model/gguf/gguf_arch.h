#pragma once
#include <span>
#include <string>
#include <string_view>

#include "model/families/family.h"

namespace tandem::model {

/// One architecture of GGUF files, by key `general.architecture`.
struct GgufArch {
  std::string_view name;
  std::string_view architecture;  // the name of the family
  bool pairs = false;             // rows of q and k turn as neighbours, hence come in another order
  bool fused = false;             // q, k and v are one tensor, and so are gate and up
};

std::span<const GgufArch> gguf_archs();
const GgufArch* find_gguf_arch(std::string_view name);

/// The row of a GGUF file that holds row `row` of Hugging Face's q or k, where heads turn in pairs.
int64_t paired_row(int64_t row, int head_dim);

/// Returns where a GGUF file stores a matrix.
StoredPart gguf_part(MatrixId id, const GgufArch& arch, const ModelConfig& config);

}  // namespace tandem::model
