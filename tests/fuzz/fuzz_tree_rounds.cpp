#include "speculate/tree/tree_rounds.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  return fuzz::run(ErrorKind::input, [&] {
    speculate::parse_tree_rounds(
        io::Safetensors::parse(std::as_bytes(std::span(data, size)), "fuzz"));
  });
}
