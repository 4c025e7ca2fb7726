#include "ranks/frames.h"
#include "ranks/launch.h"
#include "target.h"

// What a process receives at the address where ranks meet, from whom it does not know.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  return fuzz::run(ErrorKind::input, [&] {
    const std::string text(fuzz::as_text(data, size));
    if (size >= ranks::kHeaderBytes) {
      const auto bytes = std::as_bytes(std::span(text)).first<ranks::kHeaderBytes>();
      if (const auto header = ranks::parse_header(bytes);
          header && header->bytes > ranks::kMostBodyBytes)
        throw std::logic_error("a body without bounds");
    }
    const auto hello = ranks::parse_hello(text);
    const auto welcome = ranks::parse_welcome(text, 2);
    const auto end = ranks::parse_end(text);
    if (!hello && !welcome && !end) throw input_error("fuzz", "no message");
    if (hello) {
      if (hello->rank < 0 || hello->rank >= hello->size || hello->size > ranks::kMostRanks)
        throw std::logic_error("a rank out of range");
      fuzz::check_message(hello->host);
      fuzz::check_message(ranks::difference({{"a", "1"}}, hello->facts, hello->rank));
      const auto again = ranks::parse_hello(ranks::write_hello(*hello));
      if (!again || again->facts != hello->facts || again->ring.text() != hello->ring.text())
        throw std::logic_error("a written hello reads differently");
    }
    if (welcome && (welcome->rings.size() != 2 || welcome->hosts.size() != 2))
      throw std::logic_error("a welcome of another size");
    if (end) {
      fuzz::check_message(end->what());
      fuzz::check_message(end->hint_text());
    }
  });
}
