#include "speculate/tree/acceptance.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  return fuzz::run(ErrorKind::input, [&] {
    const speculate::AcceptanceVector v =
        speculate::parse_acceptance(fuzz::as_text(data, size), "fuzz");
    for (const auto& row : v.rows)
      if (row.empty()) throw std::logic_error("a row without entries");
  });
}
