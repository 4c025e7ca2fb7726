#include "speculate/tree/timing.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  return fuzz::run(ErrorKind::input, [&] {
    const speculate::TimingTable table = speculate::parse_timing(fuzz::as_text(data, size), "fuzz");
    for (const speculate::StepCost& bucket : table.buckets)
      for (const int n : {1, 3, 1 << 20})
        if (!(bucket.target.at(n) >= bucket.target.smallest()))
          throw std::logic_error("a time that is below the smallest one, or no number");
  });
}
