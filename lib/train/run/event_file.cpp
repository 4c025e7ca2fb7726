#include "train/run/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "io/writer_lock.h"

namespace tandem::train {
namespace {

// Wire types of protocol buffers, and the fields of the messages Event, Summary, Summary.Value and
// SessionLog.
enum Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
constexpr uint8_t kWallTime = 1, kStepNumber = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
constexpr uint8_t kValue = 1;
constexpr uint8_t kTag = 1, kSimpleValue = 2;
constexpr uint8_t kStatus = 1;
constexpr uint64_t kSessionStart = 1;

template <class T>
std::string raw(T number) {
  std::string text(sizeof number, '\0');
  std::memcpy(text.data(), &number, sizeof number);
  return text;
}

std::string varint_of(uint64_t x) {
  std::string text;
  for (; x >= 0x80; x >>= 7) text += static_cast<char>(x | 0x80);
  return text + static_cast<char>(x);
}

std::string field(uint8_t number, Wire wire, const std::string& content) {
  return static_cast<char>(number << 3 | wire) + content;
}

std::string nested(uint8_t number, const std::string& content) {
  return field(number, kBytes, varint_of(content.size()) + content);
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string event(int64_t at, const std::string& content) {
  return field(kWallTime, kFixed64, raw(now())) +
         field(kStepNumber, kVarint, varint_of(static_cast<uint64_t>(at))) + content;
}

/// Rotated and shifted, as the format stores it.
std::string masked_crc(const std::string& content) {
  const uint32_t crc = crc32c(content);
  return raw((crc >> 15 | crc << 17) + 0xa282ead8);
}

}  // namespace

uint32_t crc32c(std::string_view text) {
  constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed
  uint32_t x = ~0u;
  for (const char c : text) {
    x ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) x = (x >> 1) ^ ((x & 1) != 0 ? kPolynomial : 0);
  }
  return ~x;
}

EventFile::EventFile(const std::filesystem::path& folder, int64_t first)
    : path_(folder / fmt::format("{}{:010}.{}.{}", kPrefix, static_cast<int64_t>(now()),
                                 io::host_name(), getpid())),
      out_(path_, std::ios::binary) {
  write(event(0, nested(kFileVersion, "brain.Event:2")));
  if (first > 0)
    write(event(first, nested(kSessionLog, field(kStatus, kVarint, varint_of(kSessionStart)))));
}

void EventFile::remove_all(const std::filesystem::path& folder) {
  std::error_code code;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code))
    if (entry.path().filename().string().starts_with(kPrefix)) files.push_back(entry.path());
  for (const std::filesystem::path& file : files) std::filesystem::remove(file, code);
}

void EventFile::add(int64_t at, std::span<const Scalar> scalars) {
  std::string values;
  for (const auto& [name, number] : scalars)
    values += nested(kValue, nested(kTag, name) +
                                 field(kSimpleValue, kFixed32, raw(static_cast<float>(number))));
  write(event(at, nested(kSummary, values)));
}

void EventFile::write(const std::string& event) {
  const std::string length = raw(static_cast<uint64_t>(event.size()));
  out_ << length << masked_crc(length) << event << masked_crc(event);
  out_.flush();
  if (!out_) throw input_error(path_.string(), "cannot be written").hint("is the disk full?");
}

}  // namespace tandem::train
