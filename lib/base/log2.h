#pragma once

namespace tandem {

// For exponentials and logarithms in base 2. No STL: included by sources compiled with per-ISA
// flags and by CUDA sources.
inline constexpr double kLn2Double = 0.69314718055994531;
inline constexpr float kLn2 = 0.69314718055994531f;
inline constexpr float kLog2E = 1.44269504088896341f;

}  // namespace tandem
