#pragma once
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "io/json.h"

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

/// A safetensors file with one tensor more, or another in place of one.
inline std::string with_tensor(const std::string& file, const std::string& name,
                               const std::string& dtype, const std::string& shape, size_t bytes) {
  uint64_t n = 0;
  std::memcpy(&n, file.data(), sizeof n);
  io::Json header = io::parse_json(std::string_view(file).substr(sizeof n, n), "header");
  header.erase(name);
  std::string data;
  for (auto& [key, entry] : header.items()) {
    if (key == "__metadata__") continue;
    io::Json& offsets = entry["data_offsets"];
    const size_t begin = offsets[0], end = offsets[1], at = data.size();
    data += file.substr(sizeof n + n + begin, end - begin);
    offsets = {at, data.size()};
  }
  header[name] = {{"dtype", dtype},
                  {"shape", io::parse_json(shape, "shape")},
                  {"data_offsets", {data.size(), data.size() + bytes}}};
  return safetensors_image(header.dump(), data + std::string(bytes, '\1'));
}

}  // namespace tandem::test
