#include <doctest/doctest.h>

#include "error_text.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "mutator.h"
#include "safetensors_text.h"

using namespace tandem;

namespace {

constexpr uint64_t kSeed = 20240611;

/// Reads every mutant; the reader may accept it or throw an Error of kind input, nothing else.
template <class Reader>
void check_reader(std::string_view valid, const Reader& read) {
  const test::Mutator mutator(kSeed);
  uint32_t n_accepted = 0;
  const uint32_t n_runs = test::fuzz_runs(20000);
  REQUIRE_NOTHROW(read(std::string(valid)));
  for (uint32_t run = 0; run < n_runs; ++run) {
    const std::string mutant = mutator.mutate(valid, run);
    try {
      read(mutant);
      ++n_accepted;
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::input) FAIL("run ", run, ": ", e.what());
    } catch (const std::exception& e) {
      FAIL("run ", run, ": ", e.what());
    }
  }
  CHECK(n_accepted < n_runs / 2);  // most damage is noticed
}

}  // namespace

TEST_SUITE("io/mutation") {
  TEST_CASE("damaged safetensors files never escape the checks") {
    const std::string header =
        R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
        R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},)"
        R"("c":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[32,40]}})";
    check_reader(test::safetensors_image(header, std::string(40, 'd')),
                 [](const std::string& image) {
                   const auto file = io::Safetensors::parse(test::as_bytes(image), "m");
                   size_t sum = 0;
                   for (const io::TensorEntry& entry : file.entries()) {
                     if (entry.dtype != "F32" && entry.dtype != "BF16") continue;
                     for (const std::byte b : file.tensor(entry).bytes)
                       sum += static_cast<size_t>(b);
                   }
                   CHECK(sum <= image.size() * 255);
                 });
  }

  TEST_CASE("damaged JSON") {
    check_reader(
        R"({"a": [1, 2.5e3, "x\u00e9\n", null], "b": {"c": {"d": [true, false]}}, "e": -1})",
        [](const std::string& text) { io::parse_json(text, "j"); });
  }
}
