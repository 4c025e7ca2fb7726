#pragma once

namespace tandem {

/// Tokens of a page of keys and values. 64 keys are four AMX tiles, and one machine word of
/// visibility bits. No STL: included by sources compiled with per-ISA flags.
inline constexpr int kPageTokens = 64;

}  // namespace tandem
