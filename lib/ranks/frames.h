#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "ranks/socket.h"

namespace tandem::ranks {

/// What ranks say to each other, numbers apart: a header of eight bytes and a body of JSON.
enum class FrameType : uint8_t {
  hello = 1,  // of a rank to rank 0: who it is, and what must be equal
  welcome,    // of rank 0 to all, once all are there
  beat,       // I am alive
  interrupt,  // to rank 0: a signal has asked for an end here
  end,        // I, or another, cannot go on, and why
  done        // all my work is done
};

struct FrameHeader {
  FrameType type = FrameType::beat;
  uint32_t bytes = 0;  // of the body
};
inline constexpr size_t kHeaderBytes = 8;
/// Bodies are no longer: a recipe is some thousand bytes.
inline constexpr uint32_t kMostBodyBytes = uint32_t{1} << 20;

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}
std::string frame(FrameType type, const std::string& body = {});
/// Empty where these are not a header of ours, or its body is too long.
std::optional<FrameHeader> parse_header(std::span<const std::byte, kHeaderBytes> bytes);

/// What must be the same on all ranks, by name.
using Facts = std::map<std::string, std::string>;

struct Hello {
  int rank = 0, size = 0;
  int64_t process = 0;
  std::string host;  // its name
  Address ring;      // where the rank before it finds it
  Facts facts = {};
};
std::string write_hello(const Hello& hello);
std::optional<Hello> parse_hello(const std::string& body);

struct Welcome {
  std::string run;                  // a name that no other run has
  std::vector<Address> rings = {};  // of all ranks
  std::vector<std::string> hosts = {};
};
std::string write_welcome(const Welcome& welcome);
std::optional<Welcome> parse_welcome(const std::string& body, int size);

/// An error on its way to other ranks.
std::string write_end(const Error& error);
std::optional<Error> parse_end(const std::string& body);

/// How the facts of a rank differ from those of rank 0: the first name, and both values; empty
/// where they do not.
std::string difference(const Facts& rank0, const Facts& other, int rank);

}  // namespace tandem::ranks
