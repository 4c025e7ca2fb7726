#include "ffn/thresholds.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  return fuzz::run(ErrorKind::input, [&] {
    const ffn::Thresholds t = ffn::parse_thresholds(fuzz::as_text(data, size), "fuzz");
    for (const float value : t.values)
      if (!(value >= 0)) throw std::logic_error("a threshold that is negative, or no number");
    const ffn::Thresholds again = ffn::parse_thresholds(ffn::thresholds_text(t), "fuzz");
    if (again.values != t.values) throw std::logic_error("written thresholds read differently");
  });
}
