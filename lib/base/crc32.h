#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem {

/// CRC-32 (the polynomial of zlib, PNG and Ethernet) of the bytes, which may follow others whose
/// CRC is `before`. Finds every change of up to 32 neighbouring bits, and others with a chance of
/// 2^-32 to miss one; no protection against intent.
uint32_t crc32(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace tandem
