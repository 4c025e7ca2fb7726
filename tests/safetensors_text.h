#pragma once
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace tandem::test {

/// A safetensors file image from its header text and data, with a true header length.
inline std::string safetensors_image(std::string_view header, std::string_view data) {
  const uint64_t n = header.size();
  std::string image(sizeof n, '\0');
  std::memcpy(image.data(), &n, sizeof n);
  return image.append(header).append(data);
}

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace tandem::test
