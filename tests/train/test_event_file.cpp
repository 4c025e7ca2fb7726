#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "error_text.h"
#include "io/file.h"
#include "temporary_folder.h"
#include "train/run/event_file.h"

using namespace tandem;
using test::error_text;
using test::TemporaryFolder;
using train::EventFile;

namespace {

template <class T>
T take(std::string_view& from) {
  REQUIRE(from.size() >= sizeof(T));
  T value;
  std::memcpy(&value, from.data(), sizeof value);
  from.remove_prefix(sizeof value);
  return value;
}

uint64_t take_varint(std::string_view& from) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<uint8_t>(from);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
}

/// The fields of a message by their numbers: bytes as they are, numbers as raw bytes or a varint's
/// digits.
std::multimap<int, std::string> fields_of(std::string_view message) {
  std::multimap<int, std::string> fields;
  while (!message.empty()) {
    const uint64_t key = take_varint(message);
    std::string content;
    if (key % 8 == 0) {
      content = std::to_string(take_varint(message));
    } else {
      const size_t n = key % 8 == 2 ? take_varint(message) : key % 8 == 1 ? 8 : 4;
      REQUIRE(message.size() >= n);
      content = message.substr(0, n);
      message.remove_prefix(n);
    }
    fields.emplace(static_cast<int>(key / 8), content);
  }
  return fields;
}

uint32_t masked(std::string_view bytes) {
  const uint32_t crc = train::crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

struct Event {
  int64_t step = 0;
  std::string version;
  bool starts = false;
  std::map<std::string, float> scalars;
};

std::vector<Event> events_of(const std::string& file) {
  std::vector<Event> events;
  for (std::string_view rest = file; !rest.empty();) {
    const std::string_view length = rest.substr(0, 8);
    const auto n = take<uint64_t>(rest);
    CHECK(take<uint32_t>(rest) == masked(length));
    REQUIRE(rest.size() >= n + 4);
    const std::string_view bytes = rest.substr(0, n);
    rest.remove_prefix(n);
    CHECK(take<uint32_t>(rest) == masked(bytes));
    auto fields = fields_of(bytes);
    std::string_view time = fields.find(1)->second;
    CHECK(take<double>(time) > 1.7e9);
    Event event;
    event.step = std::stoll(fields.find(2)->second);
    if (fields.contains(3)) event.version = fields.find(3)->second;
    if (fields.contains(7)) event.starts = fields_of(fields.find(7)->second).find(1)->second == "1";
    if (fields.contains(5)) {
      const auto values = fields_of(fields.find(5)->second);
      for (const auto& [number, text] : values) {
        CHECK(number == 1);
        const auto value = fields_of(text);
        std::string_view raw = value.find(2)->second;
        event.scalars[value.find(1)->second] = take<float>(raw);
      }
    }
    events.push_back(event);
  }
  return events;
}

}  // namespace

TEST_SUITE("tools/event_file") {
  TEST_CASE("the checksum is that of Castagnoli") {
    CHECK(train::crc32c("123456789") == 0xe3069283);
    CHECK(train::crc32c("") == 0);
  }

  TEST_CASE("scalars come back by step and tag, with checksums, and a start drops later steps") {
    const TemporaryFolder folder;
    EventFile file(folder.path(), 301);
    const std::vector<EventFile::Scalar> first = {{"train/loss", 4.5}, {"train/lr", 1e-3}};
    file.add(301, first);
    const std::vector<EventFile::Scalar> second = {{"validation/val_loss", -2}};
    file.add(100000, second);
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      files.push_back(entry.path());
    REQUIRE(files.size() == 1);
    CHECK(files[0].filename().string().starts_with("events.out.tfevents."));
    const std::vector<Event> events = events_of(io::read_file(files[0]));
    REQUIRE(events.size() == 4);
    CHECK(events[0].version == "brain.Event:2");
    CHECK(events[1].starts);
    CHECK(events[1].step == 301);
    CHECK(events[2].step == 301);
    CHECK(events[2].scalars ==
          std::map<std::string, float>{{"train/loss", 4.5f}, {"train/lr", 1e-3f}});
    CHECK(events[3].step == 100000);
    CHECK(events[3].scalars == std::map<std::string, float>{{"validation/val_loss", -2.0f}});
    EventFile::remove_all(folder.path());
    CHECK(std::filesystem::is_empty(folder.path()));
  }

  TEST_CASE("a folder that cannot be written to is named") {
    CHECK(error_text([] { EventFile("/nowhere/at/all", 1); }).find("cannot be written") !=
          std::string::npos);
  }
}
