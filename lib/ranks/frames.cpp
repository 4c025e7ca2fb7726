#include "ranks/frames.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "io/json.h"
#include "io/quote.h"
#include "ranks/launch.h"

namespace tandem::ranks {
namespace {

using io::Json;

constexpr std::array<char, 3> kMagic = {'T', 'R', '1'};  // changes with the form of bodies
constexpr const char* kWhere = "a rank's message";

Json json_of(const Address& a) { return {{"host", a.host}, {"port", a.port}}; }

Address address_of(const Json& j) {
  if (!j.is_object()) throw input_error(kWhere, "expected an address, found {}", io::describe(j));
  return {io::get_string(j, "host", kWhere),
          static_cast<uint16_t>(io::get_int(j, "port", kWhere, 0, UINT16_MAX))};
}

/// What read(JSON of a body) gives; empty where that is not as it should be.
template <class F>
auto parsed(const std::string& body, F&& read) -> std::optional<decltype(read(Json{}))> {
  try {
    const Json j = io::parse_json(body, kWhere, {.max_depth = 8});
    if (j.is_object()) return read(j);
  } catch (const Error&) {
  }
  return std::nullopt;
}

std::string written(const Json& j) {
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// What others sent, for people: no control characters reach a terminal.
std::string printable(std::string_view text, size_t most) {
  std::string to;
  while (!text.empty() && to.size() < most) {
    const size_t n = std::max<size_t>(1, io::utf8_length(text));
    const auto first = static_cast<uint8_t>(text.front());
    // Of two bytes, U+0080 to U+009F are controls too.
    const bool control = first < 0x20 || first == 0x7F ||
                         (n == 2 && first == 0xC2 && static_cast<uint8_t>(text[1]) < 0xA0);
    to += control || io::utf8_length(text) == 0 ? std::string(" ") : std::string(text.substr(0, n));
    text.remove_prefix(n);
  }
  return to;
}

constexpr size_t kMostText = 2000;

std::string value_of(const Facts& facts, const std::string& name) {
  const auto found = facts.find(name);
  return found == facts.end() ? "not set" : printable(found->second, 80);
}

}  // namespace

std::string frame(FrameType type, const std::string& body) {
  std::string bytes(kHeaderBytes, '\0');
  std::ranges::copy(kMagic, bytes.begin());
  bytes[kMagic.size()] = static_cast<char>(type);
  const auto n = static_cast<uint32_t>(body.size());
  std::memcpy(bytes.data() + 4, &n, sizeof n);
  return bytes + body;
}

std::optional<FrameHeader> parse_header(std::span<const std::byte, kHeaderBytes> bytes) {
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) return std::nullopt;
  const auto type = static_cast<uint8_t>(bytes[kMagic.size()]);
  FrameHeader h{static_cast<FrameType>(type)};
  std::memcpy(&h.bytes, bytes.data() + 4, sizeof h.bytes);
  const bool known = type >= static_cast<uint8_t>(FrameType::hello) &&
                     type <= static_cast<uint8_t>(FrameType::done);
  if (!known || h.bytes > kMostBodyBytes) return std::nullopt;
  return h;
}

std::string write_hello(const Hello& h) {
  return written({{"rank", h.rank},
                  {"size", h.size},
                  {"process", h.process},
                  {"host", h.host},
                  {"ring", json_of(h.ring)},
                  {"facts", h.facts}});
}

std::optional<Hello> parse_hello(const std::string& body) {
  return parsed(body, [](const Json& j) {
    Hello h{.size = static_cast<int>(io::get_int(j, "size", kWhere, 1, kMostRanks)),
            .process = io::get_int(j, "process", kWhere),
            .host = printable(io::get_string(j, "host", kWhere), 256),
            .ring = address_of(io::get_object(j, "ring", kWhere))};
    h.rank = static_cast<int>(io::get_int(j, "rank", kWhere, 0, h.size - 1));
    for (const auto& [name, value] : io::get_object(j, "facts", kWhere).items())
      h.facts[name] = io::as_string(value, name, kWhere);
    return h;
  });
}

std::string write_welcome(const Welcome& w) {
  Json rings = Json::array();
  for (const Address& a : w.rings) rings.push_back(json_of(a));
  return written({{"run", w.run}, {"rings", rings}, {"hosts", w.hosts}});
}

std::optional<Welcome> parse_welcome(const std::string& body, int size) {
  return parsed(body, [&](const Json& j) {
    Welcome w{.run = io::get_string(j, "run", kWhere)};
    for (const Json& ring : io::get_array(j, "rings", kWhere)) w.rings.push_back(address_of(ring));
    for (const Json& host : io::get_array(j, "hosts", kWhere))
      w.hosts.push_back(io::as_string(host, "host", kWhere));
    if (std::ssize(w.rings) != size || std::ssize(w.hosts) != size)
      throw input_error(kWhere, "found {} ranks, expected {}", w.rings.size(), size);
    return w;
  });
}

std::string write_end(const Error& e) {
  return written({{"kind", static_cast<int>(e.kind())},
                  {"where", e.where()},
                  {"message", e.message()},
                  {"hint", e.hint_text()}});
}

std::optional<Error> parse_end(const std::string& body) {
  return parsed(body, [&](const Json& j) {
    const auto text = [&](const char* key) {
      return printable(io::get_string(j, key, kWhere), kMostText);
    };
    const auto kind = io::get_int(j, "kind", kWhere, 0, static_cast<int>(ErrorKind::internal));
    Error e(static_cast<ErrorKind>(kind), text("where"), text("message"));
    return text("hint").empty() ? std::move(e) : std::move(e).hint(text("hint"));
  });
}

std::string difference(const Facts& rank0, const Facts& other, int rank) {
  Facts names = rank0;
  names.insert(other.begin(), other.end());
  for (const auto& [name, ignored] : names) {
    const std::string here = value_of(rank0, name), there = value_of(other, name);
    const auto a = rank0.find(name), b = other.find(name);
    if (a == rank0.end() || b == other.end() || a->second != b->second)
      return fmt::format("{} is {} on rank {}, but {} on rank 0", printable(name, 80), there, rank,
                         here);
  }
  return {};
}

}  // namespace tandem::ranks
