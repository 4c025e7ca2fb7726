#pragma once
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "gguf_bytes.h"
#include "safetensors_text.h"

namespace tandem::test {

/// Golden values of quantized folders; tests/data/golden/README.md lists them.
inline const io::Json& golden_folders() {
  static const io::Json all = io::parse_json(
      io::read_file(source_dir() / "tests/data/golden/folders.json"), "folders.json");
  return all;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// A model folder that a test writes; tensors may have any type.
struct QuantizedFolder {
  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    std::string bytes;
  };
  io::Json config;
  std::map<std::string, Tensor> tensors = {};

  void write(const std::filesystem::path& folder) const {
    io::Json header = io::Json::object();
    std::string data;
    for (const auto& [name, t] : tensors) {
      const size_t begin = data.size();
      data += t.bytes;
      header[name] = {
          {"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {begin, data.size()}}};
    }
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "model.safetensors", std::ios::binary)
        << safetensors_image(header.dump(), data);
    std::ofstream(folder / "config.json") << config.dump();
  }
};

}  // namespace tandem::test
