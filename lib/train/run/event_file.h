#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace tandem::train {

/// An event file of TensorBoard: scalars by step.
class EventFile {
 public:
  static constexpr const char* kPrefix = "events.out.tfevents.";
  using Scalar = std::pair<std::string, double>;  // tag, value

  /// A new file in the folder, named after the time, the host and the process.
  /// first    step of the first events; TensorBoard drops those from it on that earlier files have
  /// errors   kind input: cannot be written
  EventFile(const std::filesystem::path& folder, int64_t first);

  /// Removes those of a folder.
  static void remove_all(const std::filesystem::path& folder);
  /// errors   kind input: cannot be written
  void add(int64_t step, std::span<const Scalar> scalars);

 private:
  void write(const std::string& event);

  std::filesystem::path path_;
  std::ofstream out_;
};

/// CRC-32C (the polynomial of Castagnoli) of the bytes.
uint32_t crc32c(std::string_view bytes);

}  // namespace tandem::train
