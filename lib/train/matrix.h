#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace tandem::train {

/// The matrices of a layer that training names.
enum class Matrix : uint8_t { q, k, v, o, gate, up, down };
inline constexpr int kMatrices = 7;
constexpr std::array<std::string_view, kMatrices> enum_names(Matrix) {
  return {"q", "k", "v", "o", "gate", "up", "down"};
}

/// One number for each matrix.
template <class T>
using PerMatrix = std::array<T, kMatrices>;

}  // namespace tandem::train
